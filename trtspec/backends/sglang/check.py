# SPDX-License-Identifier: Apache-2.0
"""Check a recipe against its version of SGLang: errors that prevent serving, and ignored settings."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.common import checks
from trtspec.backends.common.checks import DRAFT, METHOD, OPTIONS, SCHEDULE, VERIFY, source_architecture, unused
from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.arguments import ALGORITHMS, BLOCK_METHODS, CHECKPOINT_METHODS, releases, tree_width
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.eagle import EagleOptions
from trtspec.methods.mtp import count_layers

SRT = "sgl-project/sglang:python/sglang/srt"
HOOK = f"{SRT}/arg_groups/speculative_hook.py@v0.5.23"
ADAPTIVE = f"{SRT}/speculative/adaptive_spec_params.py@v0.5.23"
WORKER = f"{SRT}/speculative/eagle_worker_v2.py@v0.5.23"
DRAFTED = f"{SRT}/configs/model_config.py@v0.5.23, _config_draft_model"
PIPELINE = f"{SRT}/arg_groups/validation_hook.py@v0.5.23, check_pipeline_parallel_compat"
# Formats to which SGLang quantizes 16-bit weights on load, with --quantization
# (sgl-project/sglang:docs/advanced_features/quantization.md@0f4513c2, "Online Quantization").
ONLINE = ("fp8",)
OWN_NETS = ("eagle", "eagle3", "mtp")  # methods of SGLang's EAGLE worker


def check(context: PlanContext) -> Iterable[Diagnostic]:
    method = context.method_name
    if method not in ("none", *ALGORITHMS):
        return  # `check` reports it for every backend
    if method != "none" and method not in releases()[context.version].methods:
        having = [version for version, release in releases().items() if method in release.methods]
        message = f"SGLang {context.version} does not support {ALGORITHMS[method]}"
        yield Diagnostic(METHOD, "method", message, f"supported by: {', '.join(having)}", source=HOOK)
        return
    yield from _check_options(context)
    yield from _check_net(context)
    yield from _check_mtp(context)
    yield from _check_schedule(context)
    yield from _check_verify(context)
    if method != "none" and context.recipe.target.parallel.pipeline > 1:
        message = "SGLang does not support speculation with pipeline parallelism, except experimentally for EAGLE"
        hint = "use tensor parallelism only"
        yield Diagnostic("target.parallel.pipeline", "parallel", message, hint, source=PIPELINE)
    yield from checks.check_draft_parallel(context, HOOK)
    yield from checks.check_online(context, "SGLang", ONLINE)
    yield from checks.check_unconverted(context, "SGLang")


def _check_options(context: PlanContext) -> Iterable[Diagnostic]:
    options, configured = context.options, context.recipe.speculation.options
    message = "SGLang serves exact acceptance only: trtspec keeps its accept thresholds at 1.0"
    yield from checks.check_acceptance(context, message, HOOK)
    yield from checks.check_full_drafts(context, "SGLang", HOOK)
    yield from checks.check_any_match(context, "SGLang", f"{SRT}/speculative/ngram_worker.py@v0.5.23")
    if isinstance(options, EagleOptions) and not options.dynamic:
        message = "SGLang grows trees by the drafter's confidence and does not support static trees"
        hint = "set dynamic: true, with top_k, depth and nodes"
        yield Diagnostic(f"{OPTIONS}.choices", "tree", message, hint, source=WORKER)
    if isinstance(options, DraftTargetOptions) and "use_draft_logits" in configured:
        message = "SGLang drafts and verifies greedily chosen tokens, without draft probabilities"
        yield unused(f"{OPTIONS}.use_draft_logits", message, WORKER)


def _check_net(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield an error if SGLang would load the drafter with a wrong class, whose drafts are never accepted."""
    method = context.method_name
    if method not in CHECKPOINT_METHODS:
        return
    nets_by_method, source = releases()[context.version].nets, context.sources["draft"]
    found = source_architecture(source) or "none"
    if found not in nets_by_method[method]:
        others = [name for name, nets in nets_by_method.items() if found in nets]
        message = f"the drafter's class is {found}, but SGLang {context.version} runs {ALGORITHMS[method]} with "
        message += " or ".join(nets_by_method[method])
        hint = f"use method: {others[0]}" if others else "set its class in architectures of its config.json"
        yield Diagnostic(DRAFT, "class", message, hint, source="sgl-project/sglang#21272")
    block = source.config.get("block_size") or (source.config.get("dflash_config") or {}).get("block_size")
    # DFLASH also counts the token before the draft tokens
    most = block - (method == "dflash") if isinstance(block, int) and method in BLOCK_METHODS else None
    if most is not None and context.draft_shape.max_depth > most:
        message = f"the drafter was trained for blocks of {most} draft tokens"
        yield Diagnostic("speculation.draft_len", "out-of-range", message, f"at most {most}", source=HOOK)


def _check_mtp(context: PlanContext) -> Iterable[Diagnostic]:
    if context.method_name != "mtp":
        return
    source = context.sources["target"]
    found = source_architecture(source) or "none"
    if not count_layers(source.config):
        yield Diagnostic(METHOD, "no-draft", "the target lacks MTP layers", "use method: ngram")
    elif found not in releases()[context.version].mtp_targets:
        message = f"SGLang {context.version} does not draft with MTP layers of {found}"
        yield Diagnostic(METHOD, "version", message, "use method: ngram", source=DRAFTED)


def _check_schedule(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield an error if SGLang would ignore the schedule, which it reports only in its log."""
    if not context.recipe.speculation.schedule:
        return
    method = context.method_name
    if not releases()[context.version].schedule:
        first = next(version for version, release in releases().items() if release.schedule)
        message = f"SGLang {context.version} does not adapt the draft length to the number of requests"
        hint = f"use {first} or later, or remove schedule"
        yield Diagnostic(SCHEDULE, "version", message, hint, source=ADAPTIVE)
    elif method not in OWN_NETS:
        message = f"SGLang adapts the draft length only for {', '.join(OWN_NETS)}, not for {method}"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule", source=ADAPTIVE)
    elif tree_width(context) > 1:
        message = "SGLang adapts the draft length only of chains, but the method drafts a tree"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule, or set top_k: 1", source=ADAPTIVE)


def _check_verify(context: PlanContext) -> Iterable[Diagnostic]:
    method = context.method_name
    if context.recipe.speculation.verify != "block":
        return
    if not releases()[context.version].block:
        first = next(version for version, release in releases().items() if release.block)
        message = f"SGLang {context.version} does not support block verification"
        hint = f"use {first} or later, or set verify: standard"
        yield Diagnostic(VERIFY, "version", message, hint, source=HOOK)
    elif method not in (*OWN_NETS, *BLOCK_METHODS):
        message = f"SGLang does not support block verification with {method}"
        yield Diagnostic(VERIFY, "not-supported", message, "set verify: standard", source=HOOK)
    elif method == "eagle3" and _drafts_fewer_ids(context):
        message = "the drafter has a reduced vocabulary, for which SGLang verifies token by token"
        yield Diagnostic(VERIFY, "vocabulary", message, "set verify: standard", source=WORKER)


def _drafts_fewer_ids(context: PlanContext) -> bool:
    """Return whether the drafter's vocabulary is reduced, by its size or a d2t tensor."""
    source = context.sources["draft"]
    size = source.config.get("vocab_size")
    return source.config.get("draft_vocab_size", size) != size or any(name.endswith("d2t") for name in source.tensors)
