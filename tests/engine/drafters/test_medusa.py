# SPDX-License-Identifier: Apache-2.0
"""Medusa in the engine: lossless, and drafting and accepting by the formula, node by node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests._support.tiny import convert, greedy, make_model, reference_model
from tests.engine.lossless import (
    DISTRIBUTION_SHAPE,
    SHAPES,
    assert_greedy_text,
    assert_targets_distribution,
    assert_wrong_rule_is_seen,
    by_position,
    random_prompts,
)
from tests.methods.heads import (
    Tensors,
    convert_with,
    hidden_states,
    knowing_heads,
    logits_of,
    random_heads,
    save_heads,
)
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import CheckpointError
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, Stats
from trtspec.engine.settings import EngineSettings
from trtspec.methods.tree_choices import MEDUSA_CHOICES, Choice

pytestmark = pytest.mark.integration

# Levels of different widths, ranks left out, and a leaf on every level.
CHOICES: tuple[Choice, ...] = ((0,), (1,), (3,), (0, 0), (0, 2), (1, 0), (0, 0, 1), (1, 0, 0), (1, 0, 0, 0))
WRITTEN = [list(choice) for choice in CHOICES]
SMALL = [[0], [1], [0, 0], [0, 2], [1, 1]]  # for a vocabulary of three
NEW_TOKENS = 40


def make_engine(target: Path, choices: Any, **settings: Any) -> Engine:
    chosen = {"max_batch_size": 8, "max_seq_len": 128, "device": "cpu"} | settings
    options = {"choices": choices, **chosen.pop("options", {})}
    return Engine(target, None, EngineSettings("medusa", options=options, **chosen))


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_greedy_text_with_random_heads_equals_transformers(shape: dict[str, Any], tmp_path: Path) -> None:
    """The heads are random and therefore hardly ever right."""
    source = make_model(tmp_path / "hf", **shape)
    heads = save_heads(tmp_path / "heads", random_heads(5, num_layers=2))
    engine = make_engine(convert_with(source, heads, tmp_path / "target"), "mc_sim_7b_63")
    stats = assert_greedy_text(engine, reference_model(source))
    engine.close()
    assert stats[0].drafted > 63 * 10


class Knowing:
    """A target, and heads that were fitted to its own texts."""

    def __init__(self, root: Path) -> None:
        self.source = make_model(root / "hf", "llama")
        self.model = reference_model(self.source)
        self.prompts = random_prompts(8)
        self.texts = [[*prompt, *greedy(self.model, list(prompt), NEW_TOKENS + 8)] for prompt in self.prompts]
        self.heads = knowing_heads(self.model, self.texts, 4)
        self.head_root = save_heads(root / "heads", self.heads)
        self.target = convert_with(self.source, self.head_root, root / "target", WRITTEN)

    def expected(self, row: int, new_tokens: int, choices: tuple[Choice, ...]) -> tuple[list[int], Stats]:
        """Return transformers' greedy text after a prompt, and the simulated statistics of Medusa for it."""
        start = len(self.prompts[row])
        text = self.texts[row][: start + new_tokens]
        return text[start:], simulate(hidden_states(self.model, text), self.heads, choices, start, text)


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Knowing:
    return Knowing(tmp_path_factory.mktemp("knowing"))


def simulate(states: torch.Tensor, heads: Tensors, choices: tuple[Choice, ...], prompt: int, text: list[int]) -> Stats:
    """Simulate Medusa's steps through a text from the hidden states of all its tokens, with one path per step."""
    depth, width = max(map(len, choices), default=0), max(map(max, choices), default=0) + 1
    ranked = [logits_of(heads, head, states).topk(width).indices.tolist() for head in range(depth)]
    drafted, draft_steps, lengths = 0, 0, list[int]()
    at = prompt + 1  # the prompt's end gives the first token without a step
    while at < len(text):
        limit = min(depth, len(text) - at - 1)
        path: Choice = ()
        while len(path) < limit:
            ranks = ranked[len(path)][at - 2]
            wanted = text[at + len(path)]
            longer = (*path, ranks.index(wanted) if wanted in ranks else -1)
            if longer not in choices:
                break
            path = longer
        drafted += sum(len(choice) <= limit for choice in choices)
        draft_steps += limit > 0
        lengths.append(len(path))
        at += len(path) + 1
    return Stats(prompt, len(text) - prompt, drafted, sum(lengths), len(lengths), by_position(lengths), draft_steps)


@pytest.mark.parametrize("choices", [WRITTEN, "vicuna_13b_stage2"], ids=["written", "named"])
@pytest.mark.parametrize("settings", [{}, {"max_batch_size": 3}, {"max_num_tokens": 16}], ids=["", "few", "chunks"])
def test_text_and_stats_equal_the_reference_implementation(
    choices: Any, settings: dict[str, int], knowing: Knowing
) -> None:
    """Rows enter and leave at different times, and prompts are processed whole or in chunks."""
    paths = MEDUSA_CHOICES[choices] if isinstance(choices, str) else CHOICES
    engine = make_engine(knowing.target, choices, **settings)
    lengths = [NEW_TOKENS - 4 * row for row in range(8)]
    requests = [EngineRequest(prompt, length) for prompt, length in zip(knowing.prompts, lengths, strict=True)]
    found = engine.generate(requests)
    engine.close()
    for row, result in enumerate(found):
        assert (list(result.ids), result.stats) == knowing.expected(row, lengths[row], paths)
    assert sum((result.stats for result in found), Stats()).mean_accepted_len > 1.5


