# SPDX-License-Identifier: Apache-2.0
"""Estimate the device memory of a target and its drafter from their configs alone, and check placements."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from trtspec.backends.context import PlanContext
from trtspec.checkpoints.memory_profile import MemoryProfile, read_memory_profile
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.prequantized import QuantFormat, source_format
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.core.gpus import GPUS
from trtspec.recipe.resolve import resolve_max_num_tokens
from trtspec.recipe.schema import ModelSource

FLOAT32 = 4


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one device; `draft_bytes` covers the draft's weights and KV cache, `limit_bytes` is 0 if unknown."""

    id: str
    weights_bytes: int
    kv_cache_bytes: int
    draft_bytes: int
    activation_bytes: int
    limit_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return the sum of all parts."""
        return self.weights_bytes + self.kv_cache_bytes + self.draft_bytes + self.activation_bytes


def plan_memory(
    target: ModelConfig,
    draft: ModelConfig | None,
    *,
    rows: int,
    seq_len: int,
    num_tokens: int,
    max_draft_tokens: int,
    head_parameters: int = 0,
    quantized: bool = False,
    kept_tokens: int = 0,
    longer: int = 1,
) -> MemoryPlan:
    """Return the CPU memory plan of the torch engine, which computes in float32, and for FP8 models in float64.

    KV caches hold `rows` texts of `seq_len` tokens, plus `kept_tokens` of finished texts. The largest activations are
    a prefill step's of `num_tokens` (hidden state, queries, keys and values, both MLP branches) and the logits
    of a verify step of `max_draft_tokens` draft tokens. The drafter is either a model, whose texts are `longer` times
    as long, or a head with `head_parameters` parameters.
    """
    item = 8 if quantized else FLOAT32
    positions = rows * seq_len + kept_tokens
    heads = (target.num_heads + 2 * target.num_kv_heads) * target.head_size
    width = 3 * target.hidden_size + heads + 3 * target.intermediate_size
    logits = rows * (max_draft_tokens + 1) * target.vocab_size
    draft_bytes = head_parameters * item
    if draft:
        draft_bytes = _weights_bytes(draft, item) + longer * positions * draft.kv_bytes_per_token(item)
    return MemoryPlan(
        id="cpu",
        weights_bytes=_weights_bytes(target, item),
        kv_cache_bytes=positions * target.kv_bytes_per_token(item),
        draft_bytes=draft_bytes,
        activation_bytes=(min(num_tokens, rows * seq_len) * width + logits) * item,
        limit_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _weights_bytes(model: ModelConfig, item: int) -> int:
    """Return the bytes of a model's weights; a tied LM head is packed in float32, separately from the embedding."""
    packed = model.vocab_size * model.hidden_size if model.tied_embeddings and item == FLOAT32 else 0
    return (model.num_parameters + packed) * item


ITEM_BYTES = 2  # of bfloat16 and float16, the dtype of everything that is not quantized


def recipe_models(context: PlanContext) -> Iterable[tuple[str, str, ModelSource]]:
    """Yield (role, recipe path, model of the recipe) of each model that the recipe names."""
    yield "target", "target", context.recipe.target
    if context.recipe.speculation.draft:
        yield "draft", "speculation.draft", context.recipe.speculation.draft


def check_placement(context: PlanContext, *, maps_vocabularies: bool = False) -> Iterable[Diagnostic]:
    """Yield placements and vocabularies that the engine does not support: target and draft share the same GPUs.

    With `maps_vocabularies` the engine supports a draft model with another vocabulary.
    """
    recipe = context.recipe
    ranks, placement = recipe.target.parallel.ranks, recipe.serving.placement
    if placement and len(placement.target) != ranks:
        message = f"the target is divided over {ranks} GPUs but placed on {len(placement.target)}"
        yield Diagnostic("serving.placement.target", "placement", message, f"list {ranks}")
    if placement and placement.draft and placement.draft != placement.target:
        message = "this engine loads the draft on the target's GPUs"
        yield Diagnostic("serving.placement.draft", "placement", message, "remove it")
    ours, theirs = context.target_config, context.draft_config
    if ours and theirs and ours.vocab_size != theirs.vocab_size and not maps_vocabularies:
        message = (
            f"the draft has {theirs.vocab_size} vocabulary entries, the target {ours.vocab_size}: this "
            "engine runs both unchanged and cannot pad the smaller one"
        )
        hint = "use a backend that converts checkpoints and pads the smaller one"
        yield Diagnostic("speculation.draft.model", "vocabulary", message, hint)


