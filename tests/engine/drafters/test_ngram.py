# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup against a second implementation, which searches the whole text at each step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, greedy, make_model, reference_model
from tests.engine import lossless
from tests.engine.drafters.looping import make_looping_model
from tests.engine.lossless import DISTRIBUTION_SHAPE, SHAPES, by_position, random_prompts
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, Stats
from trtspec.engine.generation.suffixes import SuffixIndex
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration

NEW_TOKENS = 60


def make_engine(target: Path, draft_len: int = 8, options: dict[str, int] | None = None, **settings: Any) -> Engine:
    chosen = {"max_batch_size": 8, "max_seq_len": 128, "device": "cpu"} | settings
    return Engine(target, None, EngineSettings("ngram", draft_len, options or {}, **chosen))


def look_up(text: list[int], draft_len: int, min_match: int, max_match: int) -> list[int]:
    """Return the continuation of the last occurrence of the longest repetition, repeated beyond the text's end."""
    for length in range(min(max_match, len(text) - 1), min_match - 1, -1):
        for end in range(len(text) - 1, length - 1, -1):
            if text[end - length : end] == text[-length:]:
                said = list(text)
                for _ in range(draft_len):
                    said.append(said[end - len(text) + len(said)])
                return said[len(text) :]
    return []


def telling(prompt: list[int], ids: list[int], draft_len: int, min_match: int, max_match: int) -> Stats:
    """Return the statistics of a greedy text."""
    drafted, draft_steps, lengths = 0, 0, list[int]()
    done = 1
    while done < len(ids):
        draft = look_up([*prompt, *ids[:done]], min(draft_len, len(ids) - done - 1), min_match, max_match)
        right = 0
        while right < len(draft) and draft[right] == ids[done + right]:
            right += 1
        drafted += len(draft)
        draft_steps += bool(draft)
        lengths.append(right)
        done += right + 1
    return Stats(len(prompt), len(ids), drafted, sum(lengths), len(lengths), by_position(lengths), draft_steps)


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp("looping")
    source = make_looping_model(root / "hf")
    return convert(source, root / "target"), reference_model(source)


@pytest.fixture(scope="module")
def distribution_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp("distribution")
    source = make_model(root / "hf", **DISTRIBUTION_SHAPE)
    return convert(source, root / "target"), reference_model(source)


@pytest.fixture
def distribution_engine(distribution_model: tuple[Path, Any]) -> Iterator[Engine]:
    engine = make_engine(distribution_model[0], 3, {"min_match": 1})
    yield engine
    engine.close()


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_greedy_text_equals_transformers(shape: dict[str, Any], tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", **shape)
    engine = make_engine(convert(source, tmp_path / "target"), options={"min_match": 1})
    stats = lossless.assert_greedy_text(engine, reference_model(source))
    engine.close()
    assert sum(one.accepted for one in stats) > 0


def test_greedy_text_with_rows_joining_at_any_length_equals_transformers(looping: tuple[Path, Any]) -> None:
    engine = make_engine(looping[0], max_batch_size=3)
    stats = lossless.assert_greedy_text(engine, looping[1])
    engine.close()
    assert max(one.mean_accepted_len for one in stats) > 2


@pytest.mark.parametrize(
    ("draft_len", "min_match", "max_match"), [(8, 2, 16), (3, 1, 1), (1, 3, 4), (64, 1, 64)], ids=str
)
def test_text_and_stats_equal_those_of_a_full_text_search(
    looping: tuple[Path, Any], draft_len: int, min_match: int, max_match: int
) -> None:
    target, model = looping
    engine = make_engine(target, draft_len, {"min_match": min_match, "max_match": max_match})
    for prompt in [(5,), (3, 9, 3, 9, 3, 9), *random_prompts(2)]:
        (result,) = engine.generate([EngineRequest(prompt, NEW_TOKENS)])
        ids = greedy(model, list(prompt), NEW_TOKENS)
        assert list(result.ids) == ids
        assert result.stats == telling(list(prompt), ids, draft_len, min_match, max_match)
    engine.close()


def test_text_without_a_match_of_min_match_tokens_gets_no_drafts(looping: tuple[Path, Any]) -> None:
    engine = make_engine(looping[0], options={"min_match": 64, "max_match": 64})
    (result,) = engine.generate([EngineRequest((5, 6), 20)])
    engine.close()
    assert (result.stats.drafted, result.stats.steps) == (0, 19)


def test_request_with_draft_len_zero_is_not_indexed(looping: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    indexed: list[int] = []
    extend = SuffixIndex.extend
    monkeypatch.setattr(SuffixIndex, "extend", lambda self, ids: indexed.extend(ids) or extend(self, ids))
    engine = make_engine(looping[0])
    (idle,) = engine.generate([EngineRequest((5, 6, 5, 6), 20, draft_len=0)])
    assert (idle.stats.drafted, indexed) == (0, [])
    (drafting,) = engine.generate([EngineRequest((5, 6, 5, 6), 20)])
    engine.close()
    assert drafting.ids == idle.ids
    assert indexed[:4] == [5, 6, 5, 6]


def test_sampled_text_has_the_targets_distribution(
    distribution_engine: Engine, distribution_model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lossless.assert_targets_distribution(distribution_engine, distribution_model[1], monkeypatch, SamplingOptions(1.0))


def test_acceptance_rule_without_residual_is_detected(
    distribution_engine: Engine, distribution_model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    lossless.assert_wrong_rule_is_seen(distribution_engine, distribution_model[1], monkeypatch)


def test_sampled_results_are_the_same_in_a_batch_and_alone(looping: tuple[Path, Any]) -> None:
    engine = make_engine(looping[0], options={"min_match": 1}, max_batch_size=4)
    requests = [
        EngineRequest(prompt, 10 + 5 * seed, SamplingOptions(0.5 if seed % 3 else 0.0, seed=seed))
        for seed, prompt in enumerate(random_prompts(7))
    ]
    assert engine.generate(requests) == [engine.generate([request])[0] for request in requests]
    engine.close()
