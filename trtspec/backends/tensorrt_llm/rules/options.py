# SPDX-License-Identifier: Apache-2.0
"""Rules for `engine.extra`: options that the version of trtllm-build lacks, and options that recipes must not set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtspec.backends.common.trtllm_versions import BuildOption, find_version_spec, minors_with
from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm import specs
from trtspec.backends.tensorrt_llm.rules.sources import BATCHING, BUILD, BUILDER, PLUGINS
from trtspec.backends.tensorrt_llm.specs import engine_specs, speculation_mode
from trtspec.core.diagnostics import Diagnostic, quote_value
from trtspec.core.registry import did_you_mean

# Options whose values follow from other recipe keys.
DECIDED_BY = {
    "max_batch_size": "engine.max_batch_size",
    "max_input_len": "engine.max_input_len",
    "max_seq_len": "engine.max_seq_len",
    "max_num_tokens": "engine.max_num_tokens",
    "speculative_decoding_mode": "speculation.method",
    "max_draft_len": "speculation, which determines the number of draft tokens",
    "gather_generation_logits": "speculation.options.use_draft_logits",
    "input_timing_cache": "engine.build.timing_cache",
}

# Options that prevent a build, or an engine that the emitted repository can serve.
NOT_SERVED = {
    "max_beam_width": "serving and draft verification support one beam only",
    "kv_cache_type": "in-flight batching needs a paged KV cache",
    "paged_kv_cache": "in-flight batching needs a paged KV cache",
    "logits_dtype": "the repository's logits are float32",
    "strip_plan": "it omits the weights from the engine",
    "dry_run": "it builds no engine",
    "model_cls_name": "the checkpoint determines the model class",
    "auto_parallel": "the recipe's parallel section determines the parallelism",
}

NEEDED = ("gpt_attention_plugin", "remove_input_padding", "context_fmha")
_TYPES = {
    "int": "an integer of at least 0",
    "str": "a string",
    "path": "a path",
    "flag": "true or false",
    "switch": "enable or disable",
    "strings": "several words",
}


def check_options_exist(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for each option that the version of trtllm-build does not have."""
    options = find_version_spec(context.version).options
    for name in context.recipe.engine.extra:
        if name not in options:
            others = minors_with(name)
            message = f"trtllm-build {context.version} does not have the option {name}"
            hint = f"{' and '.join(others)} {'have' if len(others) > 1 else 'has'} it" if others else None
            yield _diagnostic(name, "unknown-key", message, hint or did_you_mean(name, options), BUILD)


