# SPDX-License-Identifier: Apache-2.0
"""The engines of a recipe as plain values, one for the target and one for a draft model, and trtllm-build's arguments.

trtllm-build adjusts some values during the build. The same adjustments are made in this module, so that the built
engine equals the request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from trtspec.backends.common.trtllm_versions import BuildOption, find_version_spec
from trtspec.backends.context import PlanContext, Role, recipe_models
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.prequantized import QuantFormat
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source_model import parallel_mapping
from trtspec.core.diagnostics import Diagnostic, Severity, quote_value
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import discover_all
from trtspec.methods.base import DraftShape
from trtspec.recipe.resolve import resolve_max_input_len, resolve_max_num_tokens

# Speculation modes of NVIDIA/TensorRT-LLM:tensorrt_llm/commands/build.py@65f1d153.
EXTERNAL, MEDUSA, EAGLE = "draft_tokens_external", "medusa", "eagle"
LOOKAHEAD, REDRAFTER = "lookahead_decoding", "explicit_draft_tokens"
# Medusa matches only ids, which is temperature 0 (NVIDIA/TensorRT-LLM:docs/source/legacy/advanced/
# speculative-decoding.md@28af34e8, its limitations). Lookahead takes the argmax of the target's logits
# (cpp/tensorrt_llm/layers/lookaheadDecodingLayer.cpp@05cc2c11). EAGLE is greedy without a threshold for typical
# acceptance (examples/eagle/README.md@585c7565), which the Triton backend does not pass on
# (triton_backend/inflight_batcher_llm/src/model_instance_state.cc@c8c6df08).
GREEDY_MODES = (MEDUSA, EAGLE, LOOKAHEAD)
MASKED_MODES = (LOOKAHEAD, MEDUSA, REDRAFTER)  # the attention layers need a mask for the drafts
TOKENS_PER_BLOCK = 32  # of the paged KV cache


@dataclass(frozen=True)
class EngineMethod:
    """A method of TensorRT engines, registered as `METHOD` of `methods/NAME/tensorrt_llm.py`.

    Attributes:
        mode: trtllm-build's speculative_decoding_mode.
        is_greedy: returns whether an engine always takes the most probable token with the method's options, by default
            whether its mode does.
        uses_draft_logits: returns whether drafts are verified with the draft model's probabilities.
        check: yields the problems of a recipe that concern this method alone.
    """

    mode: str
    is_greedy: Callable[[Any], bool] | None = None
    uses_draft_logits: Callable[[Any], bool] = lambda options: False
    check: Callable[[PlanContext], Iterable[Diagnostic]] = lambda context: ()


def engine_methods() -> dict[str, EngineMethod]:
    return discover_all("trtspec.methods", "METHOD", "tensorrt_llm")


def modes() -> dict[str, str]:
    """Return the mode of each supported method."""
    return {"none": ""} | {name: method.mode for name, method in engine_methods().items()}


def speculation_mode(context: PlanContext) -> str:
    """Return the mode of a recipe's method, "" without a drafter and for unsupported methods."""
    return modes().get(context.method_name, "")


def speculation_arguments(method: str, shape: DraftShape) -> list[str]:
    """Return trtllm-build's speculation arguments for the target's engine; empty for an unsupported method.

    max_draft_len counts all draft tokens (NVIDIA/TensorRT-LLM, tensorrt_llm/commands/build.py, 1.0 to 1.2).
    """
    mode = modes().get(method, "")
    return ["--speculative_decoding_mode", mode, "--max_draft_len", str(shape.max_tokens)] if mode else []


def is_greedy_only(context: PlanContext) -> bool:
    """Return whether the target's engine always takes the most probable token."""
    method = engine_methods().get(context.method_name)
    if method and method.is_greedy:
        return method.is_greedy(context.options)
    return speculation_mode(context) in GREEDY_MODES


@dataclass(frozen=True)
class EngineSpec:
    """The specification of one engine; lengths are in tokens.

    `path` is the recipe key of the engine's model, and `gpu_ids` are the GPUs of its ranks. `mode` is its speculation
    mode, "" for none. `draft_tokens` is the maximum number of draft tokens that a step verifies per request.
    `eagle_layers` is the number of EAGLE heads in the engine, one per level of the tree.
    """

    role: Role
    path: str
    config: ModelConfig
    quant_format: QuantFormat
    mapping: ParallelMapping
    gpu_ids: tuple[int, ...]
    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    wanted_num_tokens: int
    mode: str
    draft_tokens: int
    eagle_layers: int

    @property
    def least_num_tokens(self) -> int:
        """Return the minimum of max_num_tokens: the tokens of a step in which a full batch verifies its drafts."""
        return self.max_batch_size * (self.draft_tokens + 1)

    @property
    def max_num_tokens(self) -> int:
        """Return the maximum tokens per step for which the engine is built.

        As in upstream (tensorrt_llm/_common.py check_max_num_tokens, builder.py build), this is at most the tokens of
        all texts and at least one block; with drafts, it is at least `least_num_tokens`.
        """
        tokens = max(min(self.wanted_num_tokens, self.max_seq_len * self.max_batch_size), TOKENS_PER_BLOCK)
        return max(tokens, self.least_num_tokens) if self.mode else tokens

    @property
    def built_seq_len(self) -> int:
        """Return max_seq_len of the built engine, to which trtllm-build adds the draft tokens."""
        return self.max_seq_len + (self.draft_tokens + self.eagle_layers if self.mode else 0)

    @property
    def has_fp8_context_fmha(self) -> bool:
        """Return whether context attention is computed in FP8, which requires FP8 weights and an FP8 KV cache."""
        return self.quant_format == QuantFormat("fp8", "fp8")

    @property
    def has_paged_context_fmha(self) -> bool:
        """Return whether context attention can read a paged KV cache, as cache reuse and chunked prompts require.

        With an FP8 KV cache it requires FP8 context attention, and therefore FP8 weights with one scale per tensor.
        """
        return self.quant_format.kv_cache == "none" or self.has_fp8_context_fmha

    def diagnostic(
        self, key: str, code: str, message: str, hint: str | None = None, severity: Severity = "error", source: str = ""
    ) -> Diagnostic:
        return Diagnostic(f"{self.path}.{key}", code, message, hint, severity, source)

    @property
    def chunks_prompts(self) -> bool:
        """Return whether long prompts are processed in several steps.

        Modes that draft inside the engine do not support chunks. External drafts are sent with the whole text, which is
        then a prompt. Chunks would cut such drafts at the end of a block, so they are used only if the text exceeds a
        step.
        """
        if self.mode == EXTERNAL:
            return self.has_paged_context_fmha and self.max_num_tokens < self.max_seq_len - 1
        return self.has_paged_context_fmha and not self.mode

    @property
    def longest_prompt(self) -> int:
        """Return the maximum prompt length in tokens (batch_manager/trtGptModel.h, mMaxInputLen)."""
        longest = self.built_seq_len - 1
        return longest if self.chunks_prompts else min(longest, self.max_num_tokens)


