# SPDX-License-Identifier: Apache-2.0
"""A failing drafter costs drafts but no text, of running requests and of later ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tests.engine.every_method import Models
from tests.engine.lossless import random_prompts
from tests.engine.test_joining import Joining, alone
from trtspec.engine.drafting.base import DraftTokens
from trtspec.engine.drafting.fault_isolation import IsolatedDrafter
from trtspec.engine.engine import Engine
from trtspec.engine.generation.circuit_breaker import FAILURES, CircuitBreaker
from trtspec.engine.generation.request import EngineRequest, SamplingOptions

LEN = 6
AT = 3  # which call fails
KINDS = ("draft_target", "eagle3", "eagle3, tree", "medusa", "lookahead", "ngram", "swift")
TEMPERATURES = pytest.mark.parametrize("temperature", [0.0, 0.8])


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Models:
    return Models(tmp_path_factory.mktemp("guard"))


@contextmanager
def loaded(models: Models, kind: str) -> Iterator[Engine]:
    engine = models.engine(kind, "cpu")
    try:
        yield engine
    finally:
        engine.close()


def asked(temperature: float, count: int = 6) -> list[EngineRequest]:
    """Return requests with increasing length, so that they end in another order; every second one is sampled."""
    return [
        EngineRequest(tuple(prompt), LEN + 11 * number, SamplingOptions(temperature * (number % 2), seed=number))
        for number, prompt in enumerate(random_prompts(count))
    ]


def fail(engine: Engine, name: str, fails: Callable[[int], bool]) -> list[int]:
    """Make calls of the drafter fail with a partly changed state; return a growing list of their numbers of rows."""
    call, rows, calls = getattr(engine.speculator.drafter, name), [], 0

    def failing(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        found = call(*arguments)
        if fails(calls):
            rows.append(len(arguments[0] if name == "propose" else arguments[0].results))
            raise RuntimeError("the draft broke")
        return found

    setattr(engine.speculator.drafter, name, failing)
    return rows


def stop(engine: Engine, stops: Callable[[int], bool]) -> None:
    """Make calls of the drafter propose nothing, and hide these steps from it."""
    drafter = engine.speculator.drafter
    propose, observe, calls = drafter.propose, drafter.observe, 0

    def stopping(texts: Any, *arguments: Any) -> DraftTokens:
        nonlocal calls
        calls += 1
        return (
            DraftTokens(torch.zeros((len(texts), 0), dtype=torch.int64)) if stops(calls) else propose(texts, *arguments)
        )

    drafter.propose = stopping  # type: ignore[method-assign]
    drafter.observe = lambda outcome: None if stops(calls) else observe(outcome)  # type: ignore[method-assign]


@TEMPERATURES
@pytest.mark.parametrize("name", ["propose", "observe"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_running_requests_continue_as_without_drafts_after_a_drafter_failure(
    kind: str, name: str, temperature: float, models: Models
) -> None:
    """Sampled text uses the same random numbers; a drafter without state per row only misses that step."""
    requests = asked(temperature)
    with loaded(models, kind) as engine:
        first = AT if name == "propose" else AT + 1
        stop(engine, lambda call: call >= first if engine.speculator.drafter.remembers else call == first == AT)
        expected = alike(engine, requests)
    with loaded(models, kind) as engine:
        fail(engine, name, lambda call: call == AT)
        assert alike(engine, requests) == expected
    with loaded(models, kind) as engine:
        greedy = [ids for number, (ids, _) in enumerate(alike(engine, requests)) if number % 2 == 0 or not temperature]
    assert [ids for number, (ids, _) in enumerate(expected) if number % 2 == 0 or not temperature] == greedy


def alike(engine: Engine, requests: list[EngineRequest]) -> list[tuple[tuple[int, ...], Any]]:
    """Return the results of requests that run together."""
    return [(result.ids, result.stats.accepted) for result in engine.generate(requests)]


@TEMPERATURES
@pytest.mark.parametrize("name", ["propose", "observe"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.slow
def test_requests_started_after_a_drafter_failure_get_their_usual_drafts(
    kind: str, name: str, temperature: float, models: Models
) -> None:
    requests = asked(temperature)
    with loaded(models, kind) as engine:
        expected = alone(engine, requests)
    with loaded(models, kind) as engine:
        reasons: list[str] = []
        engine.set_draft_failure_callbacks(reasons.append, lambda is_open: None)
        rows = fail(engine, name, lambda call: call == AT)
        found = Joining(engine, requests).results()
        [spoiled] = rows
        assert 0 < spoiled < len(requests)
        assert reasons == ["failed"]
        for number, ((ids, stats), (own_ids, own_stats)) in enumerate(zip(found, expected, strict=True)):
            if number >= spoiled or number % 2 == 0:  # sampled text changes when drafts stop
                assert ids == own_ids, number
            if number >= spoiled and kind != "lookahead":  # which learns of texts that ended
                assert stats == own_stats
        assert any(stats.drafted for _, stats in found[spoiled:])


@pytest.mark.slow
def test_repeatedly_failing_drafter_is_disabled_and_logged_once(
    models: Models, caplog: pytest.LogCaptureFixture
) -> None:
    now, reasons, changes = [0.0], [], []
    request = asked(0.0, 1)
    with loaded(models, "draft_target") as engine, caplog.at_level(logging.ERROR):
        [expected] = alone(engine, request)
        engine.speculator.guard.breaker = CircuitBreaker(now=lambda: now[0])
        engine.set_draft_failure_callbacks(reasons.append, changes.append)
        broken = [True]
        fail(engine, "propose", lambda call: broken[0])
        for _ in range(FAILURES + 2):
            [(ids, stats)] = alone(engine, request)
            assert (ids, stats.drafted) == (expected[0], 0)
        assert reasons == ["failed"] * FAILURES + ["open"] * 2
        broken[0], now[0] = False, 100.0
        assert alone(engine, request) == [expected]
        assert changes == [True, False]
    [logged] = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "the drafter failed" in logged.message
    assert logged.exc_info


def test_target_error_is_not_handled_as_a_drafter_failure(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    with loaded(models, "ngram") as engine:

        def broken(*arguments: Any) -> Any:
            raise RuntimeError("the target broke")

        monkeypatch.setattr(engine.speculator.target, "forward_with_features", broken)
        with pytest.raises(Exception, match="the engine failed: the target broke"):
            engine.generate(asked(0.0, 1))


def test_restarted_rows_replace_the_previous_ones(models: Models) -> None:
    """Step timing begins rows again without ending the previous ones."""
    with loaded(models, "ngram") as engine:
        guard = IsolatedDrafter(engine.speculator.drafter)
        for prompts in ([[1, 2, 3]] * 3, [[4, 5]] * 2, [[6]] * 4):
            guard.begin(prompts, 0, 99)
            assert guard.drafted == [*range(len(prompts))]
        guard.begin([[7], [8]], 4, 99)
        assert guard.drafted == [*range(6)]
