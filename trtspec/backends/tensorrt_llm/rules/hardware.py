# SPDX-License-Identifier: Apache-2.0
"""Rules for GPU architectures and their kernels, and for FP8."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.rules import sources
from trtspec.backends.tensorrt_llm.specs import EAGLE, EXTERNAL, MASKED_MODES, engine_specs, speculation_mode
from trtspec.checkpoints.rules import layer_tensor
from trtspec.core.diagnostics import Diagnostic, Severity
from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import Gpu, find_gpu

AMPERE, BLACKWELL, AFTER_BLACKWELL = 80, 100, 120

NOT_ON_BLACKWELL = (
    "gemm_swiglu_plugin",
    "fp8_rowwise_gemm_plugin",
    "low_latency_gemm_plugin",
    "low_latency_gemm_swiglu_plugin",
    "bert_context_fmha_fp32_acc",
)

# The text decoders among trtllm-build's architectures.
ARCHITECTURES = frozenset({
    "ArcticForCausalLM", "BaichuanForCausalLM", "BloomForCausalLM", "ChatGLMForCausalLM", "CohereForCausalLM",
    "DbrxForCausalLM", "DeciLMForCausalLM", "DeepseekForCausalLM", "DeepseekV2ForCausalLM",
    "ExaoneForCausalLM", "FalconForCausalLM", "GPT2LMHeadModel", "GPTBigCodeForCausalLM", "GPTForCausalLM",
    "GPTJForCausalLM", "GPTNeoXForCausalLM", "GemmaForCausalLM", "Gemma2ForCausalLM", "Gemma3ForCausalLM",
    "GraniteForCausalLM", "GraniteMoeForCausalLM", "InternLM2ForCausalLM", "InternLMForCausalLM",
    "LlamaForCausalLM", "MPTForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "NemotronForCausalLM",
    "OPTForCausalLM", "Phi3ForCausalLM", "PhiForCausalLM", "PhiMoEForCausalLM", "QWenForCausalLM",
    "Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3ForCausalLM", "SkyworkForCausalLM",
    "Starcoder2ForCausalLM",
})  # fmt: skip
FORMATS = {"none": "16-bit", "fp8_rowwise": "fp8_rowwise"}


def check_gpu(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error without a GPU, or for a GPU older than Ampere; engines run only on the GPU they are built for."""
    name = context.recipe.engine.gpu
    if name is None:
        message, hint = "engines are built for one kind of GPU, but engine.gpu is missing", "set gpu: h100, or another"
        yield Diagnostic("engine", "no-gpu", message, hint, source=sources.BUILDER)
        return
    try:
        gpu = find_gpu(name)
    except TrtspecError as error:
        yield Diagnostic("engine.gpu", "gpu", error.message, error.hint, source=sources.HARDWARE)
        return
    if gpu.sm < AMPERE:
        message = f"TensorRT-LLM {context.version} runs on Ampere and later, not on {_describe(gpu)}"
        hint = "use a backend that does not build engines"
        yield Diagnostic("engine.gpu", "gpu", message, hint, source=sources.HARDWARE)


