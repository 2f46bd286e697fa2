# SPDX-License-Identifier: Apache-2.0
"""Checks of a recipe against the LLM API of its version: errors that prevent serving, and settings without effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trtspec.backends.common import checks
from trtspec.backends.common.checks import DRAFT, METHOD, OPTIONS, SCHEDULE, unused
from trtspec.backends.common.trtllm_versions import VersionSpec, find_version_spec, minor_version, version_specs
from trtspec.backends.context import PlanContext, recipe_models
from trtspec.backends.llmapi import arguments
from trtspec.checkpoints.prequantized import source_format
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.dflash import block_size, is_dflash2
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.eagle3 import Eagle3Options
from trtspec.methods.mtp import count_layers
from trtspec.methods.suffix import SuffixOptions

THRESHOLD = "speculation.acceptance_rate_threshold"
LLM_ARGS = "NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396"
SUFFIX_SOURCE = f"{LLM_ARGS}, SADecodingConfig"
SUFFIX_SLOTS = 1024
LAST_WITH_TRANSFORMERS_4 = (1, 2)
SAMPLER = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/pyexecutor/sampler.py, pulls 14745 and 15775"
# Methods with drafters in the authors' format or in the speculators format.
NETS = ("eagle3", "dflash", "dspark")
# Additional norms of some EAGLE-3 heads.
NORMS = ("fc_norm", "norm_before_fc", "norm_before_residual")
EAGLE3_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models/modeling_speculative.py, Eagle3DraftModel"
ROPE_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/attention_backend/interface.py@000a01de, RopeParams.from_config"
MODELS = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models"
INSIDE_SOURCE = f"{MODELS}/modeling_speculative.py@00679c66, SpecDecOneEngineForCausalLM"
LENGTHS_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/speculative/interface.py@00b6d5a2, support_dynamic_draft_len"
GATE_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396, acceptance_rate_window_size"
DFLASH2_SOURCE = "vllm-project/speculators:src/speculators/models/dflash2/core.py@v0.9.0"
DSPARK_SOURCE = f"{LLM_ARGS}, TorchLlmArgs.validate_speculative_config"
MTP_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models/modeling_speculative.py, MTPForCausalLM"


def check(context: PlanContext) -> Iterable[Diagnostic]:
    method = context.method_name
    if method != "none" and method not in find_version_spec(context.version).api.methods:
        having = [minor for minor, spec in version_specs().items() if method in spec.api.methods]
        message = f"the LLM API of TensorRT-LLM {context.version} does not support {method}"
        yield Diagnostic(METHOD, "method", message, f"supported by: {', '.join(having)}" if having else None)
        return
    if method != "none":
        yield from _check_target_architecture(context)
        yield from _check_schedule(context)
        yield from _check_threshold(context)
    yield from _check_options(context)
    if arguments.is_greedy_only(context):
        message = f"TensorRT-LLM {context.version} does not sample from the target's distribution with method {method}"
        hint = "sampled requests are rejected; versions from 1.3 on serve them"
        yield Diagnostic(METHOD, "greedy-only", message, hint, "warning", SAMPLER)
    yield from _check_mtp(context)
    yield from _check_head(context)
    yield from _check_block_net(context)
    yield from _check_quant_format(context)
    yield from _check_rotary_keys(context)
    yield from checks.check_draft_parallel(context, LLM_ARGS)
    yield from checks.check_unconverted(context, "the LLM API", draft_tokens=arguments.step_tokens(context))


def _check_target_architecture(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield an error if the method drafts inside the target and the target's class does not support that."""
    method, architecture = context.method_name, arguments.target_architecture(context)
    api = find_version_spec(context.version).api
    if api.is_uncertain(method, architecture):
        message = f"TensorRT-LLM {context.version} drafts inside the target, and {architecture} may be a plain decoder"
        hint = "a plain decoder fails to load or drafts nothing; method: ngram works with every class"
        yield Diagnostic(METHOD, "architecture", message, hint, "warning", INSIDE_SOURCE)
    if api.takes(method, architecture):
        return
    others = [minor for minor, spec in version_specs().items() if spec.api.takes(method, architecture)]
    message = f"TensorRT-LLM {context.version} drafts inside the target, but {architecture} is a plain decoder"
    hint = f"engine.version: {others[-1]}, or method: ngram" if others else "method: ngram"
    yield Diagnostic(METHOD, "architecture", message, hint, source=INSIDE_SOURCE)