def check_num_tokens(context: PlanContext, drafts: int | None = None) -> Iterable[Diagnostic]:
    """Yield an error if a step cannot verify `drafts` tokens, by default the draft shape's, for a full batch."""
    engine, tokens = context.recipe.engine, (context.draft_shape.max_tokens if drafts is None else drafts) + 1
    least = engine.max_batch_size * tokens
    if engine.max_num_tokens and engine.max_num_tokens < least:
        message = f"max_num_tokens {engine.max_num_tokens} is less than max_batch_size {engine.max_batch_size} times"
        message += f" {tokens} token{'s' * (tokens > 1)} to verify"
        yield Diagnostic("engine.max_num_tokens", "out-of-range", message, f"at least {least}")


def check_online(context: PlanContext, engine: str, online: Iterable[str]) -> Iterable[Diagnostic]:
    """Yield an error if the recipe requests a format that the source lacks and the engine cannot quantize to on load.

    `engine` is its name, and `online` are the formats to which it quantizes 16-bit sources on load.
    """
    for role, path, asked in recipe_models(context):
        found, wanted = source_format(context.sources[role]).weights, asked.quantization.weights
        if wanted in ("none", found):
            continue
        if found != "none":
            message = f"{wanted} weights are requested, but the {role} is {found}"
            yield Diagnostic(f"{path}.quantization.weights", "quantization", message, "remove it")
        elif wanted not in online:
            message = f"{engine} {context.version} does not quantize to {wanted} on load"
            hint = f"use a quantized checkpoint, or choose {', '.join(online)}"
            yield Diagnostic(f"{path}.quantization.weights", "quantization", message, hint)
        elif set(asked.quantization.exclude) != {"lm_head"}:
            message = f"{engine} quantizes every layer except the head on load and ignores exclude"
            yield Diagnostic(f"{path}.quantization.exclude", "unused", message, severity="warning")


@dataclass(frozen=True)
class GpuBudget:
    """The share of a GPU that `serving.kv_cache_fraction` leaves an engine, in bytes; `memory` is the GPU's total.

    `fixed` covers weights and activations, `activations` only the latter.
    """

    memory: int
    fraction: float
    fixed: int
    activations: int


def full_gpu_limit(budget: GpuBudget) -> int:
    """Return the limit of an engine that uses the whole GPU."""
    return budget.memory


def total_memory_limit(budget: GpuBudget) -> int:
    """Return the limit if the fraction applies to all memory, weights and activations included."""
    return int(budget.memory * budget.fraction)


def static_memory_limit(budget: GpuBudget) -> int:
    """Return the limit if the fraction applies to weights and KV cache; activations use the remaining memory."""
    share = int(budget.memory * budget.fraction)
    return share + min(budget.activations, budget.memory - share)


def free_memory_limit(budget: GpuBudget) -> int:
    """Return the limit if the fraction applies to the memory that weights and activations leave for KV caches."""
    return budget.memory - int(max(0, budget.memory - budget.fixed) * (1 - budget.fraction))


def plan_source_memory(context: PlanContext, limit: Callable[[GpuBudget], int] = full_gpu_limit) -> list[MemoryPlan]:
    """Return a plan for each GPU of the target; empty if the model's config is insufficient.

    The drafter is on the same GPUs, divided in the same way. The KV cache holds full batches of the longest texts;
    servers use all remaining memory and hold as many texts as fit. `limit` returns the engine's limit on a GPU.
    """
    recipe, found = context.recipe, _taken(context, "target")
    if found is None:
        return []
    placement, gpu = recipe.serving.placement, GPUS.get((recipe.engine.gpu or "").lower())
    draft = _draft_bytes(context)
    is_known = gpu is not None and recipe.engine.device != "cpu"
    fixed = found.weights + found.activation + draft
    budget = GpuBudget(gpu.memory_bytes if gpu else 0, recipe.serving.kv_cache_fraction, fixed, found.activation)
    return [
        MemoryPlan(
            id=str(number),
            weights_bytes=found.weights,
            kv_cache_bytes=found.cache,
            draft_bytes=draft,
            activation_bytes=found.activation,
            limit_bytes=limit(budget) if is_known else 0,
        )
        for number in (placement.target if placement else range(recipe.target.parallel.ranks))
    ]


