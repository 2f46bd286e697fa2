# SPDX-License-Identifier: Apache-2.0
"""Properties of sharding: each element is on exactly the ranks that need it, and joined ranks restore the tensor."""

from __future__ import annotations

from math import prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests._support.configs import model_config
from tests.checkpoints.division import divided
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule
from trtspec.checkpoints.sharding import ParallelMapping, ShardedTarget, distinct_regions, mapping_problems, shard
from trtspec.families.decoder import decoder_rules
from trtspec.families.mixtral import FAMILY as MIXTRAL


@st.composite
def models(draw: st.DrawFn) -> tuple[ModelConfig, ParallelMapping]:
    """Return a small model, dense or with experts, and a mapping that divides it."""
    tensor, kv_heads = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4, 8]))
    layers, experts = draw(st.integers(1, 7)), draw(st.sampled_from([0, 0, 2, 3]))
    config = model_config(
        num_layers=layers,
        num_kv_heads=kv_heads,
        num_heads=max(kv_heads, tensor) * draw(st.integers(1, 2)),
        head_size=draw(st.sampled_from([2, 4])),
        hidden_size=draw(st.integers(1, 12)),
        intermediate_size=tensor * draw(st.integers(1, 3)),
        vocab_size=draw(st.integers(1, 40)),
        num_experts=experts,
        experts_per_token=min(experts, 1),
        attn_bias=draw(st.booleans()),
        dense_bias=draw(st.booleans()),
        mlp_bias=draw(st.booleans()) and not experts,
        qk_norm=draw(st.booleans()),
        tied_embeddings=draw(st.booleans()),
        hidden_act=draw(st.sampled_from(["silu", "silu" if experts else "swiglu"])),
        inner_norms=draw(st.booleans()),
    )
    return config, ParallelMapping(tensor, draw(st.integers(1, min(4, layers))))


def rules_of(config: ModelConfig) -> list[Rule]:
    """Return the rules of a model."""
    return MIXTRAL.rules(config) if config.num_experts else decoder_rules(config)


def numbered(rule: Rule) -> list[torch.Tensor]:
    """Return a rule's source tensors with distinct elements; 0 is reserved for padding."""
    ends = torch.tensor([prod(source.shape) for source in rule.sources]).cumsum(0).tolist()
    return [
        torch.arange(end - prod(source.shape) + 1, end + 1).view(source.shape)
        for source, end in zip(rule.sources, ends, strict=True)
    ]