def _check_schedule(context: PlanContext) -> Iterable[Diagnostic]:
    method, shape, drafting = context.method_name, context.draft_shape, arguments.drafting_part(context)
    if not drafting:
        return
    field = arguments.schedule_field(drafting)

    def honours(spec: VersionSpec) -> bool:
        return method in spec.api.methods and field in spec.api.methods[method].lengths

    if not honours(find_version_spec(context.version)):
        message = f"TensorRT-LLM {context.version} does not adapt the draft length of {method} to the number of"
        message += " requests"
        yield Diagnostic(SCHEDULE, "version", message, _remedy("schedule", honours), source=LENGTHS_SOURCE)
    elif shape.max_tokens > shape.max_depth:
        message = "the LLM API can shorten only chains, but the method drafts a tree"
        hint = "remove schedule, or top_k and nodes"
        yield Diagnostic(SCHEDULE, "not-supported", message, hint, source=LENGTHS_SOURCE)


def _check_threshold(context: PlanContext) -> Iterable[Diagnostic]:
    if context.recipe.speculation.acceptance_rate_threshold is None:
        return
    if not find_version_spec(context.version).api.threshold:
        message = f"TensorRT-LLM {context.version} does not support acceptance_rate_threshold"
        hint = _remedy("acceptance_rate_threshold", lambda spec: bool(spec.api.threshold))
        yield Diagnostic(THRESHOLD, "version", message, hint, source=GATE_SOURCE)
    elif window := context.recipe.speculation.acceptance_window:
        message = f"the LLM API averages over {window} steps, not over {window} requests"
        yield Diagnostic("speculation.acceptance_window", "steps", message, None, "warning", GATE_SOURCE)


def _remedy(key: str, honours: Callable[[VersionSpec], bool]) -> str:
    minors = [minor for minor, spec in version_specs().items() if honours(spec)]
    return f"remove {key}" + (f", or set engine.version: {minors[0]} or later" if minors else "")


def _check_options(context: PlanContext) -> Iterable[Diagnostic]:
    options = context.options
    message = "the PyTorch backend accepts exactly; only TensorRT engines support typical acceptance"
    yield from checks.check_acceptance(context, message, f"{LLM_ARGS}, EagleDecodingConfig")
    yield from checks.check_full_drafts(context, "the LLM API", LLM_ARGS)
    yield from checks.check_any_match(context, "the LLM API", LLM_ARGS)
    is_greedy_draft = isinstance(options, DraftTargetOptions) and not options.use_draft_logits
    if is_greedy_draft and not arguments.verifies_with_logits(context):
        message = "the LLM API decides itself whether drafts are verified with their logits"
        yield Diagnostic(f"{OPTIONS}.use_draft_logits", "not-supported", message, "remove it", source=LLM_ARGS)
    if isinstance(options, Eagle3Options) and options.top_k:
        yield from _check_tree(context, options.top_k)
    if isinstance(options, SuffixOptions):
        yield from _check_suffix(context, options)


def _check_suffix(context: PlanContext, options: SuffixOptions) -> Iterable[Diagnostic]:
    for key in ("max_tree_depth", "max_spec_factor", "min_token_prob"):
        if key in context.recipe.speculation.options:
            message = f"the LLM API's suffix automaton does not support {key}: it drafts what follows the longest match"
            yield unused(f"{OPTIONS}.{key}", message, SUFFIX_SOURCE)
    configured = context.recipe.speculation.options.get("max_cached_requests", 0)
    least = context.recipe.engine.max_batch_size
    if options.max_cached_requests and configured and not least <= options.max_cached_requests <= SUFFIX_SLOTS:
        message = f"the LLM API caches {least} (max_batch_size) to {SUFFIX_SLOTS} texts"
        hint = "remove it for the default size, or set 0 to match only within a text"
        path = f"{OPTIONS}.max_cached_requests"
        yield Diagnostic(path, "out-of-range", message, hint, source=SUFFIX_SOURCE)


def _check_tree(context: PlanContext, top_k: int) -> Iterable[Diagnostic]:
    path, shape = f"{OPTIONS}.top_k", context.draft_shape
    most = top_k * shape.max_depth
    if minor_version(context.version) < arguments.DRAFTS_TREES:
        first = ".".join(map(str, arguments.DRAFTS_TREES))
        message = f"the PyTorch backend drafts trees only from {first} on; {context.version} drafts a chain"
        yield Diagnostic(path, "version", message, "remove top_k and nodes", source=f"{LLM_ARGS}, eagle_choices")
    elif shape.max_tokens > most:
        message = f"the tree has {shape.max_tokens} nodes, but the LLM API supports at most top_k * draft_len = {most}"
        yield Diagnostic(f"{OPTIONS}.nodes", "out-of-range", message, source=f"{LLM_ARGS}, max_total_draft_tokens")


