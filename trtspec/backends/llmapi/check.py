# SPDX-License-Identifier: Apache-2.0
"""What keeps a recipe from running on the LLM API of its version, and what it will not do as asked."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.common.sources import check_num_tokens, check_placement, models_of
from trtspec.backends.common.trtllm_versions import version_spec_of, version_specs
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.drafting import about_target
from trtspec.backends.llmapi.lengths import about_lengths
from trtspec.backends.llmapi.speculative import (
    DRAFTS_TREES,
    is_greedy_only,
    minor_of,
    step_tokens,
    verifies_with_logits,
)
from trtspec.checkpoints.quant.quant_config import source_format
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.gpus import GPUS
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.eagle3 import Eagle3Options
from trtspec.methods.mtp import count_layers
from trtspec.methods.ngram import NgramOptions
from trtspec.methods.suffix import SuffixOptions

METHOD, OPTIONS = "speculation.method", "speculation.options"
LLM_ARGS = "NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396"
SUFFIX_SOURCE = f"{LLM_ARGS}, SADecodingConfig"
SUFFIX_SLOTS = 1024
LAST_WITH_TRANSFORMERS_4 = (1, 2)
SAMPLER = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/pyexecutor/sampler.py, pulls 14745 and 15775"
# Methods whose nets have config.json's keys of their own authors, or those of speculators.
NETS = ("eagle3", "dflash", "dspark")
# What some EAGLE-3 heads norm beside what the first ones did.
NORMS = ("fc_norm", "norm_before_fc", "norm_before_residual")
EAGLE3_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models/modeling_speculative.py, Eagle3DraftModel"
ROPE_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/attention_backend/interface.py@000a01de, RopeParams.from_config"
MTP_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models/modeling_speculative.py, MTPForCausalLM"


def check(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield everything the LLM API has against a recipe."""
    method = context.recipe.speculation.method
    if method != "none" and method not in version_spec_of(context.version).api.methods:
        having = [minor for minor, spec in version_specs().items() if method in spec.api.methods]
        message = f"the LLM API of TensorRT-LLM {context.version} has no {method}"
        yield Diagnostic(METHOD, "method", message, f"it is in: {', '.join(having)}" if having else None)
        return
    if method != "none":
        yield from about_target(context)
        yield from about_lengths(context)
    yield from _about_options(context)
    yield from _about_sampling(context)
    yield from _about_mtp(context)
    yield from _about_head(context)
    yield from _about_quant_format(context)
    yield from _about_rotary_keys(context)
    yield from _about_parallel(context)
    yield from check_placement(context)
    yield from check_num_tokens(context, step_tokens(context))
    for option in context.recipe.engine.extra:
        message = "an option of trtllm-build; the LLM API builds no engine"
        yield Diagnostic(f"engine.extra.{option}", "unused", message, severity="warning")


