# SPDX-License-Identifier: Apache-2.0
"""Estimate the memory of engines on each GPU from configs alone.

Weights and KV cache are exact; activations are an estimate, since TensorRT decides during the build which of them
share memory (NVIDIA/TensorRT-LLM:docs/source/legacy/reference/memory.md@4946125f).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, prod

from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.specs import TOKENS_PER_BLOCK, EngineSpec, Role, engine_specs
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.sharding import ParallelMapping, shard
from trtspec.methods.base import DraftHead

ITEM = 2  # bytes of a number in 16 bits
FP8_ITEM = 1
LOGITS_ITEM = 4


@dataclass(frozen=True)
class RankLoad:
    """The memory of one rank of an engine on its GPU, in bytes; the cache's is for one token."""

    role: Role
    gpu_id: int
    weights: int
    cache_per_token: int
    cache_tokens: int
    activations: int


@dataclass(frozen=True)
class GpuLoad:
    """The memory of all ranks on one GPU; `memory` is 0 if the GPU is unknown.

    Each engine's cache takes at most `fraction` of the memory that remains after everything else is loaded.
    """

    id: int
    ranks: tuple[RankLoad, ...]
    memory: int
    fraction: float

    @property
    def fixed(self) -> int:
        """Return the bytes of weights and activations."""
        return sum(rank.weights + rank.activations for rank in self.ranks)

    @property
    def cache_limit(self) -> int:
        """Return the maximal bytes of all caches together."""
        return int(max(0, self.memory - self.fixed) * self.fraction)

    @property
    def cache_tokens(self) -> int:
        """Return the capacity of each cache in tokens; all are equal, because every text is in all caches."""
        per_token = sum(rank.cache_per_token for rank in self.ranks)
        return self.cache_limit // per_token // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK


def memory(context: PlanContext) -> list[MemoryPlan]:
    """Return a plan for each GPU by id; the context has a target with a family.

    The caches hold `max_batch_size` texts of the engine's maximal length each. The limit is the GPU's memory without
    the part that the caches must leave free (`serving.kv_cache_fraction`).
    """
    return [_plan(load) for load in gpu_loads(context)]


def gpu_loads(context: PlanContext) -> list[GpuLoad]:
    """Return the memory of the engines on each of their GPUs, by id."""
    gpu = context.gpu
    found: dict[int, list[RankLoad]] = {}
    for rank in _rank_loads(context):
        found.setdefault(rank.gpu_id, []).append(rank)
    fraction = context.recipe.serving.kv_cache_fraction
    return [GpuLoad(gpu_id, tuple(found[gpu_id]), gpu.memory_bytes if gpu else 0, fraction) for gpu_id in sorted(found)]


def _plan(load: GpuLoad) -> MemoryPlan:
    target = [rank for rank in load.ranks if rank.role == "target"]
    draft = [rank for rank in load.ranks if rank.role == "draft"]
    return MemoryPlan(
        id=str(load.id),
        weights_bytes=sum(rank.weights for rank in target),
        kv_cache_bytes=sum(rank.cache_per_token * rank.cache_tokens for rank in target),
        draft_bytes=sum(rank.weights + rank.cache_per_token * rank.cache_tokens for rank in draft),
        activation_bytes=sum(rank.activations for rank in load.ranks),
        limit_bytes=load.fixed + load.cache_limit if load.memory > load.fixed else load.memory,
    )


def _rank_loads(context: PlanContext) -> Iterator[RankLoad]:
    for spec in engine_specs(context):
        head = context.draft_head if spec.role == "target" else None
        for rank, gpu_id in zip(range(spec.mapping.ranks), spec.gpu_ids, strict=False):
            stage = rank // spec.mapping.tensor
            yield RankLoad(
                role=spec.role,
                gpu_id=gpu_id,
                weights=_weights(spec, stage) + _head_weights(spec, stage, head),
                cache_per_token=_cache_per_token(spec, stage, head),
                cache_tokens=spec.max_batch_size * ceil(spec.built_seq_len / TOKENS_PER_BLOCK) * TOKENS_PER_BLOCK,
                activations=_activations(spec, stage),
            )


