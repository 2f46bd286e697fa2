# SPDX-License-Identifier: Apache-2.0
"""The engines of a recipe as plain values: one for the target, and one for a draft model.

Values that upstream adjusts during the build are adjusted here in the same way, so that the request matches the build.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trtspec.backends.context import PlanContext
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.prequantized import QuantFormat
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.diagnostics import Diagnostic, Severity
from trtspec.methods.base import DraftShape
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.redrafter import RedrafterOptions
from trtspec.recipe.resolve import resolve_max_input_len, resolve_max_num_tokens
from trtspec.recipe.schema import ModelSource

# NVIDIA/TensorRT-LLM:tensorrt_llm/commands/build.py@65f1d153.
EXTERNAL, MEDUSA, EAGLE = "draft_tokens_external", "medusa", "eagle"
LOOKAHEAD, REDRAFTER = "lookahead_decoding", "explicit_draft_tokens"

# By method; prompt lookup drafts outside the engine, like a draft model.
MODES = {
    "none": "",
    "draft_target": EXTERNAL,
    "ngram": EXTERNAL,
    "medusa": MEDUSA,
    "eagle": EAGLE,
    "lookahead": LOOKAHEAD,
    "redrafter": REDRAFTER,
}
# Medusa matches only ids, which is temperature 0 (NVIDIA/TensorRT-LLM:docs/source/legacy/advanced/
# speculative-decoding.md@28af34e8, its limitations). Lookahead takes the argmax of the target's logits
# (cpp/tensorrt_llm/layers/lookaheadDecodingLayer.cpp@05cc2c11). EAGLE is greedy without a threshold for typical
# acceptance (examples/eagle/README.md@585c7565), which the Triton backend does not pass on
# (triton_backend/inflight_batcher_llm/src/model_instance_state.cc@c8c6df08).
GREEDY_MODES = (MEDUSA, EAGLE, LOOKAHEAD)
Role = Literal["target", "draft"]
TOKENS_PER_BLOCK = 32  # of the paged KV cache


def speculation_mode(context: PlanContext) -> str:
    """Return the mode of a recipe's method, "" without a drafter and for unsupported methods."""
    return MODES.get(context.method_name, "")


def build_arguments(method: str, shape: DraftShape) -> list[str]:
    """Return trtllm-build's arguments for the target's engine; empty for an unsupported method.

    NVIDIA/TensorRT-LLM, tensorrt_llm/commands/build.py, 1.0 to 1.2: max_draft_len counts all draft tokens.
    """
    mode = MODES.get(method, "")
    return ["--speculative_decoding_mode", mode, "--max_draft_len", str(shape.max_tokens)] if mode else []


def is_greedy_only(context: PlanContext) -> bool:
    """Return whether the target's engine always takes the most probable token."""
    if isinstance(context.options, RedrafterOptions):
        return context.options.greedy
    return speculation_mode(context) in GREEDY_MODES


@dataclass(frozen=True)
class EngineSpec:
    """One engine; `path` is the recipe key of its model, `gpu_ids` are the GPUs of its ranks.

    `mode` is its speculation mode, "" for none. `draft_tokens` is the maximal number of tokens that a step verifies.
    `eagle_layers` is the number of EAGLE heads inside the engine that draft one after another.
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
    mode: str = ""
    draft_tokens: int = 0
    eagle_layers: int = 0

    @property
    def least_num_tokens(self) -> int:
        """Return the tokens of a step in which all requests verify their drafts; upstream raises smaller values."""
        return self.max_batch_size * (self.draft_tokens + 1)

    @property
    def max_num_tokens(self) -> int:
        """Return the maximal tokens per step for which the engine is built.

        As in upstream (tensorrt_llm/_common.py check_max_num_tokens, builder.py build): at most the tokens of all
        texts, at least one block, and with drafts at least the tokens that they need.
        """
        tokens = max(min(self.wanted_num_tokens, self.max_seq_len * self.max_batch_size), TOKENS_PER_BLOCK)
        return max(tokens, self.least_num_tokens) if self.mode else tokens

    @property
    def built_seq_len(self) -> int:
        """Return max_seq_len in the engine's own config: upstream adds the draft tokens to the argument."""
        return self.max_seq_len + (self.draft_tokens + self.eagle_layers if self.mode else 0)

    @property
    def has_fp8_context_fmha(self) -> bool:
        """Return whether prompts use FP8 attention: if both weights and KV cache are FP8."""
        return self.quant_format == QuantFormat("fp8", "fp8")

    @property
    def has_paged_context_fmha(self) -> bool:
        """Return whether prompts support a paged cache, which cache reuse and chunked prompts need.

        An FP8 cache requires FP8 context attention, which requires FP8 weights with one scale each.
        """
        return self.quant_format.kv_cache == "none" or self.has_fp8_context_fmha

    def diagnostic(
        self, key: str, code: str, message: str, hint: str | None = None, severity: Severity = "error", source: str = ""
    ) -> Diagnostic:
        return Diagnostic(f"{self.path}.{key}", code, message, hint, severity, source)

    @property
    def chunks_prompts(self) -> bool:
        """Return whether a prompt is processed in several steps.

        The modes that draft inside do not support it. External drafts follow the whole text, which is then a prompt;
        chunks would cut them at the end of a block, so chunks are used only if the text requires them.
        """
        if self.mode == EXTERNAL:
            return self.has_paged_context_fmha and self.max_num_tokens < self.max_seq_len - 1
        return self.has_paged_context_fmha and not self.mode

    @property
    def longest_prompt(self) -> int:
        """Return the maximal prompt length in tokens (batch_manager/trtGptModel.h, mMaxInputLen)."""
        longest = self.built_seq_len - 1
        return longest if self.chunks_prompts else min(longest, self.max_num_tokens)


def engine_specs(context: PlanContext) -> list[EngineSpec]:
    """Return the target's engine, followed by a draft model's if there is one; the context's target has a family."""
    recipe, mode, draft_tokens = context.recipe, speculation_mode(context), context.draft_shape.max_tokens
    if context.target_config is None:
        raise ValueError("engines require a model with a family")
    target = _spec(
        context, "target", recipe.target, context.target_config, context.target_format, draft_tokens if mode else 0
    )
    found = [replace(target, mode=mode, eagle_layers=context.draft_shape.max_depth if mode == EAGLE else 0)]
    if context.draft_config and recipe.speculation.draft:
        found.append(_spec(context, "draft", recipe.speculation.draft, context.draft_config, context.draft_format, 0))
    return found


def _spec(
    context: PlanContext,
    role: Role,
    asked: ModelSource,
    config: ModelConfig,
    quant_format: QuantFormat,
    draft_tokens: int,
) -> EngineSpec:
    engine, parallel, placement = context.recipe.engine, asked.parallel, context.recipe.serving.placement
    placed = getattr(placement, role) if placement else None
    return EngineSpec(
        role=role,
        path="target" if role == "target" else "speculation.draft",
        config=config,
        quant_format=quant_format,
        mapping=ParallelMapping(parallel.tensor, parallel.pipeline, parallel.embedding),
        gpu_ids=tuple(placed or range(parallel.ranks)),
        max_batch_size=engine.max_batch_size,
        max_input_len=resolve_max_input_len(engine),
        max_seq_len=engine.max_seq_len,
        wanted_num_tokens=resolve_max_num_tokens(engine, draft_tokens),
        draft_tokens=draft_tokens,
    )


def uses_draft_logits(context: PlanContext) -> bool:
    """Return whether drafts are verified with the draft model's probabilities."""
    return isinstance(context.options, DraftTargetOptions) and context.options.use_draft_logits
