# SPDX-License-Identifier: Apache-2.0
"""The memory of engines on each GPU, compared with converted files, transformers' cache and published sizes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, make_model, reference_model
from tests.backends.contexts import make_context, make_pair
from tests.methods.eagle_heads import random_head, save_head
from tests.methods.heads import random_heads, save_heads
from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.placement import gpu_loads, memory
from trtspec.checkpoints.rules import find_family
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.methods.draft_head import load_head

GIB = 1 << 30
ONE_RANK = ParallelMapping()
DIVISIONS = [
    ParallelMapping(),
    ParallelMapping(2),
    ParallelMapping(4),
    ParallelMapping(2, embedding=False),
    ParallelMapping(1, 2),
    ParallelMapping(2, 2),
]


def plan_of(case: PlanContext, gpu: int = 0) -> MemoryPlan:
    return next(plan for plan in memory(case) if plan.id == str(gpu))


def tiny_case(root: Path, mapping: ParallelMapping = ONE_RANK, **changes: Any) -> PlanContext:
    """Return the context of a checkpoint on disk."""
    source = load_source(root)
    config = find_family(source)[1].read(source.reader, "auto")
    parallel = {"tensor": mapping.tensor, "pipeline": mapping.pipeline, "embedding": mapping.embedding}
    return make_context(config, target__parallel=parallel, engine__max_seq_len=256, **changes)


@pytest.mark.slow
@pytest.mark.parametrize("mapping", DIVISIONS, ids=str)
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mixtral"])
def test_weight_memory_equals_the_converted_files(family: str, mapping: ParallelMapping, tmp_path: Path) -> None:
    root = make_model(tmp_path / "model", family, vocab_size=66, num_hidden_layers=3)
    converted = load_checkpoint(convert(root, tmp_path / "out", mapping=mapping))
    assert [plan.weights_bytes for plan in memory(tiny_case(root, mapping))] == converted.nbytes_by_rank


@pytest.mark.parametrize(
    ("mapping", "shared"), [(ParallelMapping(), True), (ParallelMapping(2), True), (ParallelMapping(1, 2), False)]
)
def test_tied_head_on_the_rank_of_the_embedding_is_counted_once(
    mapping: ParallelMapping, shared: bool, tmp_path: Path
) -> None:
    root = make_model(tmp_path / "model", "llama", tie_word_embeddings=True)
    converted = load_checkpoint(convert(root, tmp_path / "out", mapping=mapping))
    head = 64 * 32 * 2 // mapping.tensor
    expected = [nbytes - head * shared for nbytes in converted.nbytes_by_rank]
    assert [plan.weights_bytes for plan in memory(tiny_case(root, mapping))] == expected


def test_kv_cache_size_equals_that_of_transformers(tmp_path: Path) -> None:
    import torch

    root = make_model(tmp_path / "model", "llama")
    out = reference_model(root, "bfloat16")(torch.arange(10)[None], use_cache=True)
    nbytes = sum(
        part.numel() * part.element_size() for layer in out.past_key_values.layers for part in layer_parts(layer)
    )
    (load,) = gpu_loads(tiny_case(root))
    (rank,) = load.ranks
    assert rank.cache_per_token * 10 == nbytes


def layer_parts(layer: Any) -> tuple[Any, Any]:
    return layer.keys, layer.values


def test_memory_of_llama_3_matches_published_sizes() -> None:
    """8.03 and 70.6 billion parameters, and 128 KiB of cache for a token of Llama 3.1 8B in 16 bits."""
    plan = plan_of(make_context())
    assert plan.weights_bytes == pytest.approx(2 * 8.03e9, rel=1e-3)
    assert plan.kv_cache_bytes == 4 * 2048 * 128 * 1024
    eight = make_context("llama-3.3-70b", target__parallel={"tensor": 8}, target__quantization={"weights": "fp8"})
    assert sum(plan.weights_bytes for plan in memory(eight)) == pytest.approx(70.6e9 + 2.1e9, rel=2e-2)


def test_kv_cache_size_depends_on_format_and_draft_tokens() -> None:
    plain = plan_of(make_context())
    half = plan_of(make_context(target__quantization={"weights": "fp8", "kv_cache": "fp8"}))
    assert half.kv_cache_bytes * 2 == plain.kv_cache_bytes
    # 63 more draft tokens, in whole blocks of 32
    medusa = plan_of(make_context("vicuna-7b", speculation__method="medusa"))
    assert medusa.kv_cache_bytes * 2048 == plan_of(make_context("vicuna-7b")).kv_cache_bytes * 2112


def test_kv_head_shared_by_ranks_is_counted_on_each_rank() -> None:
    shared = make_context("qwen2.5-7b", target__parallel={"tensor": 4})
    more = make_context("qwen2.5-7b", target__parallel={"tensor": 7})
    assert plan_of(more).kv_cache_bytes == plan_of(shared).kv_cache_bytes


@pytest.mark.slow
@pytest.mark.parametrize("mapping", [ParallelMapping(), ParallelMapping(2), ParallelMapping(2, 2)], ids=str)
@pytest.mark.parametrize(
    ("method", "options"), [("medusa", {"choices": [[0], [0, 0]]}), ("eagle", {"choices": [[0], [1], [0, 0]]})]
)
def test_internal_drafter_memory_equals_the_converted_files(
    method: str, options: dict[str, Any], mapping: ParallelMapping, tmp_path: Path
) -> None:
    root = make_model(tmp_path / "model", "llama")
    source = (
        save_heads(tmp_path / "part", random_heads())
        if method == "medusa"
        else save_head(tmp_path / "part", random_head())
    )
    how: dict[str, Any] = {"load_head": lambda target: load_head(source, method, options, target), "mapping": mapping}
    converted = load_checkpoint(convert(root, tmp_path / "out", **how))
    head = load_head(source, method, options, load_model(root, "auto"))
    case = tiny_case(root, mapping, speculation__method=method, speculation__options=options)
    assert [plan.weights_bytes for plan in memory(replace(case, head=head))] == converted.nbytes_by_rank


def test_eagle_drafter_adds_a_kv_cache_layer(tmp_path: Path) -> None:
    root = make_model(tmp_path / "model", "llama", num_hidden_layers=2)
    options = {"choices": [[0], [0, 0]]}
    head = load_head(save_head(tmp_path / "net", random_head()), "eagle", options, load_model(root, "auto"))
    case = tiny_case(root, speculation__method="eagle", speculation__options=options)
    ((with_head,), (alone,)) = (
        load.ranks for load in (*gpu_loads(replace(case, head=head)), *gpu_loads(tiny_case(root)))
    )
    assert with_head.cache_per_token * 2 == alone.cache_per_token * 3


def test_memory_is_counted_on_the_gpus_of_the_placement() -> None:
    placed = make_pair(target__parallel={"tensor": 2}, serving__placement={"target": [2, 3], "draft": [3]})
    plans = memory(placed)
    assert [plan.id for plan in plans] == ["2", "3"]
    assert plans[0].draft_bytes == 0
    assert plans[1].draft_bytes == pytest.approx(2 * 1.24e9 + 4 * 2048 * 32 * 1024, rel=1e-2)
    assert plans[1].weights_bytes == plans[0].weights_bytes


def test_memory_limit_applies_the_kv_cache_fraction_to_free_memory() -> None:
    plan = plan_of(make_context(serving__kv_cache_fraction=0.5))
    fixed = plan.weights_bytes + plan.activation_bytes
    assert plan.limit_bytes == pytest.approx(fixed + 0.5 * (79 * GIB - fixed), abs=1)
    assert plan_of(make_context(engine__gpu=None)).limit_bytes == 0


def test_activation_memory_grows_with_max_num_tokens() -> None:
    small, large = (plan_of(make_context(engine__max_num_tokens=tokens)).activation_bytes for tokens in (2048, 4096))
    # 3 x 4096 hidden, 48 heads of 128, 3 x 14336 in the MLP, 2 bytes each
    assert large - small == 2048 * (3 * 4096 + 48 * 128 + 3 * 14336) * 2
