# SPDX-License-Identifier: Apache-2.0
"""Lookahead against a second implementation, with levels instead of columns, on transformers' model, without a tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, make_model, reference_model
from tests.engine import lossless
from tests.engine.drafters.looping import make_looping_model
from tests.engine.lossless import DISTRIBUTION_SHAPE, SHAPES, by_position, random_prompts
from trtspec.core.errors import TrtspecError
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, Stats
from trtspec.engine.settings import EngineSettings
from trtspec.methods.lookahead.drafter import Branches, NgramPool

Sizes = tuple[int, int, int]  # window, n-gram, verification set

OFF = (1, 1, 0)
SIZES: list[Sizes] = [(4, 3, 4), (7, 7, 7), (5, 2, 3), (1, 5, 2), (3, 4, 0), (1, 2, 0), OFF]


def make_engine(target: Path, sizes: Sizes, **settings: Any) -> Engine:
    window, ngram, guesses = sizes
    options = {"window": window, "ngram": ngram, "verification": guesses}
    chosen = {"max_batch_size": 8, "max_seq_len": 128, "device": "cpu"} | settings
    return Engine(target, None, EngineSettings("lookahead", options=options, **chosen))


class Telling:
    """Lookahead decoding as in the figures of its paper: a window of levels, and a pool of guesses."""

    def __init__(self, following: Callable[[tuple[int, ...]], int], sizes: Sizes, depth: int | None = None) -> None:
        """Verify `depth` tokens of a branch, by default all tokens after the first of an n-gram."""
        self.following = following
        self.window, self.ngram, self.guesses = sizes
        self.depth = self.ngram - 1 if depth is None else depth

    def stats(self, prompt: tuple[int, ...], new_tokens: int) -> tuple[tuple[int, ...], Stats]:
        """Return the text and its statistics."""
        text = (*prompt, self.following(prompt))
        top = [prompt[len(prompt) * place // self.window] for place in range(1, self.window)]
        below: list[list[int]] = []
        pool: list[tuple[int, ...]] = []  # oldest first
        pooled = drafted = draft_steps = 0
        lengths: list[int] = []
        while (remaining := len(prompt) + new_tokens - len(text)) > 0:
            pool += [text[end - self.ngram : end] for end in range(max(pooled + 1, self.ngram), len(text) + 1)]
            pooled = len(text)
            limit = min(self.depth, remaining - 1)
            columns = [(*top[:place], *(level[place] for level in below)) for place in range(self.window)]
            branches = [*columns, *self.newest(pool, text[-1])] if limit else []
            heads = {branch[:length] for branch in branches for length in range(1, min(limit, len(branch)) + 1)}
            path: tuple[int, ...] = ()
            while (longer := (*path, self.following(text + path))) in heads:
                path = longer
            drafted += len(heads)
            draft_steps += bool(heads)
            lengths.append(len(path))
            below.append([self.following(text + column) for column in columns])
            if len(below) == self.ngram - 1:
                firsts = [text[-1], *top]
                pool += [(firsts[w], *(level[w] for level in below)) for w in range(self.window)]
                top, below = below[0][1:], below[1:]
            text += (*path, self.following(text + path))
        counts = (drafted, sum(lengths), len(lengths), by_position(lengths), draft_steps)
        return text[len(prompt) :], Stats(len(prompt), new_tokens, *counts)

    def newest(self, pool: list[tuple[int, ...]], token: int) -> list[tuple[int, ...]]:
        """Return the distinct newest n-grams after a token."""
        behind = dict.fromkeys(ngram[1:] for ngram in reversed(pool) if ngram[0] == token)
        return list(behind)[: self.guesses]


def following(model: Any) -> Callable[[tuple[int, ...]], int]:
    import torch

    @cache
    def choice(text: tuple[int, ...]) -> int:
        with torch.inference_mode():
            return int(model(torch.tensor([text])).logits[0, -1].argmax())

    return choice


@pytest.fixture(scope="module")
def looping(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp("looping")
    source = make_looping_model(root / "hf")
    return convert(source, root / "target"), following(reference_model(source))


@pytest.fixture(scope="module")
def distribution_model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp("distribution")
    source = make_model(root / "hf", **DISTRIBUTION_SHAPE)
    return convert(source, root / "target"), reference_model(source)


@pytest.fixture(params=[(2, 2, 2), (2, 3, 1)], ids=str)
def distribution_engine(distribution_model: tuple[Path, Any], request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = make_engine(distribution_model[0], request.param)
    yield engine
    engine.close()


@pytest.mark.integration
class TestTheEngine:
    @pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
    def test_greedy_text_equals_transformers(self, shape: dict[str, Any], tmp_path: Path) -> None:
        source = make_model(tmp_path / "hf", **shape)
        engine = make_engine(convert(source, tmp_path / "target"), (4, 3, 4))
        stats = lossless.assert_greedy_text(engine, reference_model(source))
        engine.close()
        assert sum(one.accepted for one in stats) > 0

    def test_greedy_text_with_rows_joining_at_any_phase_equals_transformers(self, tmp_path: Path) -> None:
        source = make_looping_model(tmp_path / "hf")
        engine = make_engine(convert(source, tmp_path / "target"), (7, 7, 7), max_batch_size=3)
        stats = lossless.assert_greedy_text(engine, reference_model(source))
        engine.close()
        assert max(one.mean_accepted_len for one in stats) > 3

    @pytest.mark.parametrize("sizes", SIZES, ids=str)
    def test_text_and_stats_equal_the_reference_implementation(self, looping: tuple[Path, Any], sizes: Sizes) -> None:
        target, choice = looping
        engine, telling = make_engine(target, sizes), Telling(choice, sizes)
        for prompt in [(5,), (3, 9, 3, 9, 3, 9), *random_prompts(2)]:
            (result,) = engine.generate([EngineRequest(prompt, 40)])
            assert (result.ids, result.stats) == telling.stats(prompt, 40)
        engine.close()

    def test_request_draft_len_limits_drafts_and_keeps_the_text(self, looping: tuple[Path, Any]) -> None:
        engine = make_engine(looping[0], (4, 5, 4))
        results = engine.generate([EngineRequest((3, 9, 3), 40, draft_len=length) for length in (None, 2, 1, 0)])
        engine.close()
        assert len({result.ids for result in results}) == 1
        lens = [result.stats.mean_accepted_len for result in results]
        assert lens[0] > lens[1] > lens[2] > lens[3] == 1.0
        assert (results[3].stats.drafted, results[3].stats.steps) == (0, 39)

    def test_request_with_smaller_sizes_equals_the_reference_of_those_sizes(self, looping: tuple[Path, Any]) -> None:
        """Each row behaves as in an engine of its sizes, except for the depth, which stays the engine's."""
        target, choice = looping
        engine = make_engine(target, (7, 7, 7))
        smaller = [sizes for sizes in SIZES if max(sizes) <= 7]
        requests = [
            EngineRequest(
                (3, 9, 3, 9, 3), 40, options=dict(zip(("window", "ngram", "verification"), sizes, strict=True))
            )
            for sizes in smaller
        ]
        results = engine.generate([*requests, EngineRequest((3, 9, 3, 9, 3), 40)])
        engine.close()
        for sizes, result in zip([*smaller, (7, 7, 7)], results, strict=True):
            telling = Telling(choice, sizes, depth=0 if sizes == OFF else 6)
            assert (result.ids, result.stats) == telling.stats((3, 9, 3, 9, 3), 40)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"window": 5}, r"window is 5, expected at most 4 \(speculation.options.window\)"),
            ({"ngram": 0}, "ngram: must be at least 1"),
            ({"ngram": 1}, "ngram 1 turns lookahead off and requires window 1 and verification 0"),
            ({"nodes": 1}, "nodes is 1, but requests cannot set nodes for the engine's method"),
        ],
    )
    def test_request_with_invalid_sizes_is_rejected_with_the_reason(
        self, looping: tuple[Path, Any], options: dict[str, int], message: str
    ) -> None:
        engine = make_engine(looping[0], (4, 3, 4))
        with pytest.raises(TrtspecError, match=message):
            engine.generate([EngineRequest((3, 9), 4, options=options)])
        engine.close()

    def test_sampled_text_has_the_targets_distribution(
        self, distribution_engine: Engine, distribution_model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lossless.assert_targets_distribution(
            distribution_engine, distribution_model[1], monkeypatch, SamplingOptions(1.0)
        )

    def test_acceptance_rule_without_residual_is_detected(
        self, distribution_engine: Engine, distribution_model: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lossless.assert_wrong_rule_is_seen(distribution_engine, distribution_model[1], monkeypatch)

    def test_sampled_results_are_the_same_in_a_batch_and_alone(self, looping: tuple[Path, Any]) -> None:
        engine = make_engine(looping[0], (4, 4, 4), max_batch_size=4)
        requests = [
            EngineRequest(prompt, 10 + 5 * seed, SamplingOptions(0.8 if seed % 3 else 0.0, seed=seed))
            for seed, prompt in enumerate(random_prompts(7))
        ]
        assert engine.generate(requests) == [engine.generate([request])[0] for request in requests]
        engine.close()


class TestNgramPool:
    def test_oldest_ngram_is_evicted_and_repeated_ngram_becomes_newest(self) -> None:
        pool = NgramPool(2)
        for ngram in ([1, 2, 3], [1, 4, 5], [9, 9, 9], [1, 2, 3], [1, 6, 7]):
            pool.add(ngram)
        assert pool.behind(1) == [(2, 3), (6, 7)]
        assert pool.behind(9) == [(9, 9)]
        assert pool.behind(5) == []

    def test_pool_of_size_zero_stays_empty(self) -> None:
        pool = NgramPool(0)
        pool.add([1, 2])
        assert pool.behind(1) == []


class TestBranches:
    def test_common_prefixes_share_nodes(self) -> None:
        branches = Branches()
        ends = [branches.grow(0, branch) for branch in ([5, 6, 7], [5, 6, 8], [6], [5])]
        assert ends == [3, 4, 5, 1]
        assert branches.tokens == [5, 6, 7, 8, 6]
        assert branches.parents == [-1, 0, 1, 2, 2, 0]
        assert all(parent < node for node, parent in enumerate(branches.parents))
        assert branches.grow(0, []) == 0

    def test_padding_nodes_have_no_parent(self) -> None:
        branches = Branches()
        branches.grow(0, [5])
        assert branches.padded(4) == ([5, 0, 0], [-1, 0, -1, -1])
