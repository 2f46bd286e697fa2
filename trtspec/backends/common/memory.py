# SPDX-License-Identifier: Apache-2.0
"""Estimates of the device memory of a target and its drafter, computed from configs and headers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal, NamedTuple

from trtspec.backends.context import PlanContext
from trtspec.checkpoints.memory_profile import LayerCache, MemoryProfile, read_memory_profile
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.prequantized import QuantFormat, source_format
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.translation import MAX_LENGTH_RATIO
from trtspec.core.errors import CheckpointError
from trtspec.engine.settings import EngineSettings
from trtspec.recipe.resolve import resolve_max_num_tokens
from trtspec.recipe.schema import ModelSource

FLOAT32 = 4
ITEM_BYTES = 2  # of bfloat16 and float16, the dtype of everything that is not quantized

FractionOf = Literal["", "all", "static", "free"]


@dataclass(frozen=True)
class MemoryPlan:
    """Estimated bytes on one device, named `id`.

    `draft_bytes` includes the draft's weights and KV cache. `limit_bytes` is the memory that the engine may use, 0 if
    unknown.
    """

    id: str
    weights_bytes: int
    kv_cache_bytes: int
    draft_bytes: int
    activation_bytes: int
    limit_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_cache_bytes + self.draft_bytes + self.activation_bytes


def plan_memory(context: PlanContext) -> list[MemoryPlan]:
    """Return the CPU memory plan of the torch engine, which computes in float32, and for FP8 models in float64.

    The KV caches have space for a full batch of texts with the maximum length, and for the reusable tokens of finished
    texts. The largest activations occur in a prefill step (hidden state, queries, keys and values, both MLP branches)
    and the logits of a verification step. A draft model with another vocabulary needs more tokens for the same text.
    Raise ValueError for a target without a family.
    """
    target, draft, engine = context.target_config, context.draft_config, context.recipe.engine
    if target is None:
        raise ValueError("the torch engine requires a model with a family")
    item = FLOAT32 if context.target_format == QuantFormat() else 8
    rows, draft_tokens = engine.max_batch_size, context.draft_shape.max_tokens
    tokens = rows * min(engine.max_seq_len, target.stretched_positions)
    positions = tokens + EngineSettings.from_recipe(context.resolved).reuse_tokens
    width = 3 * target.hidden_size + (target.num_heads + 2 * target.num_kv_heads) * target.head_size
    width += 3 * target.intermediate_size
    draft_bytes = context.draft_head.num_parameters * item if context.draft_head else 0
    if draft:
        longer = MAX_LENGTH_RATIO if context.translates else 1
        draft_bytes = _weights_bytes(draft, item) + longer * positions * draft.kv_bytes_per_token(item)
    largest_step = min(resolve_max_num_tokens(engine, draft_tokens), tokens) * width
    plan = MemoryPlan(
        id="cpu",
        weights_bytes=_weights_bytes(target, item),
        kv_cache_bytes=positions * target.kv_bytes_per_token(item),
        draft_bytes=draft_bytes,
        activation_bytes=(largest_step + rows * (draft_tokens + 1) * target.vocab_size) * item,
        limit_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    return [plan]


def _weights_bytes(model: ModelConfig, item: int) -> int:
    """Return the bytes of a model's weights; in float32, a tied LM head is stored separately from the embedding."""
    packed = model.vocab_size * model.hidden_size if model.tied_embeddings and item == FLOAT32 else 0
    return (model.num_parameters + packed) * item


def plan_source_memory(context: PlanContext, fraction_of: FractionOf = "") -> list[MemoryPlan]:
    """Return a memory plan for each GPU of the target; empty if the target's config does not suffice.

    The drafter is on the same GPUs, divided like the target. The KV cache is sized for a full batch of texts with the
    maximum length; servers use all remaining memory for it. `fraction_of` is the memory to which the engine applies
    `serving.kv_cache_fraction`.
    """
    recipe, found = context.recipe, _model_memory(context, "target")
    if found is None:
        return []
    placement, limit = recipe.serving.placement, 0
    if context.method.drafts_with == "head":
        draft = context.sources["draft"].nbytes // recipe.target.parallel.ranks
    else:
        model = _model_memory(context, "draft")
        draft = model.weights + model.cache if model else 0
    if context.gpu is not None and recipe.engine.device != "cpu":
        memory, fixed = context.gpu.memory_bytes, found.weights + found.activation + draft
        limit = _limit(fraction_of, memory, recipe.serving.kv_cache_fraction, fixed, found.activation)
    return [
        MemoryPlan(
            id=str(number),
            weights_bytes=found.weights,
            kv_cache_bytes=found.cache,
            draft_bytes=draft,
            activation_bytes=found.activation,
            limit_bytes=limit,
        )
        for number in (placement.target if placement else range(recipe.target.parallel.ranks))
    ]


