# SPDX-License-Identifier: Apache-2.0
"""What keeps a recipe from running on its version of SGLang, and what SGLang will not do as asked."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.common.sources import check_num_tokens, check_online, check_placement
from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.arguments import width_of
from trtspec.backends.sglang.versions import ALGORITHMS, OF_NETS, releases
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.eagle import EagleOptions
from trtspec.methods.mtp import count_layers
from trtspec.methods.ngram import NgramOptions

METHOD, OPTIONS, DRAFT = "speculation.method", "speculation.options", "speculation.draft.model"
SCHEDULE, VERIFY = "speculation.schedule", "speculation.verify"
SRT = "sgl-project/sglang:python/sglang/srt"
HOOK = f"{SRT}/arg_groups/speculative_hook.py@v0.5.23"
ADAPTIVE = f"{SRT}/speculative/adaptive_spec_params.py@v0.5.23"
WORKER = f"{SRT}/speculative/eagle_worker_v2.py@v0.5.23"
DRAFTED = f"{SRT}/configs/model_config.py@v0.5.23, _config_draft_model"
PIPELINE = f"{SRT}/arg_groups/validation_hook.py@v0.5.23, check_pipeline_parallel_compat"
ONLINE = ("fp8",)  # what SGLang makes of 16 bits while it loads
OWN_NETS = ("eagle", "eagle3", "mtp")  # what SGLang's EAGLE worker runs


def check(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield everything SGLang has against a recipe."""
    method = context.recipe.speculation.method
    if method not in ("none", *ALGORITHMS):
        return  # which `check` says of every backend
    if method != "none" and method not in releases()[context.version].methods:
        having = [version for version, release in releases().items() if method in release.methods]
        message = f"SGLang {context.version} has no {ALGORITHMS[method]}"
        yield Diagnostic(METHOD, "method", message, f"it is in: {', '.join(having)}", source=HOOK)
        return
    yield from _about_options(context)
    yield from _about_net(context)
    yield from _about_mtp(context)
    yield from _about_schedule(context)
    yield from _about_verify(context)
    yield from _about_parallel(context)
    yield from check_online(context, "SGLang", ONLINE)
    yield from check_placement(context)
    yield from check_num_tokens(context)
    for option in context.recipe.engine.extra:
        message = "an option of trtllm-build; SGLang builds no engine"
        yield Diagnostic(f"engine.extra.{option}", "unused", message, severity="warning")