def check_fp8_kernels(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield errors for FP8 weights or KV caches on GPUs without FP8 tensor cores, which exist from Ada on."""
    gpu = context.gpu
    if gpu is None or gpu.sm < AMPERE or gpu.has_fp8:
        return
    for spec in engine_specs(context):
        for key in ("weights", "kv_cache"):
            if getattr(spec.quant_format, key) != "none":
                message = f"FP8 needs compute capability 8.9 (Ada, Hopper) or later, not {_describe(gpu)}"
                hint = f"{key}: none, or another gpu"
                yield spec.diagnostic(f"quantization.{key}", "fp8", message, hint, source=sources.BUILDER)


def check_blackwell(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield errors for row-wise FP8 scales on Blackwell, and for plugins without kernels for capability 10.0."""
    gpu = context.gpu
    if gpu is None or not BLACKWELL <= gpu.sm < AFTER_BLACKWELL:
        return
    for spec in engine_specs(context):
        if spec.quant_format.weights == "fp8_rowwise":
            message = f"fp8_rowwise engines cannot be built for {_describe(gpu)}:"
            message += " the builder rejects row-wise scales there"
            yield spec.diagnostic("quantization.weights", "fp8", message, "weights: fp8", source=sources.BUILDER)
    for name in NOT_ON_BLACKWELL if gpu.sm == BLACKWELL else ():
        if context.recipe.engine.extra.get(name, "disable") not in ("disable", False):
            message = f"{name} does not support {_describe(gpu)}"
            yield Diagnostic(f"engine.extra.{name}", "gpu", message, "remove it", source=sources.PLUGINS)


def check_architecture(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for a model class that TensorRT-LLM does not support, although trtspec can convert it."""
    for spec in engine_specs(context):
        if spec.config.architecture not in ARCHITECTURES:
            message = f"TensorRT-LLM {context.version} does not support engines of {spec.config.architecture}"
            hint = "a backend without conversion may serve it"
            yield spec.diagnostic("model", "architecture", message, hint, source=sources.MODELS)


def _describe(gpu: Gpu) -> str:
    return f"{gpu.name} (compute capability {gpu.sm // 10}.{gpu.sm % 10})"


def check_cache_reuse(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a problem for an FP8 KV cache without FP8 weights, which disables paged context attention and cache reuse.

    The severity is error for external drafts: each step sends the whole text, and the runtime rejects a target without
    reuse.
    """
    is_needed = speculation_mode(context) == EXTERNAL
    for spec in engine_specs(context):
        if not spec.has_paged_context_fmha and spec.mode != EAGLE:
            message = f"an FP8 KV cache with {FORMATS[spec.quant_format.weights]} weights disables paged context"
            message += " attention, and therefore KV cache reuse and chunked prompts"
            message += f"; {context.method_name} needs reuse" if is_needed else ""
            hint, source = "set weights: fp8 too, or kv_cache: none", f"{sources.BUILDER}, {sources.BATCHING}"
            severity: Severity = "error" if is_needed else "warning"
            yield spec.diagnostic("quantization.kv_cache", "kv-reuse", message, hint, severity, source)


def check_rowwise_attention(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield errors for row-wise FP8 weights with modes that need an attention mask for drafts, or with QK norms.

    TensorRT-LLM's attention layer for row-wise scales supports neither.
    """
    for spec in engine_specs(context):
        if spec.quant_format.weights != "fp8_rowwise":
            continue
        if spec.mode in MASKED_MODES:  # the build fails
            message = f"{context.method_name} engines do not support fp8_rowwise weights"
            source = f"{sources.ATTENTION}, {sources.issue(2641)}"
            yield spec.diagnostic("quantization.weights", "fp8", message, "weights: fp8", source=source)
        if spec.config.qk_norm:  # the loader only warns about their weights
            message = f"fp8_rowwise engines of {spec.config.architecture} omit its norms of queries and keys,"
            message += " so their output is wrong"
            yield spec.diagnostic("quantization.weights", "fp8", message, "weights: fp8", source=sources.QUANTIZE)


def check_fp8_output_scale(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error if attention.dense stays in 16 bits although an FP8 KV cache makes its input FP8."""
    models = {"target": context.recipe.target, "draft": context.recipe.speculation.draft}
    for spec in engine_specs(context):
        asked = models[spec.role]
        if asked is None or asked.quantization.weights != "fp8" or not spec.has_fp8_context_fmha:
            continue
        for number, pattern in enumerate(asked.quantization.exclude):
            if any(fnmatchcase(layer_tensor(n, "attention.dense"), pattern) for n in range(spec.config.num_layers)):
                message = f"{pattern!r} keeps attention.dense in 16 bits, but with an FP8 KV cache its input is FP8"
                hint = "exclude modules without attention.dense, or kv_cache: none"
                key, source = f"quantization.exclude.{number}", f"{sources.ATTENTION}, {sources.ATTENTION_PLUGIN}"
                yield spec.diagnostic(key, "fp8", message, hint, source=source)