def check_options_allowed(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for each option that other recipe keys, the repository or the build determine."""
    for name, option, _ in _recipe_options(context):
        if name in DECIDED_BY:
            message = f"{name} is determined by {DECIDED_BY[name]}"
            yield _diagnostic(name, "not-allowed", message, "remove it here", BUILD)
        elif name in NOT_SERVED:
            yield _diagnostic(name, "not-allowed", f"{name}: {NOT_SERVED[name]}", "remove it", BUILD)
        elif option.type == "path" or name == "lora_dir":
            message = f"{name} is a path, but a build can read only its checkpoint"
            yield _diagnostic(name, "not-allowed", message, "remove it", BUILD)


def check_option_values(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for each value that does not have the option's type or is not one of its choices."""
    for name, option, value in _recipe_options(context):
        if specs.option_arguments(option, value) is None:
            expected = f"one of {', '.join(option.choices)}" if option.choices else _TYPES[option.type]
            hint = did_you_mean(str(value), option.choices)
            yield _diagnostic(name, "bad-value", f"{name} must be {expected}, not {quote_value(value)}", hint, BUILD)


def check_inflight_batching(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error if an option disables a feature that in-flight batching needs, such as packed input."""
    for name in NEEDED:
        if _off(context, name):
            message = f"{name} is required for in-flight batching and cannot be disabled"
            yield _diagnostic(name, "not-allowed", message, "remove it", BATCHING)


def check_cache_reuse_options(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a problem for options that disable paged context attention, and therefore KV-cache reuse.

    The severity is error for external drafts and EAGLE, which need the reuse.
    """
    for name, is_lost in (("use_paged_context_fmha", _off), ("streamingllm", _on)):
        if is_lost(context, name):
            is_needed = speculation_mode(context) in (specs.EXTERNAL, specs.EAGLE)
            message = f"{name} disables paged context attention, and therefore KV cache reuse"
            message += f"; {context.method_name} needs it" if is_needed else ""
            yield _diagnostic(name, "kv-reuse", message, "remove it", BATCHING, warns=not is_needed)


def check_fp8_attention(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error if the option for FP8 context attention contradicts the FP8 weights and KV cache.

    The builder enables that attention for an FP8 KV cache and disables it otherwise.
    """
    name = "use_fp8_context_fmha"
    for spec in engine_specs(context):
        if _on(context, name) and not spec.has_fp8_context_fmha:
            message = f"{name} needs FP8 weights and an FP8 KV cache; the {spec.role} does not have both"
            hint = f"{spec.path}.quantization: {{weights: fp8, kv_cache: fp8}}, or remove the option"
            yield _diagnostic(name, "fp8", message, hint, f"{BUILDER}, NVIDIA/TensorRT-LLM#2125")
        elif _off(context, name) and spec.has_fp8_context_fmha:
            message = f"the {spec.role}'s FP8 KV cache enables {name} again"
            yield _diagnostic(name, "fp8", message, "remove it, or set kv_cache: none", BUILDER)


def check_context_logits(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a problem for context logits, with which the runtime disables KV-cache reuse.

    The severity is error with speculation, because the builder rejects the combination.
    """
    drafts = bool(speculation_mode(context))
    for name in ("gather_context_logits", "gather_all_token_logits"):
        if _on(context, name):
            message = f"{name} disables KV cache reuse"
            message += "; trtllm-build rejects it with speculation" if drafts else ""
            yield _diagnostic(name, "kv-reuse", message, "remove it", f"{BUILD}, {BATCHING}", warns=not drafts)


def check_multiple_profiles(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for opt_num_tokens with multiple_profiles, where each profile has its own optimum."""
    if _on(context, "multiple_profiles") and "opt_num_tokens" in context.recipe.engine.extra:
        message = "multiple_profiles and opt_num_tokens are mutually exclusive"
        yield _diagnostic("opt_num_tokens", "not-allowed", message, "remove one of them", BUILD)


def check_plugin_weights(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for each FP8 GEMM plugin without the FP8 weights that it requires."""
    wanted = {
        "gemm_swiglu_plugin": "fp8",
        "low_latency_gemm_plugin": "fp8",
        "low_latency_gemm_swiglu_plugin": "fp8",
        "fp8_rowwise_gemm_plugin": "fp8_rowwise",
    }
    for name, weights in wanted.items():
        for spec in engine_specs(context) if _on(context, name) else ():
            if spec.quant_format.weights != weights:
                message = f"{name} needs {weights} weights, but the {spec.role} uses {spec.quant_format.weights}"
                yield _diagnostic(name, "fp8", message, f"{spec.path}.quantization: {{weights: {weights}}}", PLUGINS)


def check_fused_mlp(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for a SwiGLU plugin if use_fused_mlp, which the plugin needs, is disabled."""
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"):
        if _on(context, name) and _off(context, "use_fused_mlp"):
            yield _diagnostic(name, "not-allowed", f"{name} needs use_fused_mlp", "remove use_fused_mlp", BUILDER)


def check_fusions(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a problem for fusions that the builder disables silently or rejects for this model."""
    target = engine_specs(context)[0]
    fuses = target.mapping.tensor > 1 and target.config.architecture == "LlamaForCausalLM"
    is_plain = target.mode in ("", specs.EXTERNAL, specs.LOOKAHEAD, specs.MEDUSA)
    reduces = _on(context, "reduce_fusion")
    if reduces and not (fuses and is_plain):
        message = "the builder disables reduce_fusion: it supports only Llama models divided over several GPUs"
        yield _diagnostic("reduce_fusion", "unused", message, "remove it", BUILDER, warns=True)
    if _on(context, "user_buffer") and not reduces:
        message = "the builder disables user_buffer: it needs reduce_fusion"
        hint = "set reduce_fusion: enable, or remove it"
        yield _diagnostic("user_buffer", "unused", message, hint, BUILDER, warns=True)
    if _on(context, "norm_quant_fusion"):
        message = "the builder disables norm_quant_fusion: it supports only NVFP4 weights"
        yield _diagnostic("norm_quant_fusion", "unused", message, "remove it", BUILDER, warns=True)
    if _on(context, "pp_reduce_scatter") and target.config.architecture != "MixtralForCausalLM":
        message = "pp_reduce_scatter supports only Mixtral"
        yield _diagnostic("pp_reduce_scatter", "architecture", message, "remove it", BUILD)


def _recipe_options(context: PlanContext) -> Iterator[tuple[str, BuildOption, Any]]:
    options = find_version_spec(context.version).options
    for name, value in context.recipe.engine.extra.items():
        if name in options:
            yield name, options[name], value


def _on(context: PlanContext, name: str) -> bool:
    return context.recipe.engine.extra.get(name, False) not in (False, "disable")


def _off(context: PlanContext, name: str) -> bool:
    return context.recipe.engine.extra.get(name) in (False, "disable")


def _diagnostic(
    name: str, code: str, message: str, hint: str | None, source: str, *, warns: bool = False
) -> Diagnostic:
    return Diagnostic(f"engine.extra.{name}", code, message, hint, "warning" if warns else "error", source)