def _about_options(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield what a method's options ask for and SGLang has no field for."""
    options, given = context.options, context.recipe.speculation.options
    if options.acceptance != "exact":
        message = "only exact acceptance is served on SGLang: its accept thresholds stay at 1.0"
        yield Diagnostic(f"{OPTIONS}.lossy", "lossy", message, "remove lossy", source=HOOK)
    if isinstance(options, EagleOptions) and not options.dynamic:
        message = "SGLang grows trees by the net's confidence; it has no static ones"
        hint = "set dynamic: true, with top_k, depth and nodes"
        yield Diagnostic(f"{OPTIONS}.choices", "tree", message, hint, source=WORKER)
    if isinstance(options, DraftTargetOptions) and options.stop_below:
        message = "SGLang always drafts draft_len tokens"
        yield Diagnostic(f"{OPTIONS}.stop_below", "not-supported", message, "remove it", source=HOOK)
    if isinstance(options, DraftTargetOptions) and "use_draft_logits" in given:
        message = "SGLang drafts the most probable tokens and verifies them as such"
        yield Diagnostic(f"{OPTIONS}.use_draft_logits", "unused", message, severity="warning", source=WORKER)
    if isinstance(options, NgramOptions) and "min_match" in given:
        message = "SGLang knows no least match: a single repeated token is drafted after"
        source = f"{SRT}/speculative/ngram_worker.py@v0.5.23"
        yield Diagnostic(f"{OPTIONS}.min_match", "unused", message, severity="warning", source=source)


def _about_net(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield where SGLang would load a net as something else: a wrong class drafts nothing that is accepted."""
    method = context.recipe.speculation.method
    if method not in OF_NETS:
        return
    known, config = releases()[context.version].nets, context.sources["draft"].config
    found = (config.get("architectures") or ["none"])[0]
    if found not in known[method]:
        others = [name for name, nets in known.items() if found in nets]
        message = f"the net's class is {found}, and SGLang {context.version} runs {ALGORITHMS[method]} with "
        message += " or ".join(known[method])
        hint = f"use method: {others[0]}" if others else "name its class in architectures of its config.json"
        yield Diagnostic(DRAFT, "class", message, hint, source="sgl-project/sglang#21272")
    block = config.get("block_size") or (config.get("dflash_config") or {}).get("block_size")
    # DFLASH counts the token before the drafted ones
    most = block - (method == "dflash") if isinstance(block, int) and method in ("dflash", "dspark") else None
    if most is not None and context.draft_shape.max_depth > most:
        message = f"the net was trained for blocks of {most} drafted tokens"
        yield Diagnostic("speculation.draft_len", "out-of-range", message, f"at most {most}", source=HOOK)


def _about_mtp(context: PlanContext) -> Iterable[Diagnostic]:
    if context.recipe.speculation.method != "mtp":
        return
    config = context.sources["target"].config
    found = (config.get("architectures") or ["none"])[0]
    if not count_layers(config):
        yield Diagnostic(METHOD, "no-draft", "the target has no layers for further tokens", "use method: ngram")
    elif found not in releases()[context.version].mtp_targets:
        message = f"SGLang {context.version} does not draft with layers of {found}"
        yield Diagnostic(METHOD, "version", message, "use method: ngram", source=DRAFTED)


def _about_schedule(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield where SGLang would draft as if there were no schedule, which it only logs."""
    if not context.recipe.speculation.schedule:
        return
    method = context.recipe.speculation.method
    if not releases()[context.version].schedule:
        first = next(version for version, release in releases().items() if release.schedule)
        message = f"SGLang {context.version} drafts no other length by the number of requests"
        yield Diagnostic(SCHEDULE, "version", message, f"from {first} on it does, or remove schedule", source=ADAPTIVE)
    elif method not in OWN_NETS:
        message = f"SGLang changes the length of drafts with {', '.join(OWN_NETS)}, not with {method}"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule", source=ADAPTIVE)
    elif width_of(context) > 1:
        message = "SGLang changes the length of chains, and this drafts a tree"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule, or set top_k: 1", source=ADAPTIVE)


def _about_verify(context: PlanContext) -> Iterable[Diagnostic]:
    method = context.recipe.speculation.method
    if context.recipe.speculation.verify != "block":
        return
    if not releases()[context.version].block:
        first = next(version for version, release in releases().items() if release.block)
        message = f"SGLang {context.version} does not verify drafts as a block"
        yield Diagnostic(VERIFY, "version", message, f"from {first} on it does, or set verify: standard", source=HOOK)
    elif method not in (*OWN_NETS, "dflash", "dspark"):
        message = f"SGLang verifies no drafts of {method} as a block"
        yield Diagnostic(VERIFY, "not-supported", message, "set verify: standard", source=HOOK)
    elif method == "eagle3" and _drafts_fewer_ids(context):
        message = "the net drafts a part of the vocabulary, and SGLang verifies such drafts one by one"
        yield Diagnostic(VERIFY, "vocabulary", message, "set verify: standard", source=WORKER)


def _drafts_fewer_ids(context: PlanContext) -> bool:
    """Return whether the net's vocabulary is a part of the target's; d2t says so too where no size is given."""
    source = context.sources["draft"]
    size = source.config.get("vocab_size")
    return source.config.get("draft_vocab_size", size) != size or any(name.endswith("d2t") for name in source.tensors)


def _about_parallel(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield where a draft is to be divided otherwise than SGLang does."""
    speculation, parallel = context.recipe.speculation, context.recipe.target.parallel
    if speculation.method != "none" and parallel.pipeline > 1:
        message = "SGLang does not draft with a target divided into pipeline stages, but for an experiment with EAGLE"
        hint = "divide it with tensor alone"
        yield Diagnostic("target.parallel.pipeline", "parallel", message, hint, source=PIPELINE)
    draft = speculation.draft
    if draft and "parallel" in draft.model_fields_set and draft.parallel.ranks != parallel.ranks:
        message = f"the draft is divided as the target is, over {parallel.ranks} GPUs"
        yield Diagnostic("speculation.draft.parallel", "parallel", message, "remove it", source=HOOK)
