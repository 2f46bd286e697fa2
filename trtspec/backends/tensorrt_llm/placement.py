# SPDX-License-Identifier: Apache-2.0
"""Assign GPUs and MPI ranks to engines, and the command that starts the server accordingly; saved as launch.json.

A single engine is served in leader mode: one server process per rank, the first of which receives the requests. Two
engines need an orchestrator: one server process that spawns workers for both. Draft logits that are sent from GPU to
GPU need workers that MPI started: rank 0 is the orchestrator, followed by the draft's ranks and the target's.
NVIDIA/TensorRT-LLM:triton_backend/scripts/launch_triton_server.py@0b06796,
NVIDIA/TensorRT-LLM:examples/draft_target_model/README.md@11925f62
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.memory import gpu_loads
from trtspec.backends.tensorrt_llm.specs import EngineSpec, engine_specs
from trtspec.serving.triton.names import ENGINE_MODELS

LAUNCH = "launch.json"

# The first makes the server an orchestrator, the second lets it spawn its workers itself.
ENVIRONMENT = ("TRTLLM_ORCHESTRATOR", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES")

# An orchestrator reserves no GPU memory, because its workers need it.
NO_POOLS = ("--pinned-memory-pool-byte-size=0", "--enable-peer-access=false")


@dataclass(frozen=True)
class PlacedModel:
    """A model of the repository: the GPUs of its ranks, in order, and its ranks among all MPI processes.

    `participant_ids` are needed only for fast logits. Its KV cache takes `kv_cache_fraction` of the memory that is free
    when the engine is loaded, at most `max_cache_tokens`; 0 is unlimited. With `chunked_context` prompts may be longer
    than a step.
    """

    name: str
    gpu_device_ids: tuple[int, ...]
    participant_ids: tuple[int, ...]
    kv_cache_fraction: float
    max_cache_tokens: int = 0
    chunked_context: bool = False


@dataclass(frozen=True)
class EnginePlacement:
    """The launch of a repository; `command` contains {repository}, {http_port}, {grpc_port} and {metrics_port}."""

    mode: Literal["leader", "orchestrator"]
    models: tuple[PlacedModel, ...]
    fast_logits: bool
    world_size: int
    environment: dict[str, str]
    command: tuple[str, ...]

    def model(self, name: str) -> PlacedModel:
        return next(model for model in self.models if model.name == name)


def plan_placement(context: PlanContext) -> EnginePlacement:
    """Return the placement of a context's engines; the rules report invalid placements."""
    specs = engine_specs(context)
    fast_logits = context.recipe.serving.fast_logits and len(specs) > 1
    ranks = _participants(specs) if fast_logits else {}
    limit = _shared_cache_tokens(context) if len(specs) > 1 else 0
    models = tuple(
        PlacedModel(
            name=ENGINE_MODELS[spec.role],
            gpu_device_ids=spec.gpu_ids,
            participant_ids=ranks.get(spec.role, ()),
            kv_cache_fraction=context.recipe.serving.kv_cache_fraction,
            max_cache_tokens=limit,
            chunked_context=spec.chunks_prompts,
        )
        for spec in specs
    )
    spawns = len(specs) > 1 and not fast_logits
    world_size = 1 + sum(map(len, ranks.values())) if fast_logits else 1 if spawns else specs[0].mapping.ranks
    environment = {}
    if len(specs) > 1:
        environment = dict(zip(ENVIRONMENT, ("1", "1" if spawns else "0"), strict=True))
    pools = no_pools(gpu_id for spec in specs for gpu_id in spec.gpu_ids) if spawns else ()
    return EnginePlacement(
        mode="orchestrator" if len(specs) > 1 else "leader",
        models=models,
        fast_logits=fast_logits,
        world_size=world_size,
        environment=environment,
        command=_command(world_size, [model.name for model in models], pools),
    )


def _participants(specs: list[EngineSpec]) -> dict[str, tuple[int, ...]]:
    """Return the MPI ranks of each engine: rank 0 is the orchestrator, the draft's ranks are next."""
    found: dict[str, tuple[int, ...]] = {}
    first = 1
    for spec in reversed(specs):
        found[spec.role] = tuple(range(first, first + spec.mapping.ranks))
        first += spec.mapping.ranks
    return found


def _shared_cache_tokens(context: PlanContext) -> int:
    """Return the capacity of each cache in tokens if engines share a GPU, 0 if none do or the GPU is unknown.

    A cache takes its fraction of the free memory when its engine is loaded, so the engine that is loaded first would
    leave too little for the other. A number of tokens does not depend on the order.
    """
    return min((load.cache_tokens for load in gpu_loads(context) if len(load.ranks) > 1 and load.memory), default=0)


def no_pools(gpu_ids: Iterable[int]) -> tuple[str, ...]:
    """Return the server options that disable memory pools on the GPUs up to the highest of these ids."""
    return (*NO_POOLS, *(f"--cuda-memory-pool-byte-size={gpu_id}:0" for gpu_id in range(max(gpu_ids) + 1)))


def _command(world_size: int, models: list[str], pools: tuple[str, ...]) -> tuple[str, ...]:
    """Return mpirun with one application per rank; all ranks except the first load only the engines' models."""
    words = ["mpirun", "--allow-run-as-root"]
    for rank in range(world_size):
        words += [":"] if rank else []
        words += ["-n", "1", "tritonserver", "--model-repository={repository}"]
        words += ["--http-port={http_port}", "--grpc-port={grpc_port}", "--metrics-port={metrics_port}"]
        words += ["--model-control-mode=explicit", *(f"--load-model={name}" for name in models)] if rank else []
        words += [*pools, "--disable-auto-complete-config"]
        words += [f"--backend-config=python,shm-region-prefix-name=prefix{rank}_"]
    return tuple(words)
