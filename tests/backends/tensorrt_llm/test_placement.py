# SPDX-License-Identifier: Apache-2.0
"""The placement of engines: ids, ranks, environment and command, as in upstream's own launcher."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from tests.backends.contexts import make_context, make_pair
from trtspec.backends.tensorrt_llm.placement import gpu_loads, plan_placement

SERVER = (
    "tritonserver --model-repository={repository} --http-port={http_port} --grpc-port={grpc_port}"
    " --metrics-port={metrics_port}"
)


def closing(rank: int) -> str:
    return f"--disable-auto-complete-config --backend-config=python,shm-region-prefix-name=prefix{rank}_"


def test_single_gpu_engine_runs_in_leader_mode() -> None:
    placed = plan_placement(make_context())
    assert (placed.mode, placed.world_size, placed.environment) == ("leader", 1, {})
    assert " ".join(placed.command) == f"mpirun --allow-run-as-root -n 1 {SERVER} {closing(0)}"
    (model,) = placed.models
    assert (model.name, model.gpu_device_ids, model.participant_ids) == ("tensorrt_llm", (0,), ())
    assert (model.kv_cache_fraction, model.max_cache_tokens) == (0.9, 0)


def test_multi_gpu_engine_runs_in_leader_mode_with_one_rank_per_gpu() -> None:
    placed = plan_placement(make_context(target__parallel={"tensor": 2}, serving__placement={"target": [3, 1]}))
    assert (placed.mode, placed.world_size, placed.environment) == ("leader", 2, {})
    assert placed.models[0].gpu_device_ids == (3, 1)
    assert " ".join(placed.command) == (
        f"mpirun --allow-run-as-root -n 1 {SERVER} {closing(0)}"
        f" : -n 1 {SERVER} --model-control-mode=explicit --load-model=tensorrt_llm {closing(1)}"
    )


def test_engine_pair_runs_with_an_orchestrator_that_spawns_workers() -> None:
    case = make_pair(target__parallel={"tensor": 2}, serving__placement={"target": [1, 2], "draft": [0]})
    placed = plan_placement(case)
    assert (placed.mode, placed.world_size) == ("orchestrator", 1)
    assert placed.environment == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    assert placed.model("tensorrt_llm").gpu_device_ids == (1, 2)
    assert placed.model("tensorrt_llm_draft").gpu_device_ids == (0,)
    # the executor rejects participants that it did not start itself
    assert [model.participant_ids for model in placed.models] == [(), ()]
    assert " ".join(placed.command) == (
        f"mpirun --allow-run-as-root -n 1 {SERVER} --pinned-memory-pool-byte-size=0 --enable-peer-access=false"
        " --cuda-memory-pool-byte-size=0:0 --cuda-memory-pool-byte-size=1:0 --cuda-memory-pool-byte-size=2:0"
        f" {closing(0)}"
    )


def test_fast_logits_assign_separate_ranks_to_each_engine() -> None:
    """The example of upstream's README, with a target on two GPUs: rank 0 orchestrates, 1 drafts, 2 and 3 verify."""
    placement = {"target": [1, 2], "draft": [0]}
    case = make_pair(target__parallel={"tensor": 2}, serving__placement=placement, serving__fast_logits=True)
    placed = plan_placement(case)
    assert (placed.mode, placed.world_size, placed.fast_logits) == ("orchestrator", 4, True)
    assert placed.environment == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "0"}
    assert placed.model("tensorrt_llm_draft").participant_ids == (1,)
    assert placed.model("tensorrt_llm").participant_ids == (2, 3)
    applications = " ".join(placed.command).split(" : ")
    assert len(applications) == 4
    loads = "--model-control-mode=explicit --load-model=tensorrt_llm --load-model=tensorrt_llm_draft"
    assert applications[3] == f"-n 1 {SERVER} {loads} {closing(3)}"
    assert "pool" not in " ".join(placed.command)


def test_caches_on_one_gpu_have_the_same_token_limit() -> None:
    case = make_pair(engine__gpu="l40s")
    target, draft = plan_placement(case).models
    assert target.max_cache_tokens == draft.max_cache_tokens > 4 * 2048
    assert target.max_cache_tokens % 32 == 0
    (load,) = gpu_loads(case)
    taken = [target.max_cache_tokens * rank.cache_per_token for rank in load.ranks]
    left = load.memory - load.fixed
    assert sum(taken) <= 0.9 * left < sum(taken) + 32 * sum(rank.cache_per_token for rank in load.ranks)
    # whichever engine is loaded last finds enough memory within its fraction
    for first, last in (taken, taken[::-1]):
        assert last <= 0.9 * (left - first)


def test_caches_on_separate_gpus_have_no_token_limit() -> None:
    placed = plan_placement(make_pair(serving__placement={"target": [1], "draft": [0]}))
    assert [model.max_cache_tokens for model in placed.models] == [0, 0]


@pytest.mark.parametrize("changes", [{}, {"serving__fast_logits": True}])
def test_placement_is_json_serializable(changes: dict[str, Any]) -> None:
    document = json.loads(json.dumps(asdict(plan_placement(make_pair(**changes)))))
    assert set(document) == {"mode", "models", "fast_logits", "world_size", "environment", "command"}
