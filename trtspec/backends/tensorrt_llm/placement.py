# SPDX-License-Identifier: Apache-2.0
"""Placement of engines on GPUs and MPI ranks: the memory of each GPU, and the server's command line (launch.json).

A single engine is served in leader mode: one server process per rank, the first of which receives the requests. Two
engines need an orchestrator, which is a server process that spawns workers for both. If draft logits are sent from GPU
to GPU, the workers must be started by MPI: rank 0 is the orchestrator, followed by the draft's and the target's ranks.
NVIDIA/TensorRT-LLM:triton_backend/scripts/launch_triton_server.py@0b06796,
NVIDIA/TensorRT-LLM:examples/draft_target_model/README.md@11925f62

Memory is computed from configs. Weights and KV cache are exact. Activations are an estimate, because TensorRT decides
during the build which of them share memory (NVIDIA/TensorRT-LLM:docs/source/legacy/reference/memory.md@4946125f).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, prod
from typing import Literal

from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext, Role
from trtspec.backends.tensorrt_llm.specs import TOKENS_PER_BLOCK, EngineSpec, engine_specs
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.sharding import ParallelMapping, shard
from trtspec.methods.base import DraftHead
from trtspec.serving.triton.names import ENGINE_MODELS

ITEM = 2  # bytes of a number in 16 bits
FP8_ITEM = 1
FLOAT32_ITEM = 4

LAUNCH = "launch.json"

# The first variable makes the server an orchestrator, the second makes it spawn its own workers.
ENVIRONMENT = ("TRTLLM_ORCHESTRATOR", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES")

# An orchestrator reserves no GPU memory, because its workers need it.
NO_POOLS = ("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false")


@dataclass(frozen=True)
class PlacedModel:
    """An engine's model in the repository: the GPUs of its ranks, in order, and its ranks among all MPI processes.

    `participant_ids` are set only for fast logits. The KV cache uses the share `kv_cache_fraction` of the memory that
    is free when the engine is loaded, but at most `max_cache_tokens` unless that is 0. With `chunked_context`, prompts
    may be longer than a step.
    """

    name: str
    gpu_device_ids: tuple[int, ...]
    participant_ids: tuple[int, ...]
    kv_cache_fraction: float
    max_cache_tokens: int = 0
    chunked_context: bool = False


@dataclass(frozen=True)
class EnginePlacement:
    """The launch configuration; `command` has placeholders {repository}, {http_port}, {grpc_port}, {metrics_port}."""

    mode: Literal["leader", "orchestrator"]
    models: tuple[PlacedModel, ...]
    fast_logits: bool
    world_size: int
    environment: dict[str, str]
    command: tuple[str, ...]

    def model(self, name: str) -> PlacedModel:
        return next(model for model in self.models if model.name == name)


def plan_placement(context: PlanContext) -> EnginePlacement:
    """Return the placement of a recipe's engines; invalid placements are reported by the rules."""
    specs, serving = engine_specs(context), context.recipe.serving
    is_pair = len(specs) > 1
    fast_logits = serving.fast_logits and is_pair
    ranks: dict[str, tuple[int, ...]] = {}  # MPI ranks: 0 is the orchestrator, then the draft's ranks
    for spec in reversed(specs) if fast_logits else ():
        first = 1 + sum(map(len, ranks.values()))
        ranks[spec.role] = tuple(range(first, first + spec.mapping.ranks))
    # A cache takes its fraction of the free memory when its engine is loaded, so the engine that is loaded first would
    # leave too little for the other. A number of tokens does not depend on the order.
    shared = [load.cache_tokens for load in gpu_loads(context) if len(load.ranks) > 1 and load.memory]
    limit = min(shared, default=0) if is_pair else 0
    models = tuple(
        PlacedModel(
            name=ENGINE_MODELS[spec.role],
            gpu_device_ids=spec.gpu_ids,
            participant_ids=ranks.get(spec.role, ()),
            kv_cache_fraction=serving.kv_cache_fraction,
            max_cache_tokens=limit,
            chunked_context=spec.chunks_prompts,
        )
        for spec in specs
    )
    spawns = is_pair and not fast_logits
    world_size = 1 + sum(map(len, ranks.values())) if fast_logits else 1 if spawns else specs[0].mapping.ranks
    pools = no_pools(gpu_id for spec in specs for gpu_id in spec.gpu_ids) if spawns else ()
    return EnginePlacement(
        mode="orchestrator" if is_pair else "leader",
        models=models,
        fast_logits=fast_logits,
        world_size=world_size,
        environment=dict(zip(ENVIRONMENT, ("1", "1" if spawns else "0"), strict=True)) if is_pair else {},
        command=_command(world_size, [model.name for model in models], pools),
    )


