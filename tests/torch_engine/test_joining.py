# SPDX-License-Identifier: Apache-2.0
"""Requests that join others in the midst of their texts: a step reads their prompts in its own pass of the target."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny import convert, make_model
from tests.torch_engine.every_method import METHODS, Models
from tests.torch_engine.lossless import random_prompts
from trtspec.generation.request import Request, Result, SamplingOptions, Stats, Update
from trtspec.torch_engine.engine import Engine
from trtspec.torch_engine.settings import EngineSettings

pytestmark = pytest.mark.integration
LEN = 20


class Joining:
    """Requests that are submitted one after the other, each with the first tokens of the one before."""

    def __init__(self, engine: Engine, asked: list[Request]) -> None:
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


def alone(engine: Engine, asked: list[Request]) -> list[tuple[list[int], Stats]]:
    found: list[Result] = [engine.generate([request])[0] for request in asked]
    return [([*result.ids], result.stats) for result in found]


def passes(engine: Engine, monkeypatch) -> list[int]:
    """Return a list that grows by the tokens of each pass of the whole target."""
    found: list[int] = []
    target = engine.speculator.target
    forward = target.forward_with_features

    def counting(tokens, window, aux_layers, at=None, **skipped):
        if not skipped:  # else it is what drafts
            found.append(tokens.numel())
        return forward(tokens, window, aux_layers, at, **skipped)

    monkeypatch.setattr(target, "forward_with_features", counting)
    return found


def counted_steps(engine: Engine, monkeypatch) -> list[int]:
    """Return a list that grows by the requests of each step."""
    found: list[int] = []
    step = engine.speculator.step

    def counting(batch, *rest):
        found.append(len(batch))
        return step(batch, *rest)

    monkeypatch.setattr(engine.speculator, "step", counting)
    return found


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return Models(tmp_path_factory.mktemp("joining"))


@pytest.mark.parametrize("method", METHODS)
def test_what_joins_is_read_by_the_step_and_everything_is_as_alone(method: str, models: Models, monkeypatch) -> None:
    """Texts and counts: a drafter that got another's features, or none, would be right less often."""
    samples = method != "suffix"  # whose drafts, and so its samples, depend on texts that ended
    asked = [
        Request(tuple(prompt), LEN + 3 * number, SamplingOptions(0.8 * samples * (number % 2), seed=number))
        for number, prompt in enumerate(random_prompts(6))
    ]
    engine = models.engine(method, "cpu")
    try:
        expected = alone(engine, asked)
        counted, steps = passes(engine, monkeypatch), counted_steps(engine, monkeypatch)
        found = Joining(engine, asked).results()
        assert [ids for ids, _ in found] == [ids for ids, _ in expected]
        if method not in ("suffix", "lookahead"):  # which learn of texts that ended
            assert [stats for _, stats in found] == [stats for _, stats in expected]
        assert len(counted) == len(steps) + 1, "but for the first, no prompt takes a pass of its own"
    finally:
        engine.close()


@pytest.fixture(scope="module", params=["llama", "gemma2"])
def plain(request, tmp_path_factory) -> Iterator[Engine]:
    root = tmp_path_factory.mktemp("plain")
    target = convert(make_model(root / "hf", family=request.param), root / "target")
    engine = Engine.load(target, None, EngineSettings("ngram", 3, max_seq_len=128, max_batch_size=4, device="cpu"))
    yield engine
    engine.close()


def requests(count: int) -> list[Request]:
    return [Request(tuple(prompt), LEN) for prompt in random_prompts(count)]


def test_a_prompt_has_no_pass_of_its_own(plain: Engine, monkeypatch) -> None:
    asked = requests(2)
    expected = alone(plain, asked)
    counted = passes(plain, monkeypatch)
    found = Joining(plain, [replace(request, draft_len=0) for request in asked]).results()
    assert [ids for ids, _ in found] == [ids for ids, _ in expected]
    assert len(counted) == 2 + LEN, (
        "the first prompt, the step before the second is seen, and one for each of its tokens"
    )


def test_what_does_not_fit_into_a_pass_is_read_before_it(plain: Engine, monkeypatch) -> None:
    asked = [Request((*prompt, *range(3, 15)), LEN) for prompt in random_prompts(4)]
    expected = alone(plain, asked)
    most = max(len(request.prompt_ids) for request in asked)
    monkeypatch.setattr(plain, "settings", replace(plain.settings, max_num_tokens=most // 2))
    counted = passes(plain, monkeypatch)
    assert [ids for ids, _ in Joining(plain, asked).results()] == [ids for ids, _ in expected]
    assert max(counted) <= most // 2 + 16, "a step of four requests has up to 16"


def test_external_drafts_join_too(plain: Engine) -> None:
    asked = requests(4)
    texts = [ids for ids, _ in alone(plain, asked)]
    drafted = [
        replace(request, draft_ids=tuple(text[:number]), max_new_tokens=number + 1) if number else request
        for number, (request, text) in enumerate(zip(asked, texts, strict=True))
    ]
    found = [ids for ids, _ in Joining(plain, drafted).results()]
    assert found == [text[: number + 1] if number else text for number, text in enumerate(texts)]


def test_an_engine_that_fails_tells_each_request_once(tmp_path: Path, monkeypatch) -> None:
    engine = Engine.load(
        convert(make_model(tmp_path / "hf", family="llama"), tmp_path / "target"),
        None,
        EngineSettings("none", 0, max_seq_len=64, max_batch_size=4, device="cpu"),
    )
    step, told = engine.speculator.step, list[tuple[int, Update]]()

    def failing(batch, new=(), max_tokens=0):
        if new:
            raise ValueError("of no use")
        return step(batch, new, max_tokens)

    monkeypatch.setattr(engine.speculator, "step", failing)
    over = threading.Semaphore(0)

    def listen(number: int, update: Update) -> None:
        if number == 0 and not told:
            engine.submit(requests(2)[1], lambda update: listen(1, update))
        told.append((number, update))
        if update.finish_reason:
            over.release()

    engine.submit(requests(1)[0], lambda update: listen(0, update))
    assert all(over.acquire(timeout=30) for _ in range(2))
    engine.close()
    ends = [(number, update.finish_reason, update.error) for number, update in told if update.finish_reason]
    assert ends == [(number, "error", "the engine failed: of no use") for number in (0, 1)]
