# SPDX-License-Identifier: Apache-2.0
"""What keeps a recipe from running on the LLM API of its version, and what it will not do as asked."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.base import Case, Objection
from trtspec.backends.trtllm_versions import contract_of, contracts
from trtspec.backends.gpus import GPUS
from trtspec.backends.llmapi.speculative import DRAFTS_TREES, is_greedy_only, minor_of
from trtspec.backends.sources import models_of, placement_objections, source_storage
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.eagle3 import Eagle3Options
from trtspec.methods.mtp import count_layers
from trtspec.methods.ngram import NgramOptions

METHOD, OPTIONS = "speculation.method", "speculation.options"
LLM_ARGS = "NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396"
SAMPLER = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/pyexecutor/sampler.py, pulls 14745 and 15775"
# Model types whose layers for further tokens the PyTorch backend has a class for, by the version that it came with.
MTP_MODELS = {
    (1, 0): ("deepseek_v3",),
    (1, 2): ("deepseek_v32", "glm4_moe", "exaone_moe", "nemotron_h"),
    (1, 3): ("glm_moe_dsa", "nemotron_h_puzzle", "qwen3_next"),
}
# What some EAGLE-3 nets norm beside what the first ones did.
NORMS = ("fc_norm", "norm_before_fc", "norm_before_residual")
EAGLE3_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models/modeling_speculative.py, Eagle3DraftModel"
MTP_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models/modeling_speculative.py, MTPForCausalLM"


def objections(case: Case) -> Iterable[Objection]:
    """Yield everything the LLM API has against a recipe."""
    method = case.recipe.speculation.method
    if method != "none" and method not in contract_of(case.version).llmapi.methods:
        having = [minor for minor, contract in contracts().items() if method in contract.llmapi.methods]
        message = f"the LLM API of TensorRT-LLM {case.version} has no {method}"
        yield Objection(METHOD, "method", message, f"it is in: {', '.join(having)}" if having else None)
        return
    yield from _about_options(case)
    yield from _about_sampling(case)
    yield from _about_mtp(case)
    yield from _about_net(case)
    yield from _about_storage(case)
    yield from _about_parallel(case)
    yield from placement_objections(case)
    for option in case.recipe.engine.extra:
        message = "an option of trtllm-build; the LLM API builds no engine"
        yield Objection(f"engine.extra.{option}", "unused", message, severity="warning")


def _about_options(case: Case) -> Iterable[Objection]:
    """Yield what a method's options ask for and the LLM API has no field for."""
    options = case.options
    if options.acceptance != "exact":
        message = "the PyTorch backend accepts exactly; typical acceptance is of the engines"
        yield Objection(f"{OPTIONS}.lossy", "lossy", message, "remove lossy", source=f"{LLM_ARGS}, EagleDecodingConfig")
    if isinstance(options, DraftTargetOptions) and options.stop_below:
        message = "the LLM API always drafts draft_len tokens"
        yield Objection(f"{OPTIONS}.stop_below", "not-supported", message, "remove it", source=LLM_ARGS)
    if isinstance(options, DraftTargetOptions) and not options.use_draft_logits:
        message = "the LLM API decides by itself whether drafts are verified with their logits"
        yield Objection(f"{OPTIONS}.use_draft_logits", "not-supported", message, "remove it", source=LLM_ARGS)
    if isinstance(options, NgramOptions) and "min_match" in case.recipe.speculation.options:
        message = "the LLM API knows no least match: a single repeated token is drafted after"
        yield Objection(f"{OPTIONS}.min_match", "unused", message, severity="warning", source=LLM_ARGS)
    if isinstance(options, Eagle3Options) and options.top_k:
        yield from _about_tree(case, options.top_k)