def no_pools(gpu_ids: Iterable[int]) -> tuple[str, ...]:
    """Return the server options that disable CUDA memory pools on all GPUs up to the highest id."""
    return (*NO_POOLS, *(f"--cuda-memory-pool-byte-size={gpu_id}:0" for gpu_id in range(max(gpu_ids) + 1)))


def _command(world_size: int, models: list[str], pools: tuple[str, ...]) -> tuple[str, ...]:
    """Return an mpirun command with one tritonserver per rank; ranks after the first load only the engines."""
    words = ["mpirun", "--allow-run-as-root"]
    for rank in range(world_size):
        words += [":"] if rank else []
        words += ["-n", "1", "tritonserver", "--model-repository={repository}"]
        words += ["--http-port={http_port}", "--grpc-port={grpc_port}", "--metrics-port={metrics_port}"]
        words += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in models)] if rank else []
        words += [*pools, "--disable-auto-complete-config"]
        words += [f"--backend-config=python,shm-region-prefix-name=prefix{rank}_"]
    return tuple(words)


@dataclass(frozen=True)
class RankLoad:
    """The memory of one engine rank on its GPU, in bytes; `cache_tokens` is the capacity of its KV cache."""

    role: Role
    gpu_id: int
    weights: int
    cache_per_token: int
    cache_tokens: int
    activations: int

    @property
    def cache(self) -> int:
        return self.cache_per_token * self.cache_tokens