def engine_specs(context: PlanContext) -> list[EngineSpec]:
    """Return the target's spec, then a draft model's if any; raise ValueError for a target without a family."""
    engine, placement, shape = context.recipe.engine, context.recipe.serving.placement, context.draft_shape
    configs = {"target": context.target_config, "draft": context.draft_config}
    formats = {"target": context.target_format, "draft": context.draft_format}
    if context.target_config is None:
        raise ValueError("engines require a model with a family")
    found = []
    for role, path, asked in recipe_models(context):
        if (config := configs[role]) is None:  # a head inside the target
            continue
        mode = speculation_mode(context) if role == "target" else ""
        draft_tokens = shape.max_tokens if mode else 0
        spec = EngineSpec(
            role=role,
            path=path,
            config=config,
            quant_format=formats[role],
            mapping=parallel_mapping(asked),
            gpu_ids=tuple(getattr(placement, role, ()) or range(asked.parallel.ranks)),
            max_batch_size=engine.max_batch_size,
            max_input_len=resolve_max_input_len(engine),
            max_seq_len=engine.max_seq_len,
            wanted_num_tokens=resolve_max_num_tokens(engine, draft_tokens),
            mode=mode,
            draft_tokens=draft_tokens,
            eagle_layers=shape.max_depth if mode == EAGLE else 0,
        )
        found.append(spec)
    return found


def uses_draft_logits(context: PlanContext) -> bool:
    """Return whether drafts are verified with the draft model's probabilities."""
    method = engine_methods().get(context.method_name)
    return bool(method and method.uses_draft_logits(context.options))


def build_arguments(role: Role, context: PlanContext) -> list[str]:
    """Return trtllm-build's arguments for an engine, without directories and timing cache; `engine.extra` comes last.

    Options that affect serving, or whose values trtllm-build would adjust, are explicit. Options that follow from the
    checkpoint are omitted: plugins for its dtype, quantization, NCCL. Raise TrtspecError if the recipe has no such
    engine or an option of `engine.extra` is invalid.
    """
    spec = next((spec for spec in engine_specs(context) if spec.role == role), None)
    if spec is None:
        raise TrtspecError(f"the recipe does not have a {role} engine")
    own, extra = _settings(spec), _extra(context)
    if extra.get("multiple_profiles") == ["--multiple_profiles", "enable"]:
        del own["opt_num_tokens"]  # upstream rejects the combination
    words = {name: [f"--{name}", str(value)] for name, value in own.items()}
    if spec.mode:
        words["speculation"] = speculation_arguments(context.method_name, context.draft_shape)
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
        # TensorRT itself multiplies FP8, as recommended by NVIDIA/TensorRT-LLM:
        # docs/source/legacy/performance/performance-tuning-guide/useful-build-time-flags.md@2a9abd95
        "gemm_plugin": "disable" if spec.quant_format.weights == "fp8" else "auto",
        "logits_dtype": "float32",
        "workers": spec.mapping.ranks,
    }
    if spec.quant_format.weights == "fp8_rowwise":
        settings["fp8_rowwise_gemm_plugin"] = "auto"
    return settings


def _switch(on: bool) -> str:
    return "enable" if on else "disable"


def _extra(context: PlanContext) -> dict[str, list[str]]:
    """Return the arguments for `engine.extra` by option; raise TrtspecError for an invalid option."""
    options, words = find_version_spec(context.version).options, {}
    for name, value in context.recipe.engine.extra.items():
        option = options.get(name)
        found = option_arguments(option, value) if option else None
        if found is None:
            message = f"{name}: {quote_value(value)} is not a valid option of trtllm-build"
            raise TrtspecError(message, where=f"engine.extra.{name}")
        words[name] = found
    return words


def option_arguments(option: BuildOption, value: Any) -> list[str] | None:
    """Return the arguments for an option; empty for a flag that is false, None for an invalid value."""
    name = f"--{option.name}"
    if option.type == "flag":
        return [name] * value if isinstance(value, bool) else None
    if isinstance(value, bool):
        return [name, _switch(value)] if option.type == "switch" else None
    if option.type == "int":
        return [name, str(value)] if isinstance(value, int) and value >= 0 else None
    words = str(value).split() if option.type == "strings" else [str(value)]
    return None if option.choices and not set(words) <= set(option.choices) else [name, *words]
