# SPDX-License-Identifier: Apache-2.0
"""Checks of a recipe against its version of SGLang: errors that prevent serving, and settings without effect."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.common import checks
from trtspec.backends.common.checks import DRAFT, METHOD, SCHEDULE, STRUCTURED_OUTPUT, VERIFY, source_architecture
from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.versions import SglangMethod, methods, releases
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.versions import version_key

SRT = "sgl-project/sglang:python/sglang/srt"
HOOK = f"{SRT}/arg_groups/speculative_hook.py@v0.5.23"
ADAPTIVE = f"{SRT}/speculative/adaptive_spec_params.py@v0.5.23"
EAGLE_WORKER = f"{SRT}/speculative/eagle_worker_v2.py@v0.5.23"
PIPELINE = f"{SRT}/arg_groups/validation_hook.py@v0.5.23, check_pipeline_parallel_compat"
GRAMMAR_SOURCE = f"{SRT}/speculative/dflash_utils.py@v0.5.16, validate_dflash_request"
BLOCKS_WITH_GRAMMARS = "0.5.17"  # the first version whose block drafters support a grammar
# Formats to which SGLang quantizes 16-bit weights on load, with --quantization
# (sgl-project/sglang:docs/advanced_features/quantization.md@0f4513c2, "Online Quantization").
ONLINE = ("fp8",)


def check(context: PlanContext) -> Iterable[Diagnostic]:
    method = context.method_name
    if method not in ("none", *methods()):
        return  # `check` reports it for every backend
    if method != "none" and method not in releases()[context.version].methods:
        having = [version for version, release in releases().items() if method in release.methods]
        message = f"SGLang {context.version} does not support {methods()[method].name}"
        yield Diagnostic(METHOD, "method", message, f"supported by: {', '.join(having)}", source=HOOK)
        return
    yield from _check_options(context)
    if method != "none":
        own = list(methods()[method].check(context))
        yield from own
        if not any(each.path == DRAFT for each in own):  # a drafter that the method refuses needs no second reason
            yield from _check_net(context, methods()[method])
        yield from _check_schedule(context, methods()[method])
        yield from _check_verify(context, methods()[method])
        yield from _check_grammars(context, methods()[method])
    if method != "none" and context.recipe.target.parallel.pipeline > 1:
        message = "SGLang does not support speculation with pipeline parallelism, except experimentally for EAGLE"
        hint = "use tensor parallelism only"
        yield Diagnostic("target.parallel.pipeline", "parallel", message, hint, source=PIPELINE)
    yield from checks.check_draft_parallel(context, HOOK)
    yield from checks.check_online(context, "SGLang", ONLINE)
    yield from checks.check_unconverted(context, "SGLang")


def _check_options(context: PlanContext) -> Iterable[Diagnostic]:
    message = "SGLang serves exact acceptance only: trtspec keeps its accept thresholds at 1.0"
    yield from checks.check_acceptance(context, message, HOOK)
    yield from checks.check_full_drafts(context, "SGLang", HOOK)
    yield from checks.check_confidence_table(context, "SGLang")
    yield from checks.check_any_match(context, "SGLang", f"{SRT}/speculative/ngram_worker.py@v0.5.23")


def _check_net(context: PlanContext, method: SglangMethod) -> Iterable[Diagnostic]:
    """Yield an error if SGLang would load the drafter with a wrong class, whose drafts are never accepted."""
    if not method.has_net:
        return
    nets_by_method, source = releases()[context.version].nets, context.sources["draft"]
    nets = nets_by_method[context.method_name]
    found = source_architecture(source) or "none"
    if found not in nets:
        others = [name for name, its_nets in nets_by_method.items() if found in its_nets]
        message = f"the drafter's class is {found}, but SGLang {context.version} runs {method.name} with "
        message += " or ".join(nets)
        later = [each for each, release in releases().items() if found in release.nets.get(context.method_name, ())]
        hint = f"supported by SGLang {later[0]} or later: see engine.version" if later else ""
        hint = f"use method: {others[0]}" if others else hint or "set its class in architectures of its config.json"
        yield Diagnostic(DRAFT, "class", message, hint, source="sgl-project/sglang#21272")
    block = source.config.get("block_size") or (source.config.get("dflash_config") or {}).get("block_size")
    # DFLASH also counts the token before the draft tokens
    most = block - (method.name == "DFLASH") if isinstance(block, int) and method.drafts_blocks else None
    if most is not None and context.draft_shape.max_depth > most:
        message = f"the drafter was trained for blocks of {most} draft tokens"
        yield Diagnostic("speculation.draft_len", "out-of-range", message, f"at most {most}", source=HOOK)


def _check_schedule(context: PlanContext, method: SglangMethod) -> Iterable[Diagnostic]:
    """Yield an error if SGLang would ignore the schedule, which it reports only in its log."""
    if not context.recipe.speculation.schedule:
        return
    if not releases()[context.version].schedule:
        first = next(version for version, release in releases().items() if release.schedule)
        message = f"SGLang {context.version} does not adapt the draft length to the number of requests"
        hint = f"use {first} or later, or remove schedule"
        yield Diagnostic(SCHEDULE, "version", message, hint, source=ADAPTIVE)
    elif not method.has_eagle_worker:
        adapting = ", ".join(name for name, each in methods().items() if each.has_eagle_worker)
        message = f"SGLang adapts the draft length only for {adapting}, not for {context.method_name}"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule", source=ADAPTIVE)
    elif method.tree_width(context.options) > 1:
        message = "SGLang adapts the draft length only of chains, but the method drafts a tree"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule, or set top_k: 1", source=ADAPTIVE)


def _check_verify(context: PlanContext, method: SglangMethod) -> Iterable[Diagnostic]:
    if context.recipe.speculation.verify != "block":
        return
    if not releases()[context.version].block:
        first = next(version for version, release in releases().items() if release.block)
        message = f"SGLang {context.version} does not support block verification"
        hint = f"use {first} or later, or set verify: standard"
        yield Diagnostic(VERIFY, "version", message, hint, source=HOOK)
    elif not method.verifies_blocks:
        message = f"SGLang does not support block verification with {context.method_name}"
        yield Diagnostic(VERIFY, "not-supported", message, "set verify: standard", source=HOOK)
    elif method.name == "EAGLE3" and _drafts_fewer_ids(context):
        message = "the drafter has a reduced vocabulary, for which SGLang verifies token by token"
        yield Diagnostic(VERIFY, "vocabulary", message, "set verify: standard", source=EAGLE_WORKER)


def _check_grammars(context: PlanContext, method: SglangMethod) -> Iterable[Diagnostic]:
    """Yield an error if SGLang would reject every request with a grammar."""
    wanted, version = context.recipe.serving.structured_output, version_key(context.version)
    if wanted and method.drafts_blocks and version and version < (version_key(BLOCKS_WITH_GRAMMARS) or version):
        message = f"SGLang {context.version} does not support structured output with {context.method_name}"
        hint = f"use {BLOCKS_WITH_GRAMMARS} or later, or remove structured_output"
        yield Diagnostic(STRUCTURED_OUTPUT, "version", message, hint, source=GRAMMAR_SOURCE)


def _drafts_fewer_ids(context: PlanContext) -> bool:
    """Return whether the drafter has a reduced vocabulary, according to its config or a d2t tensor."""
    source = context.sources["draft"]
    size = source.config.get("vocab_size")
    return source.config.get("draft_vocab_size", size) != size or any(name.endswith("d2t") for name in source.tensors)