def _about_tree(case: Case, top_k: int) -> Iterable[Objection]:
    path, most = f"{OPTIONS}.top_k", top_k * case.extent.depth
    if minor_of(case.version) < DRAFTS_TREES:
        first = ".".join(map(str, DRAFTS_TREES))
        message = f"the PyTorch backend drafts trees from {first} on; {case.version} drafts a chain"
        yield Objection(path, "version", message, "remove top_k and nodes", source=f"{LLM_ARGS}, eagle_choices")
    elif case.extent.nodes > most:
        message = f"a tree of {case.extent.nodes} nodes; the LLM API takes top_k times draft_len, {most}, at most"
        yield Objection(f"{OPTIONS}.nodes", "out-of-range", message, source=f"{LLM_ARGS}, max_total_draft_tokens")


def _about_sampling(case: Case) -> Iterable[Objection]:
    if is_greedy_only(case):
        method = case.recipe.speculation.method
        message = f"TensorRT-LLM {case.version} does not sample from the target's own law with method {method}"
        hint = "requests that sample are refused; from 1.3 on they are served"
        yield Objection(METHOD, "greedy-only", message, hint, "warning", SAMPLER)


def _about_mtp(case: Case) -> Iterable[Objection]:
    if case.recipe.speculation.method != "mtp":
        return
    config = case.sources["target"].config
    layers, model_type = count_layers(config), str(config.get("model_type"))
    if not layers:
        yield Objection(METHOD, "no-draft", "the target has no layers for further tokens", "use method: ngram")
    elif 1 < layers < case.extent.depth:
        message = f"the target has {layers} layers for further tokens, one for each token that can be drafted"
        yield Objection("speculation.draft_len", "out-of-range", message, f"at most {layers}", source=MTP_SOURCE)
    minor = minor_of(case.version)
    if model_type not in [name for since, names in MTP_MODELS.items() if since <= minor for name in names]:
        message = f"TensorRT-LLM {case.version} is not known to have layers for further tokens of {model_type}"
        yield Objection(METHOD, "version", message, severity="warning", source=MTP_SOURCE)


def _about_net(case: Case) -> Iterable[Objection]:
    """Yield where an EAGLE-3 net is written otherwise than the PyTorch backend's class reads it."""
    if case.recipe.speculation.method != "eagle3":
        return
    config, path = case.sources["draft"].config, "speculation.draft.model"
    if "speculators_model_type" in config:
        message = "the net is written as speculators does; the LLM API looks for its sizes on top of config.json"
        yield Objection(
            path, "layout", message, "take it as SafeAILab/EAGLE or ModelOpt write it", source=EAGLE3_SOURCE
        )
    for key in NORMS:
        if config.get(key):
            message = f"the net has {key}, which the LLM API's class is not known to have"
            yield Objection(path, f"layout-{key}", message, severity="warning", source=EAGLE3_SOURCE)


def _about_storage(case: Case) -> Iterable[Objection]:
    """Yield where the recipe wants another format than the source has: the LLM API quantizes nothing."""
    gpu = GPUS.get((case.recipe.engine.gpu or "").lower())
    for role, path, asked in models_of(case):
        found, wanted = source_storage(case.sources[role]).weights, asked.quantization.weights
        if wanted not in ("none", found):
            message = f"{wanted} weights are wanted, the {role} is {'not quantized' if found == 'none' else found}"
            hint = "name a quantized checkpoint, as ModelOpt exports one: the LLM API runs the source as it is"
            yield Objection(f"{path}.quantization.weights", "quantization", message, hint)
        if gpu and not gpu.has_fp8 and "fp8" in found:
            message = f"the {role} is {found}, and {gpu.name} multiplies no FP8"
            yield Objection("engine.gpu", "quantization", message, "FP8 needs compute capability 8.9")


def _about_parallel(case: Case) -> Iterable[Objection]:
    draft, parallel = case.recipe.speculation.draft, case.recipe.target.parallel
    if draft and "parallel" in draft.model_fields_set and draft.parallel.ranks != parallel.ranks:
        message = f"the draft is divided as the target is, over {parallel.ranks} GPUs"
        yield Objection("speculation.draft.parallel", "parallel", message, "remove it", source=LLM_ARGS)
