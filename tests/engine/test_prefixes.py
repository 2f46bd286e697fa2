# SPDX-License-Identifier: Apache-2.0
"""The prefix cache: common prefixes with finished texts are not computed again, and the text stays the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests._support.tiny import convert, greedy, make_model, reference_model
from tests.engine.lossless import random_prompts
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.prefill import PrefixCache
from trtspec.engine.settings import EngineSettings

LEN = 24


class OneLayer:
    """A cache of 4 rows whose keys and values encode the row's number and the position."""

    def __init__(self) -> None:
        self.rows = [torch.tensor([[row * 100 + at for at in range(16)]]) for row in range(4)]

    def row(self, row: int, length: int) -> torch.Tensor:
        return self.rows[row][:, :length]


def test_longest_prefix_is_restored_without_the_last_token() -> None:
    cache = OneLayer()
    store = PrefixCache(cache, 100)
    store.retain(0, [1, 2, 3, 4], 3)
    store.retain(1, [1, 2, 9, 9, 9], 4)
    assert store.restore(3, [1, 2, 9, 8, 7]) == 3
    assert cache.rows[3][0, :4].tolist() == [100, 101, 102, 303]
    assert store.restore(3, [1, 2, 3]) == 2
    assert cache.rows[3][0, :3].tolist() == [0, 1, 102]
    assert store.restore(3, [5, 1, 2]) == 0
    assert [store.cached_length(text) for text in ([1, 2, 9, 8, 7], [1, 2, 3], [5, 1, 2], [1])] == [3, 2, 0, 0]


def test_least_recently_used_text_is_evicted() -> None:
    store = PrefixCache(OneLayer(), 8)
    store.retain(0, [1, 1, 1, 0], 3)
    store.retain(1, [2, 2, 2, 0], 3)
    assert store.restore(3, [1, 1, 5]) == 2
    store.retain(2, [3, 3, 3], 9)
    assert [store.restore(3, [token, token, token, token]) for token in (1, 2, 3)] == [3, 0, 3]
    store.retain(0, list(range(20)), 19)
    store.retain(0, [], 3)
    assert [store.restore(3, [token, token, token, token]) for token in (1, 3)] == [3, 3]


def test_extended_text_replaces_its_prefix() -> None:
    store = PrefixCache(OneLayer(), 9)
    store.retain(1, [9, 9], 1)
    for length in range(2, 9):
        store.retain(0, [*range(length), 0], length)
    assert store.restore(3, [9, 9]) == 1, "not pushed out by beginnings of a text that is kept whole"
    assert store.restore(3, list(range(9))) == 8


@pytest.mark.parametrize("seed", range(5))
def test_restored_values_equal_the_stored_ones_after_evictions(seed: int) -> None:
    chance, cache = np.random.default_rng(seed), OneLayer()
    store = PrefixCache(cache, 20)

    def values(text: list[int]) -> list[int]:
        """Return a number for each position of a text that depends on all tokens up to it, like a model's output."""
        return [hash(tuple(text[:end])) for end in range(1, len(text) + 1)]

    restored = []
    for _ in range(300):
        text, row = chance.integers(0, 3, chance.integers(2, 17)).tolist(), int(chance.integers(3))
        cache.rows[row][0, : len(text)] = torch.tensor(values(text))
        store.retain(row, text, len(text) - 1)
        asked = chance.integers(0, 3, 16).tolist()
        known = store.cached_length(asked)
        restored.append(store.restore(3, asked))
        assert restored[-1] == known
        assert cache.row(3, known)[0].tolist() == values(asked)[:known]
    assert len(set(restored)) > 4


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def pair(request, tmp_path_factory) -> Iterator[tuple[Engine, Path]]:
    root = tmp_path_factory.mktemp("reuse")
    source = make_model(root / "hf", family=request.param)
    settings = EngineSettings(max_seq_len=96, max_batch_size=4, device="cpu", max_num_tokens=24)
    engine = Engine(convert(source, root / "target"), None, settings)
    yield engine, source
    engine.close()


def draft_model(root: Path) -> Path:
    """Return a converted draft, which serves PARD too."""
    source = make_model(root / "small", family="llama", seed=1)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "pard_token": 2}))
    return convert(source, root / "draft")


def computed(model: Decoder, monkeypatch) -> list[int]:
    """Return a list that grows by the tokens of each pass of a model."""
    passes: list[int] = []
    forward = model.forward_with_features

    def counting(tokens, *rest):
        passes.append(tokens.numel())
        return forward(tokens, *rest)

    monkeypatch.setattr(model, "forward_with_features", counting)
    return passes


