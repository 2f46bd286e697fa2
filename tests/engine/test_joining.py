# SPDX-License-Identifier: Apache-2.0
"""Requests that join a running batch give the same output as alone, and so do the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests._support.tiny import convert, make_model
from tests.engine.every_method import METHODS, Models
from tests.engine.lossless import random_prompts
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest, EngineResult, SamplingOptions, Stats, Update
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration
LEN = 20


class Joining:
    """Submits requests one after another, each at the first tokens of the previous one."""

    def __init__(self, engine: Engine, asked: list[EngineRequest]) -> None:
        self._engine, self._left = engine, [*asked]
        self._told: list[list[Update]] = []
        self._over = threading.Semaphore(0)

    def results(self) -> list[tuple[list[int], Stats]]:
        count = len(self._left)
        self._submit()
        for _ in range(count):
            assert self._over.acquire(timeout=60)
        return [([token for update in told for token in update.new_ids], told[-1].stats) for told in self._told]

    def _submit(self) -> None:
        told: list[Update] = []
        self._told.append(told)
        self._engine.submit(self._left.pop(0), self._listener(told))

    def _listener(self, told: list[Update]) -> Callable[[Update], None]:
        def listen(update: Update) -> None:
            if not told and self._left:
                self._submit()
            told.append(update)
            if update.finish_reason:
                self._over.release()

        return listen


def alone(engine: Engine, asked: list[EngineRequest]) -> list[tuple[list[int], Stats]]:
    found: list[EngineResult] = [engine.generate([request])[0] for request in asked]
    return [([*result.ids], result.stats) for result in found]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return Models(tmp_path_factory.mktemp("joining"))


@pytest.mark.parametrize("method", METHODS)
def test_joining_requests_give_the_same_results_as_alone(method: str, models: Models) -> None:
    """Texts and counts are compared: a drafter with the wrong features would be right less often."""
    samples = method != "suffix"  # whose drafts, and so its samples, depend on texts that ended
    asked = [
        EngineRequest(tuple(prompt), LEN + 3 * number, SamplingOptions(0.8 * samples * (number % 2), seed=number))
        for number, prompt in enumerate(random_prompts(6))
    ]
    engine = models.engine(method, "cpu")
    try:
        expected = alone(engine, asked)
        found = Joining(engine, asked).results()
        assert [ids for ids, _ in found] == [ids for ids, _ in expected]
        if method not in ("suffix", "lookahead"):  # which learn of texts that ended
            assert [stats for _, stats in found] == [stats for _, stats in expected]
    finally:
        engine.close()


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def plain(request, tmp_path_factory) -> Iterator[Engine]:
    root = tmp_path_factory.mktemp("plain")
    target = convert(make_model(root / "hf", family=request.param), root / "target")
    engine = Engine(target, None, EngineSettings("ngram", 3, max_seq_len=128, max_batch_size=4, device="cpu"))
    yield engine
    engine.close()


def requests(count: int) -> list[EngineRequest]:
    return [EngineRequest(tuple(prompt), LEN) for prompt in random_prompts(count)]


def test_joining_requests_with_external_drafts_give_the_same_text(plain: Engine) -> None:
    asked = requests(4)
    texts = [ids for ids, _ in alone(plain, asked)]
    drafted = [
        replace(request, draft_ids=tuple(text[:number]), max_new_tokens=number + 1) if number else request
        for number, (request, text) in enumerate(zip(asked, texts, strict=True))
    ]
    found = [ids for ids, _ in Joining(plain, drafted).results()]
    assert found == [text[: number + 1] if number else text for number, text in enumerate(texts)]