@dataclass(frozen=True)
class GpuLoad:
    """The memory of all engine ranks on one GPU, in bytes; `memory` is 0 if the GPU is unknown.

    The KV caches together use at most the share `fraction` of the memory that weights and activations leave free.
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
        """Return the maximum bytes of all KV caches together."""
        return int(max(0, self.memory - self.fixed) * self.fraction)

    @property
    def cache_tokens(self) -> int:
        """Return the capacity of each KV cache in tokens; all are equal, because every request is in all caches."""
        per_token = sum(rank.cache_per_token for rank in self.ranks)
        return self.cache_limit // per_token // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK

    def plan(self) -> MemoryPlan:
        target = [rank for rank in self.ranks if rank.role == "target"]
        return MemoryPlan(
            id=str(self.id),
            weights_bytes=sum(rank.weights for rank in target),
            kv_cache_bytes=sum(rank.cache for rank in target),
            draft_bytes=sum(rank.weights + rank.cache for rank in self.ranks if rank.role == "draft"),
            activation_bytes=sum(rank.activations for rank in self.ranks),
            limit_bytes=self.fixed + self.cache_limit if self.memory > self.fixed else self.memory,
        )


def memory(context: PlanContext) -> list[MemoryPlan]:
    """Return a memory plan for each GPU, by id; raise ValueError for a target without a family.

    Each KV cache has space for `max_batch_size` texts of the engine's maximum length. The limit is the GPU's memory
    without the part that the KV caches must leave free (`serving.kv_cache_fraction`).
    """
    return [load.plan() for load in gpu_loads(context)]


def gpu_loads(context: PlanContext) -> list[GpuLoad]:
    """Return the memory of the engines on each GPU that they use, by id."""
    gpu = context.gpu
    found: dict[int, list[RankLoad]] = {}
    for rank in _rank_loads(context):
        found.setdefault(rank.gpu_id, []).append(rank)
    fraction = context.recipe.serving.kv_cache_fraction
    return [GpuLoad(gpu_id, tuple(found[gpu_id]), gpu.memory_bytes if gpu else 0, fraction) for gpu_id in sorted(found)]


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
    """Return the bytes of a rank's share of the model, where only the layers' matrices may have less than 16 bits."""
    config, mapping = spec.config, spec.mapping
    item = ITEM if spec.quant_format.weights == "none" else FP8_ITEM
    total = len(mapping.layers(stage, config.num_layers)) * _layer_weights(config, mapping, item)
    table = config.vocab_size * config.hidden_size * ITEM
    shared_rows = ceil(config.vocab_size / mapping.tensor) * config.hidden_size * ITEM
    embedding = shared_rows if mapping.embedding else table
    # a tied LM head is stored once if both matrices are divided in the same way (models/modeling_utils.py)
    shares_head = config.tied_embeddings and mapping.pipeline == 1 and embedding == shared_rows
    if stage == 0:
        total += embedding
    if stage == mapping.pipeline - 1:
        total += config.hidden_size * ITEM + (0 if shares_head else shared_rows)
    return total


def _layer_weights(config: ModelConfig, mapping: ParallelMapping, item: int) -> int:
    """Return the bytes of a rank's share of one layer; `item` is the bytes per element of its matrices.

    KV heads that are fewer than the ranks are replicated. Norms and biases have 16 bits, the router has 32.
    """
    hidden, size, inner = config.hidden_size, config.head_size, config.intermediate_size
    heads, kv_heads = config.num_heads // mapping.tensor, _kv_heads(config, mapping)
    attention = (2 * heads + 2 * kv_heads) * size * hidden
    mlp = 3 * hidden * (inner // mapping.tensor) * max(1, config.num_experts)
    biases = (heads + 2 * kv_heads) * size * config.attn_bias + hidden * config.dense_bias
    biases += (2 * inner // mapping.tensor + hidden) * config.mlp_bias
    norms = 2 * hidden + sum(config.qk_norm_sizes)
    return (attention + mlp) * item + (norms + biases) * ITEM + config.num_experts * hidden * FLOAT32_ITEM


def _kv_heads(config: ModelConfig, mapping: ParallelMapping) -> int:
    return max(1, config.num_kv_heads // mapping.tensor)


def _head_weights(spec: EngineSpec, stage: int, head: DraftHead | None) -> int:
    """Return the bytes of a rank's share of a draft head inside the target's engine, in 16 bits and without sharing."""
    rules = [*head.rules, *head.borrowed] if head else []
    shares = [shard(rule, spec.mapping, spec.config.num_layers) for rule in rules]
    mine = spec.mapping.stage_ranks(stage)
    return sum(prod(share.shape) for share in shares if share.ranks == mine) * ITEM


def _cache_per_token(spec: EngineSpec, stage: int, head: DraftHead | None) -> int:
    """Return the KV-cache bytes per token on a rank, including the layers of a draft head."""
    config, mapping = spec.config, spec.mapping
    item = ITEM if spec.quant_format.kv_cache == "none" else FP8_ITEM
    layers = len(mapping.layers(stage, config.num_layers))
    if head and stage == mapping.pipeline - 1:
        layers += sum(model.num_layers for model in head.models.values())
    return 2 * layers * _kv_heads(config, mapping) * config.head_size * item


def _activations(spec: EngineSpec, stage: int) -> int:
    """Return estimated activation bytes: the largest layer for a step's tokens, and the logits of verified tokens.

    Each rank has a layer's hidden state, residual and norm in full, and a share of queries, keys, values and both MLP
    branches, all in 16 bits. Logits are float32 and are stored twice, in the engine and in the sampler.
    """
    config, mapping = spec.config, spec.mapping
    heads = config.num_heads // mapping.tensor + 2 * _kv_heads(config, mapping)
    mlp = 3 * config.intermediate_size // mapping.tensor * max(1, config.experts_per_token)
    width = 3 * config.hidden_size + heads * config.head_size + mlp
    logits = 2 * spec.least_num_tokens * config.vocab_size * FLOAT32_ITEM if stage == mapping.pipeline - 1 else 0
    return spec.max_num_tokens * width * ITEM + logits