def _weights(spec: EngineSpec, stage: int) -> int:
    """Return the bytes of a rank's share of the model; embedding, head, norms and routers have 16 bits or more."""
    config, mapping = spec.config, spec.mapping
    item = ITEM if spec.quant_format.weights == "none" else FP8_ITEM
    layers = len(mapping.layers(stage, config.num_layers))
    total = layers * (_layer_linear(config, mapping) * item + _layer_rest(config, mapping) * ITEM)
    table = config.vocab_size * config.hidden_size * ITEM
    shared_rows = ceil(config.vocab_size / mapping.tensor) * config.hidden_size * ITEM
    embedding = shared_rows if mapping.embedding else table
    # a tied head is stored once if head and embedding are divided in the same way (models/modeling_utils.py)
    shares_head = config.tied_embeddings and mapping.pipeline == 1 and embedding == shared_rows
    if stage == 0:
        total += embedding
    if stage == mapping.pipeline - 1:
        total += config.hidden_size * ITEM + (0 if shares_head else shared_rows)
    return total


def _layer_linear(config: ModelConfig, mapping: ParallelMapping) -> int:
    """Return the number of elements in a rank's share of a layer's matrices; shared key heads are on each rank."""
    heads = config.num_heads // mapping.tensor
    kv_heads = _kv_heads(config, mapping)
    attention = (2 * heads + 2 * kv_heads) * config.head_size * config.hidden_size
    mlp = 3 * config.hidden_size * (config.intermediate_size // mapping.tensor)
    return attention + mlp * max(1, config.num_experts)


def _layer_rest(config: ModelConfig, mapping: ParallelMapping) -> int:
    """Return the number of elements in a layer's norms, biases and router; a router's element counts as two."""
    heads = config.num_heads // mapping.tensor + 2 * _kv_heads(config, mapping)
    biases = heads * config.head_size * config.attn_bias + config.hidden_size * config.dense_bias
    biases += (2 * config.intermediate_size // mapping.tensor + config.hidden_size) * config.mlp_bias
    norms = 2 * config.hidden_size + sum(config.qk_norm_sizes)
    return norms + biases + 2 * config.num_experts * config.hidden_size


def _kv_heads(config: ModelConfig, mapping: ParallelMapping) -> int:
    return max(1, config.num_kv_heads // mapping.tensor)


def _head_weights(spec: EngineSpec, stage: int, head: DraftHead | None) -> int:
    """Return the bytes of a rank's share of the head inside the target, in 16 bits; shared tensors are copied."""
    rules = [*head.rules, *head.borrowed] if head else []
    shares = [shard(rule, spec.mapping, spec.config.num_layers) for rule in rules]
    mine = spec.mapping.stage_ranks(stage)
    return sum(prod(share.shape) for share in shares if share.ranks == mine) * ITEM


def _cache_per_token(spec: EngineSpec, stage: int, head: DraftHead | None) -> int:
    """Return the bytes of a token's keys and values on a rank, including the layers of a head."""
    config, mapping = spec.config, spec.mapping
    item = ITEM if spec.quant_format.kv_cache == "none" else FP8_ITEM
    layers = len(mapping.layers(stage, config.num_layers))
    if head and stage == mapping.pipeline - 1:
        layers += sum(model.num_layers for model in head.models.values())
    return 2 * layers * _kv_heads(config, mapping) * config.head_size * item


def _activations(spec: EngineSpec, stage: int) -> int:
    """Return an estimate: the largest layer for a step's tokens in 16 bits, and the logits of verified tokens.

    A layer's hidden state, residual and norm are replicated on every rank; queries, keys, values and both MLP branches
    are divided. Logits are in float32, twice: the engine's and the sampler's copy.
    """
    config, mapping = spec.config, spec.mapping
    heads = config.num_heads // mapping.tensor + 2 * _kv_heads(config, mapping)
    mlp = 3 * config.intermediate_size // mapping.tensor * max(1, config.experts_per_token)
    width = 3 * config.hidden_size + heads * config.head_size + mlp
    logits = 2 * spec.least_num_tokens * config.vocab_size * LOGITS_ITEM if stage == mapping.pipeline - 1 else 0
    return spec.max_num_tokens * width * ITEM + logits