def _draft_bytes(context: PlanContext) -> int:
    """Return the drafter's bytes on each GPU: weights and cache of a draft model, or the file size of a head."""
    if context.method.drafts_with == "head":
        return context.sources["draft"].nbytes // context.recipe.target.parallel.ranks
    found = _taken(context, "draft")
    return found.weights + found.cache if found else 0


class ModelMemory(NamedTuple):
    """Bytes of a model on each of its GPUs: weights, cache, and the activations of a step."""

    weights: int
    cache: int
    activation: int


def _taken(context: PlanContext, role: str) -> ModelMemory | None:
    """Return the memory of target or draft from its family, or without a family from its config and headers."""
    model = context.target if role == "target" else context.draft
    asked = context.recipe.target if role == "target" else context.recipe.speculation.draft
    if asked is None or role not in context.sources:
        return None
    stored = stored_format(context.sources[role], asked)
    if model is None:
        try:
            return _taken_of_outline(context, read_memory_profile(context.sources[role]), context.sources[role], stored)
        except CheckpointError:
            return None
    engine, parallel = context.recipe.engine, context.recipe.target.parallel
    cache = engine.max_batch_size * _text_bytes(model.config, engine.max_seq_len, stored, parallel.tensor)
    activation = _activation_bytes(
        context,
        model.config.hidden_size,
        (model.config.num_heads + 2 * model.config.num_kv_heads) * model.config.head_size,
        model.config.intermediate_size,
        model.config.vocab_size,
    )
    return ModelMemory(weight_bytes(model.config, stored) // parallel.ranks, cache // parallel.pipeline, activation)


def _taken_of_outline(context: PlanContext, outline: MemoryProfile, source: Source, stored: QuantFormat) -> ModelMemory:
    """Return the memory of a model as stored; if the engine quantizes it to FP8, embedding and head keep 16 bits."""
    engine, parallel, weights = context.recipe.engine, context.recipe.target.parallel, source.nbytes
    if stored.weights != source_format(source).weights:
        kept = outline.kept_numbers * ITEM_BYTES
        weights = kept + (weights - kept) // ITEM_BYTES
    item = 1 if stored.kv_cache == "fp8" else ITEM_BYTES
    cache = outline.cache_bytes(engine.max_batch_size, engine.max_seq_len, parallel.tensor, item)
    activation = _activation_bytes(
        context, outline.hidden_size, outline.attention_width, outline.active_width, outline.vocab_size
    )
    return ModelMemory(weights // parallel.ranks, cache // parallel.pipeline, activation)


def weight_bytes(config: ModelConfig, quant_format: QuantFormat) -> int:
    """Return the bytes of all weights; embedding and head stay in 16 bits if the layers have 8."""
    if quant_format.weights == "none":
        return config.num_parameters * ITEM_BYTES
    kept = config.vocab_size * config.hidden_size * (1 if config.tied_embeddings else 2)
    return kept * ITEM_BYTES + config.num_parameters - kept


def stored_format(source: Source, asked: ModelSource) -> QuantFormat:
    """Return the format of a loaded model: the source's, or the recipe's if the source is not quantized."""
    found, wanted = source_format(source), asked.quantization
    return QuantFormat(
        wanted.weights if found.weights == "none" else found.weights,
        wanted.kv_cache if found.kv_cache == "none" else found.kv_cache,
    )


def _text_bytes(config: ModelConfig, tokens: int, quant_format: QuantFormat, tensor: int) -> int:
    """Return the bytes of a text's keys and values on one GPU, which holds at least one head of each.

    Layers with a sliding window store only the tokens of the window.
    """
    heads = max(1, config.num_kv_heads // tensor)
    item = 1 if quant_format.kv_cache == "fp8" else ITEM_BYTES
    kept = [
        min(tokens, config.sliding_window) if config.has_window(layer) else tokens for layer in range(config.num_layers)
    ]
    return 2 * sum(kept) * heads * config.head_size * item


def _activation_bytes(context: PlanContext, hidden: int, attention: int, inner: int, vocab: int) -> int:
    """Return the bytes of the largest prefill step's activations and of a verification step's 32-bit logits."""
    engine, draft_tokens = context.recipe.engine, context.draft_shape.max_tokens
    width = 3 * hidden + (attention + 3 * inner) // context.recipe.target.parallel.tensor
    logits = engine.max_batch_size * (draft_tokens + 1) * vocab
    return resolve_max_num_tokens(engine, draft_tokens) * width * ITEM_BYTES + logits * 4