def _check_mtp(context: PlanContext) -> Iterable[Diagnostic]:
    if context.method_name != "mtp":
        return
    config = context.sources["target"].config
    layers, model_type = count_layers(config), str(config.get("model_type"))
    if not layers:
        yield Diagnostic(METHOD, "no-draft", "the target lacks MTP layers", "use method: ngram")
    elif 1 < layers < context.draft_shape.max_depth:
        message = f"the target has {layers} MTP layers, one for each draft token"
        yield Diagnostic("speculation.draft_len", "out-of-range", message, f"at most {layers}", source=MTP_SOURCE)
    if model_type not in find_version_spec(context.version).api.methods["mtp"].models:
        message = f"TensorRT-LLM {context.version} may not support MTP layers of {model_type}"
        yield Diagnostic(METHOD, "version", message, severity="warning", source=MTP_SOURCE)


def _check_head(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield problems of a drafter that is not in the format that the PyTorch backend reads."""
    if context.method_name not in NETS:
        return
    config = context.sources["draft"].config
    if "speculators_model_type" in config:
        message = "the head is in the format of speculators; the LLM API expects its sizes at the top of config.json"
        yield Diagnostic(DRAFT, "layout", message, "use the format of its authors or of ModelOpt", source=EAGLE3_SOURCE)
    for key in NORMS:
        if config.get(key):
            message = f"the head has {key}, which the LLM API may not support"
            yield Diagnostic(DRAFT, f"layout-{key}", message, severity="warning", source=EAGLE3_SOURCE)
    positions, length = config.get("max_position_embeddings"), context.recipe.engine.max_seq_len
    if context.head is None and isinstance(positions, int) and positions < length:  # `check` reports loaded heads
        message = f"the head has {positions} positions, fewer than max_seq_len {length}, and its RoPE table ends there"
        hint = "fewer drafts may be accepted beyond that position; measure with long texts"
        yield Diagnostic(DRAFT, "positions", message, hint, "warning", ROPE_SOURCE)


def _check_block_net(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield an error for a DFlash2 net, and for a DSpark draft length that differs from the net's block size."""
    method = context.method_name
    if method == "dflash" and is_dflash2(context.sources["draft"]):
        message = "the drafter is a DFlash2 net, whose convolutions and selector the LLM API's DFlash does not compute"
        hint = "use a DFlash net, or a backend with a class for DFlash2 (docs/methods.md)"
        yield Diagnostic(DRAFT, "class", message, hint, source=DFLASH2_SOURCE)
    if method == "dspark" and (block := block_size(context.sources["draft"])):
        depth = context.draft_shape.max_depth
        if depth != block:
            message = f"the LLM API drafts a DSpark net's whole block, {block} tokens, not {depth}"
            hint = f"set speculation.draft_len: {block}"
            yield Diagnostic("speculation.draft_len", "block-size", message, hint, source=DSPARK_SOURCE)


def _check_rotary_keys(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield a warning for RoPE keys of transformers 5, because releases up to 1.2 use transformers 4."""
    if minor_version(context.version) > LAST_WITH_TRANSFORMERS_4:
        return
    for role, path, _ in recipe_models(context):
        config = context.sources[role].config
        section = config.get("rope_parameters")
        if not isinstance(section, dict) or config.get("rope_theta") is not None or config.get("rope_scaling"):
            continue
        base, kind = section.get("rope_theta", 10000.0), section.get("rope_type", "default")
        if (base, kind) != (10000.0, "default"):
            message = f"its rope_parameters (base {base}, {kind}) require transformers 5, but TensorRT-LLM"
            message += f" {context.version} uses transformers 4, which reads rope_theta and rope_scaling"
            hint = "add rope_theta and rope_scaling at the top level of config.json"
            yield Diagnostic(f"{path}.model", "rope", message, hint, "warning")


def _check_quant_format(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield an error if the requested weight format is not the source's, because the LLM API does not quantize."""
    gpu = context.gpu
    for role, path, asked in recipe_models(context):
        found, wanted = source_format(context.sources[role]).weights, asked.quantization.weights
        if wanted not in ("none", found):
            state = "not quantized" if found == "none" else found
            message = f"{wanted} weights are requested, but the {role} is {state}"
            hint = "use a quantized checkpoint, such as ModelOpt exports: the LLM API runs the source unchanged"
            yield Diagnostic(f"{path}.quantization.weights", "quantization", message, hint)
        if gpu and not gpu.has_fp8 and "fp8" in found:
            message = f"the {role} is {found}, but {gpu.name} does not support FP8"
            yield Diagnostic("engine.gpu", "quantization", message, "FP8 needs compute capability 8.9")
