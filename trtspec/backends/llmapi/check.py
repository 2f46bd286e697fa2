# SPDX-License-Identifier: Apache-2.0
"""Check a recipe against the LLM API of its version: errors that prevent serving, and ignored settings.

The checks of a single method are in `methods/NAME/llmapi.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from trtspec.backends.common import checks
from trtspec.backends.common.checks import DRAFT, METHOD, SCHEDULE, STRUCTURED_OUTPUT
from trtspec.backends.common.trtllm_versions import VersionSpec, find_version_spec, minor_version, version_specs
from trtspec.backends.context import PlanContext, recipe_models
from trtspec.backends.llmapi import arguments
from trtspec.backends.llmapi.methods import find_method
from trtspec.checkpoints.generation_config import read_generation_config
from trtspec.checkpoints.prequantized import source_format
from trtspec.core.diagnostics import Diagnostic

THRESHOLD = "speculation.acceptance_rate_threshold"
LLM_ARGS = "NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396"
LAST_WITH_TRANSFORMERS_4 = (1, 2)
SAMPLER = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/pyexecutor/sampler.py, pulls 14745 and 15775"
# Additional norms of some EAGLE-3 heads.
NORMS = ("fc_norm", "norm_before_fc", "norm_before_residual")
EAGLE3_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models/modeling_speculative.py, Eagle3DraftModel"
ROPE_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/attention_backend/interface.py@000a01de, RopeParams.from_config"
MODELS = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models"
INSIDE_SOURCE = f"{MODELS}/modeling_speculative.py@00679c66, SpecDecOneEngineForCausalLM"
LENGTHS_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/speculative/interface.py@00b6d5a2, support_dynamic_draft_len"
GRAMMAR_SOURCE = "NVIDIA/TensorRT-LLM pulls 6300, 6948 and 9078"
DEAD_END_SOURCE = "NVIDIA/TensorRT-LLM pull 18896"
GATE_SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396, acceptance_rate_window_size"


def check(context: PlanContext) -> Iterable[Diagnostic]:
    method = context.method_name
    if method != "none" and not find_version_spec(context.version).api.has(method, context.version):
        kinds = {minor: spec.api.methods.get(method) for minor, spec in version_specs().items()}
        having = [kind.since or minor for minor, kind in kinds.items() if kind]
        message = f"the LLM API of TensorRT-LLM {context.version} does not support {method}"
        yield Diagnostic(METHOD, "method", message, f"supported by: {', '.join(having)}" if having else None)
        return
    if method != "none":
        yield from _check_target_architecture(context)
        yield from _check_schedule(context)
        yield from _check_threshold(context)
    yield from _check_options(context)
    yield from _check_grammars(context)
    if arguments.is_greedy_only(context):
        message = f"TensorRT-LLM {context.version} does not sample from the target's distribution with method {method}"
        hint = "sampled requests are rejected; versions from 1.3 on serve them"
        yield Diagnostic(METHOD, "greedy-only", message, hint, "warning", SAMPLER)
        samples = read_generation_config(context.sources["target"].root).values.get("do_sample") is True
        if context.recipe.serving.defaults == "model" and samples:
            message = "generation_config.json samples, so requests without sampling options would be rejected"
            yield Diagnostic("serving.defaults", "greedy-only", message, "set it to trtspec", source=SAMPLER)
    yield from find_method(method).check(context)
    if find_method(method).has_head:
        yield from _check_head(context)
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
    message = "the PyTorch backend accepts exactly; only TensorRT engines support typical acceptance"
    yield from checks.check_acceptance(context, message, f"{LLM_ARGS}, EagleDecodingConfig")
    yield from checks.check_full_drafts(context, "the LLM API", LLM_ARGS)
    yield from checks.check_any_match(context, "the LLM API", LLM_ARGS)


def _check_grammars(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield an error if the version cannot serve requests with a grammar, and a warning if one can end the engine."""
    minor = minor_version(context.version)
    if not context.recipe.serving.structured_output or minor > arguments.GRAMMARS:
        return
    if minor < arguments.GRAMMARS:
        message = f"TensorRT-LLM {context.version} does not support structured output"
        message += " with speculation" if minor == (1, 0) else ": a guide that does not compile ends its executor"
        hint = f"remove structured_output, or set engine.version: {'.'.join(map(str, arguments.GRAMMARS))} or later"
        yield Diagnostic(STRUCTURED_OUTPUT, "version", message, hint, source=GRAMMAR_SOURCE)
        return
    message = f"a grammar without a continuation ends the executor of TensorRT-LLM {context.version}"
    yield Diagnostic(STRUCTURED_OUTPUT, "grammar", message, "versions from 1.3 on", "warning", DEAD_END_SOURCE)


def _check_head(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield problems of a drafter whose format differs from the one that the PyTorch backend reads."""
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
