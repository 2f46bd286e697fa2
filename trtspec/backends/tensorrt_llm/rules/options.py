# SPDX-License-Identifier: Apache-2.0
"""Rules of `engine.extra`: trtllm-build's options, as the version has them, and those that are not for a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtspec.backends.common.trtllm_versions import Option, minors_with, version_spec_of
from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.arguments import choices_of, option_words
from trtspec.backends.tensorrt_llm.modes import EAGLE, EXTERNAL, LOOKAHEAD, MEDUSA, mode_of
from trtspec.backends.tensorrt_llm.rules.sources import BATCHING, BUILD, BUILDER, PLUGINS
from trtspec.backends.tensorrt_llm.specs import engine_specs
from trtspec.core.diagnostics import Diagnostic, written
from trtspec.core.registry import did_you_mean

# What other keys of the recipe decide.
DECIDED_BY = {
    "max_batch_size": "engine.max_batch_size",
    "max_input_len": "engine.max_input_len",
    "max_seq_len": "engine.max_seq_len",
    "max_num_tokens": "engine.max_num_tokens",
    "speculative_decoding_mode": "speculation.method",
    "max_draft_len": "speculation, which knows how many tokens are drafted",
    "gather_generation_logits": "speculation.options.use_draft_logits",
    "input_timing_cache": "engine.build.timing_cache",
}

# What would make an engine that the emitted repository cannot serve, or none.
NOT_SERVED = {
    "max_beam_width": "one beam is served, and drafts are verified for one",
    "kv_cache_type": "requests are batched in flight, which needs a paged KV cache",
    "paged_kv_cache": "requests are batched in flight, which needs a paged KV cache",
    "logits_dtype": "the repository's logits are float32",
    "strip_plan": "it leaves the weights out of the engine",
    "dry_run": "it builds no engine",
    "model_cls_name": "the checkpoint says which model it is",
    "auto_parallel": "the recipe's parallel says how the model is divided",
}

NEEDED = ("gpt_attention_plugin", "remove_input_padding", "context_fmha")


def options_exist(context: PlanContext) -> Iterator[Diagnostic]:
    """An option that the version does not have is one of another version, or of none."""
    options = version_spec_of(context.version).options
    for name in context.recipe.engine.extra:
        if name not in options:
            others = minors_with(name)
            message = f"trtllm-build {context.version} has no option {name}"
            hint = f"{' and '.join(others)} {'have' if len(others) > 1 else 'has'} it" if others else None
            yield _about(name, "unknown-key", message, hint or did_you_mean(name, options), BUILD)


def options_are_free(context: PlanContext) -> Iterator[Diagnostic]:
    """Other keys of the recipe decide some options, and the served repository others; paths are the build's own."""
    for name, option, _ in _given(context):
        if name in DECIDED_BY:
            message = f"{name} is decided by {DECIDED_BY[name]}"
            yield _about(name, "not-allowed", message, "remove it here", BUILD)
        elif name in NOT_SERVED:
            yield _about(name, "not-allowed", f"{name}: {NOT_SERVED[name]}", "remove it", BUILD)
        elif option.type == "path" or name == "lora_dir":
            message = f"{name} is a path: a build sees its checkpoint and nothing else"
            yield _about(name, "not-allowed", message, "remove it", BUILD)


def options_take_their_values(context: PlanContext) -> Iterator[Diagnostic]:
    """A value is one of the choices, and of the option's type."""
    for name, option, value in _given(context):
        if option_words(option, value) is None:
            choices = choices_of(option)
            wants = f"one of {', '.join(choices)}" if choices else _TYPES[option.type]
            yield _about(
                name, "bad-value", f"{name} is {wants}, not {written(value)}", did_you_mean(str(value), choices), BUILD
            )


_TYPES = {
    "int": "a whole number of at least 0",
    "str": "a text",
    "path": "a path",
    "flag": "true or false",
    "switch": "enable or disable",
    "strings": "several words",
}


def batching_needs(context: PlanContext) -> Iterator[Diagnostic]:
    """Batching in flight needs the attention plugin, packed input and a paged cache."""
    for name in NEEDED:
        if _off(context, name):
            message = f"{name} cannot be disabled: without it requests are not batched in flight"
            yield _about(name, "not-allowed", message, "remove it", BATCHING)


def reuse_needs_paged_attention(context: PlanContext) -> Iterator[Diagnostic]:
    """Without paged context attention the runtime turns KV cache reuse off, and refuses drafts from outside."""
    for name, is_lost in (("use_paged_context_fmha", _off), ("streamingllm", _on)):
        if is_lost(context, name):
            is_needed = mode_of(context) in (EXTERNAL, EAGLE)
            message = f"{name} turns paged context attention off, and with it KV cache reuse"
            message += f"; {context.recipe.speculation.method} needs it" if is_needed else ""
            yield _about(name, "kv-reuse", message, "remove it", BATCHING, warns=not is_needed)


def fp8_attention_needs_an_fp8_cache(context: PlanContext) -> Iterator[Diagnostic]:
    """With paged context attention the builder turns FP8 attention off where the cache is not in FP8."""
    for spec in engine_specs(context) if _on(context, "use_fp8_context_fmha") else ():
        if not spec.has_fp8_context_fmha:
            message = f"use_fp8_context_fmha needs weights and KV cache in FP8, and the {spec.role}'s are not both"
            hint = f"{spec.path}.quantization: {{weights: fp8, kv_cache: fp8}}, or remove the option"
            yield _about("use_fp8_context_fmha", "fp8", message, hint, f"{BUILDER}, NVIDIA/TensorRT-LLM#2125")