def _limit(fraction_of: FractionOf, memory: int, fraction: float, fixed: int, activations: int) -> int:
    """Return the bytes of a GPU that an engine may use; `fixed` are the bytes of weights and activations.

    The fraction applies to "all" memory, to "static" memory (weights and KV cache, while activations use the rest), or
    to the memory that weights and activations leave "free" for the KV cache. With "" it is ignored.
    """
    share = int(memory * fraction)
    return {
        "": memory,
        "all": share,
        "static": share + min(activations, memory - share),
        "free": memory - int(max(0, memory - fixed) * (1 - fraction)),
    }[fraction_of]


class ModelMemory(NamedTuple):
    """A model's bytes on each of its GPUs: weights, KV cache, and the activations of a step."""

    weights: int
    cache: int
    activation: int


def _model_memory(context: PlanContext, role: str) -> ModelMemory | None:
    """Return the memory of target or draft, or None if it is absent or its config does not suffice."""
    model = context.target if role == "target" else context.draft
    asked = context.recipe.target if role == "target" else context.recipe.speculation.draft
    if asked is None or role not in context.sources:
        return None
    source, engine, parallel = context.sources[role], context.recipe.engine, context.recipe.target.parallel
    stored, draft_tokens = stored_format(source, asked), context.draft_shape.max_tokens
    if model:
        profile, weights = _profile(model.config), weight_bytes(model.config, stored)
    else:
        try:
            profile = read_memory_profile(source)
        except CheckpointError:
            return None
        weights = source.nbytes
        if stored.weights != source_format(source).weights:  # the engine quantizes all except embedding and head
            kept = profile.kept_numbers * ITEM_BYTES
            weights = kept + (weights - kept) // ITEM_BYTES
    cache_item = 1 if stored.kv_cache == "fp8" else ITEM_BYTES
    cache = profile.cache_bytes(engine.max_batch_size, engine.max_seq_len, parallel.tensor, cache_item)
    # the activations of the largest prefill step, and the 32-bit logits of a verification step
    width = 3 * profile.hidden_size + (profile.attention_width + 3 * profile.active_width) // parallel.tensor
    logits = engine.max_batch_size * (draft_tokens + 1) * profile.vocab_size
    activation = resolve_max_num_tokens(engine, draft_tokens) * width * ITEM_BYTES + logits * 4
    return ModelMemory(weights // parallel.ranks, cache // parallel.pipeline, activation)


def _profile(config: ModelConfig) -> MemoryProfile:
    """Return the memory profile of a model with a family."""
    windows = (config.sliding_window if config.has_window(layer) else 0 for layer in range(config.num_layers))
    return MemoryProfile(
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        max_positions=config.max_positions,
        attention_width=(config.num_heads + 2 * config.num_kv_heads) * config.head_size,
        active_width=config.intermediate_size,
        kept_numbers=config.vocab_size * config.hidden_size * (1 if config.tied_embeddings else 2),
        layers=tuple(LayerCache(config.num_kv_heads, 2 * config.head_size, window) for window in windows),
    )


def weight_bytes(config: ModelConfig, quant_format: QuantFormat) -> int:
    """Return the bytes of a model's weights; embedding and LM head have 16 bits even if the layers have 8."""
    if quant_format.weights == "none":
        return config.num_parameters * ITEM_BYTES
    kept = config.vocab_size * config.hidden_size * (1 if config.tied_embeddings else 2)
    return kept * ITEM_BYTES + config.num_parameters - kept


def stored_format(source: Source, asked: ModelSource) -> QuantFormat:
    """Return the format of a model in the engine: the source's, or the recipe's if the source is not quantized."""
    found, wanted = source_format(source), asked.quantization
    return QuantFormat(
        wanted.weights if found.weights == "none" else found.weights,
        wanted.kv_cache if found.kv_cache == "none" else found.kv_cache,
    )
