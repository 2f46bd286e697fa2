# SPDX-License-Identifier: Apache-2.0
"""What keeps a recipe from running on its version of vLLM, and what vLLM will not do as asked."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.common.sources import check_num_tokens, check_placement, models_of
from trtspec.backends.context import PlanContext
from trtspec.backends.vllm.versions import releases
from trtspec.diagnostics import Diagnostic
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.mtp import count_layers
from trtspec.quant.quant_config import source_format

METHOD, OPTIONS = "speculation.method", "speculation.options"
SPECULATIVE = "vllm-project/vllm:vllm/config/speculative.py@v0.24.0"


def check(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield everything vLLM has against a recipe."""
    method = context.recipe.speculation.method
    if method != "none" and method not in releases()[context.version].methods:
        yield Diagnostic(METHOD, "method", f"vLLM {context.version} has no {method}", source=SPECULATIVE)
        return
    yield from _about_options(context)
    yield from _about_mtp(context)
    yield from _about_quant_format(context)
    yield from _about_parallel(context)
    yield from check_placement(context)
    yield from check_num_tokens(context)
    if not context.recipe.serving.streaming:
        message = "Triton's vLLM backend serves decoupled models only"
        source = "triton-inference-server/vllm_backend:src/model.py@8de0c14"
        yield Diagnostic("serving.streaming", "not-supported", message, "set it to true", source=source)
    for option in context.recipe.engine.extra:
        message = "an option of trtllm-build; vLLM builds no engine"
        yield Diagnostic(f"engine.extra.{option}", "unused", message, severity="warning")


def _about_options(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield what a method's options ask for and vLLM has no field for."""
    options, draft_shape, given = context.options, context.draft_shape, context.recipe.speculation.options
    if options.acceptance != "exact":
        message = "vLLM accepts exactly; it has no typical acceptance"
        yield Diagnostic(f"{OPTIONS}.lossy", "lossy", message, "remove lossy", source=SPECULATIVE)
    if isinstance(options, DraftTargetOptions) and options.stop_below:
        message = "vLLM always drafts draft_len tokens"
        yield Diagnostic(f"{OPTIONS}.stop_below", "not-supported", message, "remove it", source=SPECULATIVE)
    if isinstance(options, DraftTargetOptions) and "use_draft_logits" in given:
        message = "vLLM drafts the most probable tokens and verifies them as such"
        path = f"{OPTIONS}.use_draft_logits"
        yield Diagnostic(path, "unused", message, severity="warning", source=f"{SPECULATIVE}, draft_sample_method")
    if draft_shape.max_tokens > draft_shape.max_depth:
        message = f"vLLM drafts a chain: {draft_shape.max_depth} tokens a step, not the tree's {draft_shape.max_tokens}"
        yield Diagnostic(OPTIONS, "tree", message, severity="warning", source=SPECULATIVE)


def _about_mtp(context: PlanContext) -> Iterable[Diagnostic]:
    if context.recipe.speculation.method != "mtp":
        return
    config, depth = context.sources["target"].config, context.draft_shape.max_depth
    layers, model_type = count_layers(config), str(config.get("model_type"))
    if not layers:
        yield Diagnostic(METHOD, "no-draft", "the target has no layers for further tokens", "use method: ngram")
    elif depth > layers and depth % layers:
        message = f"the target has {layers} layers for further tokens, which are used in turn: {depth} is no multiple"
        yield Diagnostic("speculation.draft_len", "out-of-range", message, source=f"{SPECULATIVE}, n_predict")
    if model_type not in releases()[context.version].mtp_models:
        message = f"vLLM {context.version} does not draft with layers of {model_type}"
        yield Diagnostic(METHOD, "version", message, "use method: ngram", source=SPECULATIVE)


def _about_quant_format(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield where the recipe wants a format that the source has not and vLLM cannot make while it loads."""
    online = releases()[context.version].online
    for role, path, asked in models_of(context):
        found, wanted = source_format(context.sources[role]).weights, asked.quantization.weights
        if wanted in ("none", found):
            continue
        if found != "none":
            message = f"{wanted} weights are wanted, the {role} is {found}"
            yield Diagnostic(f"{path}.quantization.weights", "quantization", message, "leave it out")
        elif wanted not in online:
            message, known = f"vLLM {context.version} does not make {wanted} while it loads", ", ".join(online)
            hint = f"name a checkpoint that is quantized, or take {known}"
            yield Diagnostic(f"{path}.quantization.weights", "quantization", message, hint)
        elif set(asked.quantization.exclude) != {"lm_head"}:
            message = "vLLM quantizes every layer and not the head while it loads, whatever exclude says"
            yield Diagnostic(f"{path}.quantization.exclude", "unused", message, severity="warning")


def _about_parallel(context: PlanContext) -> Iterable[Diagnostic]:
    draft, tensor = context.recipe.speculation.draft, context.recipe.target.parallel.tensor
    if draft and context.method.drafts_with == "model" and draft.parallel.tensor not in (1, tensor):
        message = f"vLLM divides a draft over one GPU or over the target's {tensor}, not over {draft.parallel.tensor}"
        source = f"{SPECULATIVE}, _verify_and_get_draft_tp"
        yield Diagnostic("speculation.draft.parallel.tensor", "parallel", message, source=source)