def test_greedy_text_with_accurate_heads_equals_transformers(knowing: Knowing) -> None:
    engine = make_engine(knowing.target, WRITTEN)
    stats = assert_greedy_text(engine, knowing.model)
    engine.close()
    assert all(each.accepted for each in stats)


def test_sampled_results_are_the_same_in_a_batch_and_alone(knowing: Knowing) -> None:
    """The batch also has greedy requests."""
    engine = make_engine(knowing.target, WRITTEN, max_batch_size=4)
    sampling = [SamplingOptions(0.8, seed=row) if row % 3 else SamplingOptions() for row in range(8)]
    requests = [EngineRequest(prompt, 20 + row, sampling[row]) for row, prompt in enumerate(knowing.prompts)]
    together = engine.generate(requests)
    alone = [engine.generate([request])[0] for request in requests]
    engine.close()
    assert together == alone


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target of three words, converted with heads."""
    root = tmp_path_factory.mktemp("small")
    source = make_model(root / "hf", **DISTRIBUTION_SHAPE)
    heads = save_heads(root / "heads", random_heads(2, hidden=DISTRIBUTION_SHAPE["hidden_size"], vocab=3))
    return source, convert_with(source, heads, root / "target", SMALL)


@pytest.fixture
def small_engine(small: tuple[Path, Path]) -> Iterator[Engine]:
    engine = make_engine(small[1], SMALL, max_seq_len=32)
    yield engine
    engine.close()


@pytest.mark.parametrize("sampling", [SamplingOptions(1.0), SamplingOptions(0.7, top_k=2)], ids=["plain", "truncated"])
def test_sampled_text_has_the_targets_distribution(
    sampling: SamplingOptions, small: tuple[Path, Path], small_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_targets_distribution(small_engine, reference_model(small[0]), monkeypatch, sampling)


def test_acceptance_rule_without_residual_is_detected(
    small: tuple[Path, Path], small_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_wrong_rule_is_seen(small_engine, reference_model(small[0]), monkeypatch)


def test_request_draft_len_limits_the_depth_of_the_tree(knowing: Knowing) -> None:
    engine = make_engine(knowing.target, WRITTEN)
    depths = (0, 1, 2, 99)
    results = engine.generate([EngineRequest(knowing.prompts[0], 30, draft_len=depth) for depth in depths])
    engine.close()
    for depth, result in zip(depths, results, strict=True):
        choices = tuple(choice for choice in CHOICES if len(choice) <= depth)
        assert (list(result.ids), result.stats) == knowing.expected(0, 30, choices)


def test_typical_acceptance_accepts_more_and_changes_only_sampled_text(knowing: Knowing) -> None:
    """Greedy requests stay exact."""
    sampling = SamplingOptions(1.0, seed=3)
    requests = [EngineRequest(prompt, 40, sampling) for prompt in knowing.prompts]
    exact, lossy = make_engine(knowing.target, WRITTEN), make_engine(knowing.target, WRITTEN, options={"lossy": True})
    strict, loose = exact.generate(requests), lossy.generate(requests)
    (plain,) = lossy.generate([EngineRequest(knowing.prompts[0], 40)])
    exact.close()
    lossy.close()
    assert [result.ids for result in strict] != [result.ids for result in loose]
    accepted = [sum((result.stats for result in results), Stats()).acceptance_rate for results in (strict, loose)]
    assert accepted[1] > accepted[0]
    assert (list(plain.ids), plain.stats) == knowing.expected(0, 40, CHOICES)


def test_heads_split_across_ranks_give_the_expected_text_and_stats(knowing: Knowing, tmp_path: Path) -> None:
    """Heads are on the last pipeline stage."""
    target = convert_with(
        knowing.source, knowing.head_root, tmp_path / "target", WRITTEN, mapping=ParallelMapping(2, 2)
    )
    engine = make_engine(target, WRITTEN)
    results = engine.generate([EngineRequest(prompt, 20) for prompt in knowing.prompts])
    engine.close()
    found = [(list(result.ids), result.stats) for result in results]
    assert found == [knowing.expected(row, 20, CHOICES) for row in range(8)]


def test_quantized_target_text_is_the_same_with_and_without_heads(knowing: Knowing, tmp_path: Path) -> None:
    target = convert_with(knowing.source, knowing.head_root, tmp_path / "target", WRITTEN, scheme=Scheme("fp8_rowwise"))
    requests = [EngineRequest(prompt, NEW_TOKENS) for prompt in knowing.prompts]
    engine = make_engine(target, WRITTEN)
    found = engine.generate(requests)
    engine.close()
    alone = Engine(target, None, EngineSettings(max_seq_len=128, device="cpu"))
    expected = alone.generate(requests)
    alone.close()
    assert [result.ids for result in found] == [result.ids for result in expected]
    assert sum(result.stats.accepted for result in found) > 0


def test_checkpoint_with_too_few_heads_is_rejected(knowing: Knowing) -> None:
    chain = [[0] * depth for depth in range(1, 6)]
    with pytest.raises(CheckpointError) as caught:
        make_engine(knowing.target, chain)
    config = knowing.target / "config.json"
    assert str(caught.value).partition("\nhint: ")[0] == f"{config}: has 4 Medusa heads, but the choices need 5"


def test_checkpoint_without_heads_is_rejected(knowing: Knowing, tmp_path: Path) -> None:
    target = convert(knowing.source, tmp_path / "target")
    with pytest.raises(CheckpointError) as caught:
        make_engine(target, WRITTEN)
    assert str(caught.value).partition("\nhint: ")[0] == f"{target}/config.json: lacks 'num_medusa_heads'"
