# SPDX-License-Identifier: Apache-2.0
"""The search on synthetic matchness with a known best set."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, count
from pathlib import Path
from random import Random

import pytest

from tests._support.tiny import make_llama
from trtspec.bench.layer_search import SearchBudget, SkipCandidate, draft_cost, ranked, rate, search
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.source_model import load_model
from trtspec.core.errors import TrtspecError
from trtspec.methods.layer_pruning import Skip
from trtspec.planning.prediction.speedup import expected_speedup

FREELY = SearchBudget(max_skip=1.0, iterations=10_000, seconds=1e9)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return load_model(make_llama(tmp_path_factory.mktemp("hf"), num_hidden_layers=6), "auto").config


def needing_some(skip: Skip) -> float:
    """Return a matchness that depends strongly on two sublayers, and on two others if both are skipped."""
    dear = {("attention", 2): 0.5, ("mlp", 3): 0.6}
    share = 1.0
    for sublayer in skip.sublayers:
        share *= dear.get(sublayer, 0.99 - 0.01 * sublayer[1])
    return share * (0.8 if {1, 4} <= set(skip.mlp) else 1.0)


def every_set(config: ModelConfig) -> list[SkipCandidate]:
    units = [(kind, layer) for kind in ("attention", "mlp") for layer in range(1, 5)]
    sets = [chosen for size in range(1, 9) for chosen in combinations(units, size)]
    skips = [
        Skip(**{kind: [n for each, n in chosen if each == kind] for kind in ("attention", "mlp")}) for chosen in sets
    ]
    return [rate(skip, needing_some(skip), config) for skip in skips]


@pytest.mark.parametrize("seed", range(5))
def test_search_finds_the_best_set_without_trying_all(seed: int, config: ModelConfig) -> None:
    tried = search(config, needing_some, FREELY, Random(seed))
    everything = every_set(config)
    assert len(tried) < len(everything) / 2
    assert ranked(tried)[0] == ranked(everything)[0]


def test_search_with_equal_seeds_tries_equal_sets(config: ModelConfig) -> None:
    limits = replace(FREELY, iterations=30)
    first, second, other = (search(config, needing_some, limits, Random(seed)) for seed in (3, 3, 4))
    assert first == second != other
    assert len(first) == 30


def test_search_respects_its_limits(config: ModelConfig) -> None:
    few = search(config, needing_some, replace(FREELY, max_skip=0.4), Random(0))
    assert max(len(candidate.skip.sublayers) for candidate in few) == 3  # of 8
    layers = search(config, needing_some, replace(FREELY, whole_layers=True), Random(0))
    assert all(candidate.skip.attention == candidate.skip.mlp for candidate in layers)
    assert len(layers) > 4
    seconds = count()
    assert len(search(config, needing_some, replace(FREELY, seconds=5), Random(0), clock=lambda: next(seconds))) == 6
    assert all({0, 5}.isdisjoint([*candidate.skip.attention, *candidate.skip.mlp]) for candidate in [*few, *layers])


def test_search_without_skippable_sublayers_is_an_error(config: ModelConfig) -> None:
    with pytest.raises(
        TrtspecError,
        match=r"there are 8 sublayers between the target's first and last layer, and --max-skip allows 10% of",
    ):
        search(config, needing_some, replace(FREELY, max_skip=0.1), Random(0))
    with pytest.raises(TrtspecError, match="there are 0 layers between"):
        search(replace(config, num_layers=2), needing_some, replace(FREELY, whole_layers=True), Random(0))


def test_draft_cost_matches_the_share_of_parameters_read(config: ModelConfig, tmp_path: Path) -> None:
    """The oracle counts the parameters of transformers' model without the skipped sublayers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(make_llama(tmp_path / "hf", num_hidden_layers=6))
    read = {
        name: parameter.numel()
        for name, parameter in model.named_parameters()
        if "norm" not in name and "embed_tokens" not in name
    }
    left_out = sum(
        size for name, size in read.items() if "layers.1.self_attn" in name or "layers.1.mlp" in name or "2.mlp" in name
    )
    cost = draft_cost(Skip(attention=[1], mlp=[1, 2]), config)
    assert cost == pytest.approx(1 - left_out / sum(read.values()))
    best = rate(Skip(attention=[1], mlp=[1, 2]), 0.9, config)
    assert best.speedup == max(expected_speedup(0.9, length, cost) for length in range(1, 26))
    assert best.speedup == expected_speedup(0.9, best.draft_len, cost)
