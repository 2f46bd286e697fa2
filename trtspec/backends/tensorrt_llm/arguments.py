# SPDX-License-Identifier: Apache-2.0
"""The arguments of trtllm-build for each engine, without the directories and timing caches, which the step adds."""

from __future__ import annotations

from typing import Any

from trtspec.backends.common.trtllm_versions import BuildOption, find_version_spec
from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm import specs
from trtspec.backends.tensorrt_llm.specs import TOKENS_PER_BLOCK, EngineSpec, Role, engine_specs, uses_draft_logits
from trtspec.core.diagnostics import quote_value
from trtspec.core.errors import TrtspecError


def build_arguments(role: Role, context: PlanContext) -> list[str]:
    """Return the arguments of one engine; the recipe's `engine.extra` comes last.

    Every option that affects serving is explicit, and so are the values that upstream would adjust silently. Options
    that follow from the checkpoint are omitted: plugins for its dtype, quantization, NCCL. Raise TrtspecError if the
    context lacks this engine, or an option of `engine.extra` is invalid.
    """
    spec = next((spec for spec in engine_specs(context) if spec.role == role), None)
    if spec is None:
        raise TrtspecError(f"the recipe does not have a {role} engine")
    own, extra = _settings(spec), _extra(context)
    if extra.get("multiple_profiles") == ["--multiple_profiles", "enable"]:
        del own["opt_num_tokens"]  # upstream rejects the combination
    words = {name: [f"--{name}", str(value)] for name, value in own.items()}
    if spec.mode:
        words["speculation"] = specs.build_arguments(context.method_name, context.draft_shape)
    if uses_draft_logits(context):
        words["gather_generation_logits"] = ["--gather_generation_logits"]
    return [word for option in (words | extra).values() for word in option]


def _settings(spec: EngineSpec) -> dict[str, str | int]:
    settings: dict[str, str | int] = {
        "max_batch_size": spec.max_batch_size,
        "max_input_len": spec.max_input_len,
        "max_seq_len": spec.max_seq_len,
        "max_num_tokens": spec.max_num_tokens,
        # the size that kernels are optimized for: a generation step of a full batch with its drafts
        "opt_num_tokens": min(spec.least_num_tokens, spec.max_num_tokens),
        "max_beam_width": 1,
        "kv_cache_type": "paged",
        "tokens_per_block": TOKENS_PER_BLOCK,
        "remove_input_padding": "enable",
        "context_fmha": "enable",
        "use_paged_context_fmha": _switch(spec.has_paged_context_fmha),
        "use_fp8_context_fmha": _switch(spec.has_fp8_context_fmha),
        "gpt_attention_plugin": "auto",
        "gemm_plugin": _gemm_plugin(spec),
        "logits_dtype": "float32",
        "workers": spec.mapping.ranks,
    }
    if spec.quant_format.weights == "fp8_rowwise":
        settings["fp8_rowwise_gemm_plugin"] = "auto"
    return settings


def _gemm_plugin(spec: EngineSpec) -> str:
    """Return the GEMM plugin: disabled for FP8, which TensorRT multiplies itself.

    Recommended by NVIDIA/TensorRT-LLM:
    docs/source/legacy/performance/performance-tuning-guide/useful-build-time-flags.md@2a9abd95.
    """
    return "disable" if spec.quant_format.weights == "fp8" else "auto"


def _switch(on: bool) -> str:
    return "enable" if on else "disable"


def _extra(context: PlanContext) -> dict[str, list[str]]:
    """Return the arguments of `engine.extra` by option. Raise TrtspecError for options that the rules also reject."""
    options, words = find_version_spec(context.version).options, {}
    for name, value in context.recipe.engine.extra.items():
        option = options.get(name)
        found = option_arguments(option, value) if option else None
        if found is None:
            raise TrtspecError(
                f"{name}: {quote_value(value)} is not a valid option of trtllm-build", where=f"engine.extra.{name}"
            )
        words[name] = found
    return words


def option_arguments(option: BuildOption, value: Any) -> list[str] | None:
    """Return an option as arguments, empty for a flag that is not set, or None if the value is invalid."""
    name = f"--{option.name}"
    if option.type == "flag":
        return [name] * value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return [name, _switch(value)] if option.type == "switch" else None
    if option.type == "int":
        return [name, str(value)] if isinstance(value, int) and value >= 0 else None
    words = str(value).split() if option.type == "strings" else [str(value)]
    return None if option.choices and not set(words) <= set(option.choices) else [name, *words]