def fp8_attention_serves_an_fp8_cache(context: PlanContext) -> Iterator[Diagnostic]:
    """An FP8 cache has FP8 attention, whatever is asked for."""
    for spec in engine_specs(context) if _off(context, "use_fp8_context_fmha") else ():
        if spec.has_fp8_context_fmha:
            message = f"the {spec.role}'s KV cache in FP8 turns use_fp8_context_fmha on again"
            yield _about("use_fp8_context_fmha", "fp8", message, "remove it, or kv_cache: none", BUILDER)


def context_logits_exclude_drafts(context: PlanContext) -> Iterator[Diagnostic]:
    """The builder refuses them beside drafts, and the runtime turns KV cache reuse off."""
    drafts = bool(mode_of(context))
    for name in ("gather_context_logits", "gather_all_token_logits"):
        if _on(context, name):
            message = f"{name} turns KV cache reuse off" + ("; trtllm-build refuses it beside drafts" if drafts else "")
            yield _about(name, "kv-reuse", message, "remove it", f"{BUILD}, {BATCHING}", warns=not drafts)


def profiles_exclude_optimum(context: PlanContext) -> Iterator[Diagnostic]:
    """Several profiles have several optima."""
    if _on(context, "multiple_profiles") and "opt_num_tokens" in context.recipe.engine.extra:
        message = "multiple_profiles and opt_num_tokens exclude each other"
        yield _about("opt_num_tokens", "not-allowed", message, "remove one of them", BUILD)


def plugins_fit_the_weights(context: PlanContext) -> Iterator[Diagnostic]:
    """Plugins that multiply FP8 need weights that are in it."""
    wanted = {
        "gemm_swiglu_plugin": "fp8",
        "low_latency_gemm_plugin": "fp8",
        "low_latency_gemm_swiglu_plugin": "fp8",
        "fp8_rowwise_gemm_plugin": "fp8_rowwise",
    }
    for name, weights in wanted.items():
        for spec in engine_specs(context) if _on(context, name) else ():
            if spec.quant_format.weights != weights:
                message = f"{name} needs {weights} weights, and the {spec.role}'s are {spec.quant_format.weights}"
                yield _about(name, "fp8", message, f"{spec.path}.quantization: {{weights: {weights}}}", PLUGINS)


def fused_mlp_is_needed(context: PlanContext) -> Iterator[Diagnostic]:
    """One kernel for both branches of the MLP needs them put together."""
    for name in ("gemm_swiglu_plugin", "low_latency_gemm_swiglu_plugin"):
        if _on(context, name) and _off(context, "use_fused_mlp"):
            yield _about(name, "not-allowed", f"{name} needs use_fused_mlp", "remove use_fused_mlp", BUILDER)


def fusions_are_kept(context: PlanContext) -> Iterator[Diagnostic]:
    """The builder turns fusions off, with a line in its log, where they do not apply."""
    target = engine_specs(context)[0]
    fuses = target.mapping.tensor > 1 and target.config.architecture == "LlamaForCausalLM"
    is_plain = target.mode in ("", EXTERNAL, LOOKAHEAD, MEDUSA)
    reduces = _on(context, "reduce_fusion")
    if reduces and not (fuses and is_plain):
        message = "reduce_fusion is turned off by the builder: it is for Llama models divided over several GPUs"
        yield _about("reduce_fusion", "unused", message, "remove it", BUILDER, warns=True)
    if _on(context, "user_buffer") and not reduces:
        message = "user_buffer is turned off by the builder: it needs reduce_fusion"
        yield _about("user_buffer", "unused", message, "add reduce_fusion: enable, or remove it", BUILDER, warns=True)
    if _on(context, "norm_quant_fusion"):
        message = "norm_quant_fusion is turned off by the builder: it is for NVFP4 weights"
        yield _about("norm_quant_fusion", "unused", message, "remove it", BUILDER, warns=True)
    if _on(context, "pp_reduce_scatter") and target.config.architecture != "MixtralForCausalLM":
        yield _about("pp_reduce_scatter", "architecture", "pp_reduce_scatter is for Mixtral", "remove it", BUILD)


def _given(context: PlanContext) -> Iterator[tuple[str, Option, Any]]:
    options = version_spec_of(context.version).options
    for name, value in context.recipe.engine.extra.items():
        if name in options:
            yield name, options[name], value


def _on(context: PlanContext, name: str) -> bool:
    return context.recipe.engine.extra.get(name, False) not in (False, "disable")


def _off(context: PlanContext, name: str) -> bool:
    return context.recipe.engine.extra.get(name) in (False, "disable")


def _about(name: str, code: str, message: str, hint: str | None, source: str, *, warns: bool = False) -> Diagnostic:
    return Diagnostic(f"engine.extra.{name}", code, message, hint, "warning" if warns else "error", source)


RULES = (
    options_exist,
    options_are_free,
    options_take_their_values,
    batching_needs,
    reuse_needs_paged_attention,
    fp8_attention_needs_an_fp8_cache,
    fp8_attention_serves_an_fp8_cache,
    context_logits_exclude_drafts,
    profiles_exclude_optimum,
    plugins_fit_the_weights,
    fused_mlp_is_needed,
    fusions_are_kept,
)
