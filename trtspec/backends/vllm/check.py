# SPDX-License-Identifier: Apache-2.0
"""What keeps a recipe from running on its version of vLLM, and what vLLM will not do as asked."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.base import Case, Objection
from trtspec.backends.sources import models_of, placement_objections, source_storage
from trtspec.backends.vllm.versions import releases
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.mtp import count_layers

METHOD, OPTIONS = "speculation.method", "speculation.options"
SPECULATIVE = "vllm-project/vllm:vllm/config/speculative.py@v0.24.0"


def objections(case: Case) -> Iterable[Objection]:
    """Yield everything vLLM has against a recipe."""
    method = case.recipe.speculation.method
    if method != "none" and method not in releases()[case.version].methods:
        yield Objection(METHOD, "method", f"vLLM {case.version} has no {method}", source=SPECULATIVE)
        return
    yield from _about_options(case)
    yield from _about_mtp(case)
    yield from _about_storage(case)
    yield from _about_parallel(case)
    yield from placement_objections(case)
    if not case.recipe.serving.streaming:
        message = "Triton's vLLM backend serves decoupled models only"
        source = "triton-inference-server/vllm_backend:src/model.py@8de0c14"
        yield Objection("serving.streaming", "not-supported", message, "set it to true", source=source)
    for option in case.recipe.engine.extra:
        message = "an option of trtllm-build; vLLM builds no engine"
        yield Objection(f"engine.extra.{option}", "unused", message, severity="warning")


def _about_options(case: Case) -> Iterable[Objection]:
    """Yield what a method's options ask for and vLLM has no field for."""
    options, extent, given = case.options, case.extent, case.recipe.speculation.options
    if options.acceptance != "exact":
        message = "vLLM accepts exactly; it has no typical acceptance"
        yield Objection(f"{OPTIONS}.lossy", "lossy", message, "remove lossy", source=SPECULATIVE)
    if isinstance(options, DraftTargetOptions) and options.stop_below:
        message = "vLLM always drafts draft_len tokens"
        yield Objection(f"{OPTIONS}.stop_below", "not-supported", message, "remove it", source=SPECULATIVE)
    if isinstance(options, DraftTargetOptions) and "use_draft_logits" in given:
        message = "vLLM drafts the most probable tokens and verifies them as such"
        path = f"{OPTIONS}.use_draft_logits"
        yield Objection(path, "unused", message, severity="warning", source=f"{SPECULATIVE}, draft_sample_method")
    if extent.nodes > extent.depth:
        message = f"vLLM drafts a chain: {extent.depth} tokens a step, not the tree's {extent.nodes}"
        yield Objection(OPTIONS, "tree", message, severity="warning", source=SPECULATIVE)


def _about_mtp(case: Case) -> Iterable[Objection]:
    if case.recipe.speculation.method != "mtp":
        return
    config, depth = case.sources["target"].config, case.extent.depth
    layers, model_type = count_layers(config), str(config.get("model_type"))
    if not layers:
        yield Objection(METHOD, "no-draft", "the target has no layers for further tokens", "use method: ngram")
    elif depth > layers and depth % layers:
        message = f"the target has {layers} layers for further tokens, which are used in turn: {depth} is no multiple"
        yield Objection("speculation.draft_len", "out-of-range", message, source=f"{SPECULATIVE}, n_predict")
    if model_type not in releases()[case.version].mtp_models:
        message = f"vLLM {case.version} does not draft with layers of {model_type}"
        yield Objection(METHOD, "version", message, "use method: ngram", source=SPECULATIVE)


def _about_storage(case: Case) -> Iterable[Objection]:
    """Yield where the recipe wants a format that the source has not and vLLM cannot make while it loads."""
    online = releases()[case.version].online
    for role, path, asked in models_of(case):
        found, wanted = source_storage(case.sources[role]).weights, asked.quantization.weights
        if wanted in ("none", found):
            continue
        if found != "none":
            message = f"{wanted} weights are wanted, the {role} is {found}"
            yield Objection(f"{path}.quantization.weights", "quantization", message, "leave it out")
        elif wanted not in online:
            message, known = f"vLLM {case.version} does not make {wanted} while it loads", ", ".join(online)
            hint = f"name a checkpoint that is quantized, or take {known}"
            yield Objection(f"{path}.quantization.weights", "quantization", message, hint)
        elif set(asked.quantization.exclude) != {"lm_head"}:
            message = "vLLM quantizes every layer and not the head while it loads, whatever exclude says"
            yield Objection(f"{path}.quantization.exclude", "unused", message, severity="warning")


def _about_parallel(case: Case) -> Iterable[Objection]:
    draft, tensor = case.recipe.speculation.draft, case.recipe.target.parallel.tensor
    if draft and case.method.drafts_with == "model" and draft.parallel.tensor not in (1, tensor):
        message = f"vLLM divides a draft over one GPU or over the target's {tensor}, not over {draft.parallel.tensor}"
        source = f"{SPECULATIVE}, _verify_and_get_draft_tp"
        yield Objection("speculation.draft.parallel.tensor", "parallel", message, source=source)