def placed(sharded: ShardedTarget, parts: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return each rank's tensor, filled place by place; no element is written twice."""
    width = prod(sharded.shape[1 + (len(sharded.shape) == 3) :])
    filled = {rank: torch.zeros(prod(sharded.shape) // width, width, dtype=torch.int64) for rank in sharded.ranks}
    for places, part in zip(sharded.places, parts, strict=True):
        matrix = part.reshape(len(part), -1)
        for place in places:
            there = filled[place.rank][place.at_row : place.at_row + len(place.rows)]
            assert there.shape == (len(place.rows), len(place.columns))
            assert not there.any()
            there[:] = matrix[place.rows.start : place.rows.stop, place.columns.start : place.columns.stop]
    return {rank: tensor.view(sharded.shape) for rank, tensor in filled.items()}


def whole(rule: Rule) -> torch.Tensor:
    """Return a rule's target for a single rank."""
    joined = torch.cat(numbered(rule))
    return joined.unflatten(0, (rule.experts, -1)) if rule.experts else joined


@pytest.mark.slow
@given(models())
@settings(deadline=None, max_examples=60)
def test_sharded_tensors_match_a_division_by_torch(model: tuple[ModelConfig, ParallelMapping]) -> None:
    config, mapping = model
    ours: list[dict[str, torch.Tensor]] = [{} for _ in range(mapping.ranks)]
    for rule in rules_of(config):
        sharded = shard(rule, mapping, config.num_layers)
        for rank, tensor in placed(sharded, numbered(rule)).items():
            assert sharded.name not in ours[rank]
            ours[rank][sharded.name] = tensor
    everything = {rule.name: whole(rule) for rule in rules_of(config)}
    sizes = (config.num_heads, config.num_kv_heads, config.num_layers)
    branches = 2 if config.hidden_act == "swiglu" else 1
    theirs = divided(everything, *sizes, mapping.tensor, mapping.pipeline, branches)
    for mine, expected in zip(ours, theirs, strict=True):
        assert mine.keys() == expected.keys()
        for name, tensor in mine.items():
            assert torch.equal(tensor, expected[name]), name


@pytest.mark.slow
@given(models())
@settings(deadline=None, max_examples=60)
def test_joined_regions_restore_each_tensor_without_overlap(model: tuple[ModelConfig, ParallelMapping]) -> None:
    config, mapping = model
    for rule in rules_of(config):
        sharded, parts = shard(rule, mapping, config.num_layers), numbered(rule)
        ranks = placed(sharded, parts)
        joined = [torch.zeros(len(part), prod(part.shape[1:]), dtype=torch.int64) for part in parts]
        for number, place in distinct_regions(sharded):
            matrix = ranks[place.rank].reshape(-1, len(place.columns))
            area = joined[number][place.rows.start : place.rows.stop, place.columns.start : place.columns.stop]
            assert not area.any()
            area[:] = matrix[place.at_row : place.at_row + len(place.rows)]
        for part, tensor in zip(parts, joined, strict=True):
            assert torch.equal(tensor.view(part.shape), part), rule.name


@given(layers=st.integers(1, 100), stages=st.integers(1, 8))
def test_uneven_pipeline_stages_match_tensor_split(layers: int, stages: int) -> None:
    mapping = ParallelMapping(2, stages)
    expected = [part.tolist() for part in torch.tensor_split(torch.arange(layers), stages)]
    assert [list(mapping.layers(stage, layers)) for stage in range(stages)] == expected
    for stage, part in enumerate(expected):
        assert [mapping.locate(layer, layers) for layer in part] == [(stage, local) for local in range(len(part))]


def test_ranks_are_numbered_within_a_stage_first() -> None:
    mapping = ParallelMapping(tensor=4, pipeline=2)
    assert mapping.ranks == 8
    assert [list(mapping.stage_ranks(stage)) for stage in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_undivided_embedding_is_replicated_on_the_first_stage() -> None:
    config, (embedding, *_, head) = model_config(), decoder_rules(model_config())
    mapping = ParallelMapping(tensor=4, pipeline=2, embedding=False)
    sharded = shard(embedding, mapping, config.num_layers)
    assert (sharded.shape, sharded.ranks) == ((50, 12), range(4))
    assert all(place.rows == range(50) for places in sharded.places for place in places)
    # the head is divided nevertheless, and padded
    assert shard(head, mapping, config.num_layers).shape == (13, 12)


def problems(**fields: int) -> list[str]:
    """Return the problems of dividing a model of these sizes over 4 ranks and 3 stages."""
    return mapping_problems(model_config(**{"num_layers": 3} | fields), ParallelMapping(4, 3))


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, []),
        ({"num_heads": 6}, ["6 attention heads cannot be divided by 4 ranks"]),
        ({"intermediate_size": 10}, ["10 MLP columns cannot be divided by 4 ranks"]),
        ({"num_heads": 24, "num_kv_heads": 3}, ["3 key heads can neither be divided by nor shared among 4 ranks"]),
        ({"num_heads": 24, "num_kv_heads": 6}, ["6 key heads can neither be divided by nor shared among 4 ranks"]),
        ({"num_kv_heads": 1}, []),
        ({"num_heads": 8, "num_kv_heads": 8}, []),
        ({"num_layers": 2}, ["2 layers cannot be divided over 3 pipeline stages"]),
        ({"vocab_size": 7}, []),
    ],
)
def test_indivisible_sizes_are_reported(fields: dict[str, int], expected: list[str]) -> None:
    assert problems(**fields) == expected


def test_all_mapping_problems_are_reported_together() -> None:
    assert len(problems(num_heads=6, intermediate_size=10, num_kv_heads=3, num_layers=2)) == 4


def test_more_than_512_ranks_are_rejected() -> None:
    config = model_config(num_layers=64, num_heads=64, num_kv_heads=64, intermediate_size=64)
    assert mapping_problems(config, ParallelMapping(64, 8)) == []
    assert mapping_problems(config, ParallelMapping(64, 9)) == ["576 ranks; at most 512 are supported"]