def _about_options(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield what a method's options ask for and the LLM API has no field for."""
    options = context.options
    if options.acceptance != "exact":
        message = "the PyTorch backend accepts exactly; typical acceptance is of the engines"
        yield Diagnostic(
            f"{OPTIONS}.lossy", "lossy", message, "remove lossy", source=f"{LLM_ARGS}, EagleDecodingConfig"
        )
    if isinstance(options, DraftTargetOptions) and options.stop_below:
        message = "the LLM API always drafts draft_len tokens"
        yield Diagnostic(f"{OPTIONS}.stop_below", "not-supported", message, "remove it", source=LLM_ARGS)
    if isinstance(options, DraftTargetOptions) and not options.use_draft_logits and not verifies_with_logits(context):
        message = "the LLM API decides by itself whether drafts are verified with their logits"
        yield Diagnostic(f"{OPTIONS}.use_draft_logits", "not-supported", message, "remove it", source=LLM_ARGS)
    if isinstance(options, NgramOptions) and "min_match" in context.recipe.speculation.options:
        message = "the LLM API knows no least match: a single repeated token is drafted after"
        yield Diagnostic(f"{OPTIONS}.min_match", "unused", message, severity="warning", source=LLM_ARGS)
    if isinstance(options, Eagle3Options) and options.top_k:
        yield from _about_tree(context, options.top_k)
    if isinstance(options, SuffixOptions):
        yield from _about_suffix(context, options)


def _about_suffix(context: PlanContext, options: SuffixOptions) -> Iterable[Diagnostic]:
    for key in ("max_tree_depth", "max_spec_factor", "min_token_prob"):
        if key in context.recipe.speculation.options:
            message = f"the LLM API's suffix automaton has no {key}: it drafts what follows the longest match"
            yield Diagnostic(f"{OPTIONS}.{key}", "unused", message, severity="warning", source=SUFFIX_SOURCE)
    asked = context.recipe.speculation.options.get("max_cached_requests", 0)
    least = context.recipe.engine.max_batch_size
    if options.max_cached_requests and asked and not least <= options.max_cached_requests <= SUFFIX_SLOTS:
        message = f"the LLM API keeps {least} to {SUFFIX_SLOTS} texts, from max_batch_size on"
        hint = "leave it out for a size of its own, or 0 for the text alone"
        path = f"{OPTIONS}.max_cached_requests"
        yield Diagnostic(path, "out-of-range", message, hint, source=SUFFIX_SOURCE)


def _about_tree(context: PlanContext, top_k: int) -> Iterable[Diagnostic]:
    path, shape = f"{OPTIONS}.top_k", context.draft_shape
    most = top_k * shape.max_depth
    if minor_of(context.version) < DRAFTS_TREES:
        first = ".".join(map(str, DRAFTS_TREES))
        message = f"the PyTorch backend drafts trees from {first} on; {context.version} drafts a chain"
        yield Diagnostic(path, "version", message, "remove top_k and nodes", source=f"{LLM_ARGS}, eagle_choices")
    elif shape.max_tokens > most:
        message = f"a tree of {shape.max_tokens} nodes; the LLM API takes top_k times draft_len, {most}, at most"
        yield Diagnostic(f"{OPTIONS}.nodes", "out-of-range", message, source=f"{LLM_ARGS}, max_total_draft_tokens")


def _about_sampling(context: PlanContext) -> Iterable[Diagnostic]:
    if is_greedy_only(context):
        method = context.recipe.speculation.method
        message = (
            f"TensorRT-LLM {context.version} does not sample from the target's own distribution with method {method}"
        )
        hint = "requests that sample are refused; from 1.3 on they are served"
        yield Diagnostic(METHOD, "greedy-only", message, hint, "warning", SAMPLER)


def _about_mtp(context: PlanContext) -> Iterable[Diagnostic]:
    if context.recipe.speculation.method != "mtp":
        return
    config = context.sources["target"].config
    layers, model_type = count_layers(config), str(config.get("model_type"))
    if not layers:
        yield Diagnostic(METHOD, "no-draft", "the target has no layers for further tokens", "use method: ngram")
    elif 1 < layers < context.draft_shape.max_depth:
        message = f"the target has {layers} layers for further tokens, one for each token that can be drafted"
        yield Diagnostic("speculation.draft_len", "out-of-range", message, f"at most {layers}", source=MTP_SOURCE)
    if model_type not in version_spec_of(context.version).api.methods["mtp"].models:
        message = f"TensorRT-LLM {context.version} is not known to have layers for further tokens of {model_type}"
        yield Diagnostic(METHOD, "version", message, severity="warning", source=MTP_SOURCE)


def _about_head(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield where a net is written otherwise than the PyTorch backend's class reads it."""
    if context.recipe.speculation.method not in NETS:
        return
    config, path = context.sources["draft"].config, "speculation.draft.model"
    if "speculators_model_type" in config:
        message = "the head is written as speculators does; the LLM API looks for its sizes on top of config.json"
        yield Diagnostic(path, "layout", message, "take it as its authors or ModelOpt write it", source=EAGLE3_SOURCE)
    for key in NORMS:
        if config.get(key):
            message = f"the head has {key}, which the LLM API's class is not known to have"
            yield Diagnostic(path, f"layout-{key}", message, severity="warning", source=EAGLE3_SOURCE)
    positions, length = config.get("max_position_embeddings"), context.recipe.engine.max_seq_len
    if context.head is None and isinstance(positions, int) and positions < length:  # a head that was read tells it
        message = f"the head has {positions} positions, fewer than max_seq_len {length}: its rope table ends there"
        hint = "drafts may be accepted less beyond them; measure on long texts"
        yield Diagnostic(path, "positions", message, hint, "warning", ROPE_SOURCE)


def _about_rotary_keys(context: PlanContext) -> Iterable[Diagnostic]:
    """Warn of rotary keys that only transformers 5 reads: releases up to 1.2 come with transformers 4."""
    if minor_of(context.version) > LAST_WITH_TRANSFORMERS_4:
        return
    for role, path, _ in models_of(context):
        config = context.sources[role].config
        section = config.get("rope_parameters")
        if not isinstance(section, dict) or config.get("rope_theta") is not None or config.get("rope_scaling"):
            continue
        base, kind = section.get("rope_theta", 10000.0), section.get("rope_type", "default")
        if (base, kind) != (10000.0, "default"):
            message = f"its rope_parameters (base {base}, {kind}) are keys of transformers 5, and TensorRT-LLM"
            message += f" {context.version} comes with transformers 4, which reads rope_theta and rope_scaling"
            hint = "write rope_theta, and the scaling as rope_scaling, at the top level of config.json too"
            yield Diagnostic(f"{path}.model", "rope", message, hint, "warning")


def _about_quant_format(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield where the recipe wants another format than the source has: the LLM API quantizes nothing."""
    gpu = GPUS.get((context.recipe.engine.gpu or "").lower())
    for role, path, asked in models_of(context):
        found, wanted = source_format(context.sources[role]).weights, asked.quantization.weights
        if wanted not in ("none", found):
            message = f"{wanted} weights are wanted, the {role} is {'not quantized' if found == 'none' else found}"
            hint = "name a quantized checkpoint, as ModelOpt exports one: the LLM API runs the source as it is"
            yield Diagnostic(f"{path}.quantization.weights", "quantization", message, hint)
        if gpu and not gpu.has_fp8 and "fp8" in found:
            message = f"the {role} is {found}, and {gpu.name} multiplies no FP8"
            yield Diagnostic("engine.gpu", "quantization", message, "FP8 needs compute capability 8.9")


def _about_parallel(context: PlanContext) -> Iterable[Diagnostic]:
    draft, parallel = context.recipe.speculation.draft, context.recipe.target.parallel
    if draft and "parallel" in draft.model_fields_set and draft.parallel.ranks != parallel.ranks:
        message = f"the draft is divided as the target is, over {parallel.ranks} GPUs"
        yield Diagnostic("speculation.draft.parallel", "parallel", message, "remove it", source=LLM_ARGS)