@pytest.mark.integration
def test_text_requested_piece_by_piece_computes_only_new_tokens(pair: tuple[Engine, Path], monkeypatch) -> None:
    """With drafts that are right, wrong in the middle, and missing, for several texts of different lengths."""
    engine, source = pair
    model = reference_model(source)
    prompts = random_prompts(6)
    expected = [greedy(model, prompt, LEN) for prompt in prompts]
    texts: list[list[int]] = [[] for _ in prompts]
    passes, rounds = computed(engine.speculator.target, monkeypatch), 0
    while any(len(text) < LEN for text in texts):
        asked = []
        for number, (prompt, text, whole) in enumerate(zip(prompts, texts, expected, strict=True)):
            draft = [*whole[len(text) : len(text) + 1], 3, 3][: (number + rounds) % 4]
            asked.append(EngineRequest((*prompt, *text), max_new_tokens=len(draft) + 1, draft_ids=tuple(draft)))
        for text, result in zip(texts, engine.generate(asked), strict=True):
            text.extend(result.ids)
        rounds += 1
    assert [text[:LEN] for text in texts] == expected
    longest = max(map(len, prompts))
    once = 2 * 4 * longest  # two batches of at most four rows, as long as the longest prompt
    assert sum(passes) <= once + rounds * 2 * 4 * 5, "each round computes at most what is new: a token and its draft"


@pytest.mark.integration
def test_continuation_of_an_earlier_text_computes_only_new_tokens(pair: tuple[Engine, Path], monkeypatch) -> None:
    engine, _ = pair
    prompt = tuple(random_prompts(1)[0])
    first = engine.generate([EngineRequest(prompt, max_new_tokens=8)])[0]
    passes = computed(engine.speculator.target, monkeypatch)
    again = engine.generate([EngineRequest((*prompt, *first.ids[:4]), max_new_tokens=4)])[0]
    assert again.ids == first.ids[4:]
    assert sum(passes) == 4


@pytest.mark.integration
@pytest.mark.parametrize("method", ["draft_target", "pard", "ngram", "suffix", "lookahead"])
def test_drafting_engine_does_not_recompute_cached_prefixes(method: str, tmp_path: Path, monkeypatch) -> None:
    """Rows move when others end, and drafts are written after the cached tokens; the text stays the target's."""
    source = make_model(tmp_path / "hf", family="llama")
    target = convert(source, tmp_path / "target")
    draft = draft_model(tmp_path) if method in ("draft_target", "pard") else None
    draft_len = 0 if method == "lookahead" else 3
    settings = EngineSettings(method, draft_len, max_seq_len=192, max_batch_size=4, device="cpu", max_num_tokens=64)
    model, prompts = reference_model(source), random_prompts(6)
    expected = [greedy(model, prompt, LEN) for prompt in prompts]
    engine = Engine(target, draft, settings)
    try:
        passes = computed(engine.speculator.target, monkeypatch)
        draft_passes: list[int] = []
        if draft:
            draft_passes = computed(engine.speculator.drafter._model, monkeypatch)
        counted, drafts_counted, accepted = [], [], []
        for taken in (0, 0, 5, LEN // 2):
            begun, drafts_begun = len(passes), len(draft_passes)
            asked = [
                EngineRequest((*prompt, *whole[:taken]), max_new_tokens=LEN - taken)
                for prompt, whole in zip(prompts, expected, strict=True)
            ]
            results = engine.generate(asked)
            assert [list(result.ids) for result in results] == [whole[taken:] for whole in expected]
            counted.append(passes[begun])
            accepted.append([result.stats.accepted for result in results])
            drafts_counted += draft_passes[drafts_begun : drafts_begun + 1]
        assert counted[0] > 4 * 4
        assert counted[1:] == [4, 4, 4], "of each of four texts the last token alone"
        assert drafts_counted[1:] == ([4, 4, 4] if draft else []), "and so does the draft"
        assert not draft or accepted[1] == accepted[0], "which drafts the same"
    finally:
        engine.close()


def test_prefix_cache_is_disabled_for_heads_and_for_measurement() -> None:
    assert EngineSettings("ngram", 3, max_batch_size=2, max_seq_len=64).reuse_tokens == 128
    assert EngineSettings("medusa", 3, max_batch_size=2, max_seq_len=64).reuse_tokens == 0
    assert EngineSettings("ngram", 3, keeps_texts=False).reuse_tokens == 0, "which is measured"
