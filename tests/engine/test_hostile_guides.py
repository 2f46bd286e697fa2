# SPDX-License-Identifier: Apache-2.0
"""Guides that are made to take long: other requests are answered as usual, and queues are bounded."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, make_model
from tests.engine.grammars import MERGED, SYMBOLS, save_tokenizer
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import Overloaded, TrtspecError
from trtspec.engine.engine import Engine
from trtspec.engine.generation import grammar_compiler
from trtspec.engine.generation.grammar import CpuBudget, GrammarMatcher
from trtspec.engine.generation.grammar_compiler import CompiledGrammar, GrammarCompiler
from trtspec.engine.generation.grammar_trial import GuideTrial
from trtspec.engine.generation.request import Constraint, EngineRequest, Update
from trtspec.engine.settings import EngineSettings

pytestmark = pytest.mark.integration
pytest.importorskip("llguidance", reason="needs llguidance")

HOSTILE, BUSY_S = 50, 20.0
ORDINARY = {"type": "object", "required": ["id"], "additionalProperties": False,
            "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}}}  # fmt: skip


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return save_tokenizer(tmp_path / "tokenizer", [*SYMBOLS, *MERGED])


@pytest.fixture
def engine(tokenizer: Path, tmp_path: Path) -> Iterator[Engine]:
    shape = {"vocab_size": 1 + len(SYMBOLS) + len(MERGED)}
    target = convert(make_model(tmp_path / "hf", family="llama", **shape), tmp_path / "target")
    settings = EngineSettings(max_batch_size=8, max_seq_len=128, device="cpu")
    engine = Engine(target, None, settings, tokenizer)
    yield engine
    engine.close()


def hostile(number: int) -> Constraint:
    """Return a guide of about 1 kB that compiles for 40 s if nothing stops it; a different one for each number."""
    parts = [{"pattern": f".*{chr(97 + at)}.*"} for at in range(20)]
    return Constraint("json_schema", json.dumps({"allOf": [*parts, {"title": str(number)}]}))


class Answer:
    """The updates of a submitted request."""

    def __init__(self, engine: Engine, constraint: Constraint | None) -> None:
        self._updates: queue.SimpleQueue[Update] = queue.SimpleQueue()
        began = time.monotonic()
        engine.submit(EngineRequest((5, 9, 3), 20, end_ids=(0,), constraint=constraint), self._updates.put)
        self.submit_s = time.monotonic() - began

    @property
    def has_any(self) -> bool:
        return not self._updates.empty()

    def last(self) -> Update:
        while True:
            update = self._updates.get(timeout=BUSY_S)
            if update.finish_reason:
                return update


def test_ordinary_requests_are_answered_beside_fifty_hostile_guides(engine: Engine) -> None:
    """They are answered while most hostile guides still wait: the order does not depend on the machine's speed."""
    with ThreadPoolExecutor(HOSTILE) as threads:
        attacks = [*threads.map(lambda number: Answer(engine, hostile(number)), range(HOSTILE))]
        kinds = (None, Constraint("json_schema", json.dumps(ORDINARY)), Constraint("regex", "(ab|cd){3}"))
        ordinary = [*threads.map(lambda constraint: Answer(engine, constraint), kinds)]
        reasons = [answer.last().finish_reason for answer in ordinary]
        tried = sum(attack.has_any for attack in attacks)
    assert reasons[0] in ("length", "end_id")
    assert reasons[1:] == ["end_id", "end_id"]
    assert tried <= HOSTILE // 3
    assert max(answer.submit_s for answer in (*attacks, *ordinary)) < 5.0  # compiling one of them takes 40 s


def test_waiting_requests_are_cancelled_when_the_engine_closes(engine: Engine) -> None:
    attacks = [Answer(engine, hostile(number)) for number in range(4)]
    engine.close()
    assert {attack.last().finish_reason for attack in attacks} == {"cancelled"}


def test_refused_guide_is_remembered_and_its_request_gets_the_error(engine: Engine) -> None:
    update = Answer(engine, Constraint("regex", "(")).last()
    assert (update.finish_reason, update.new_ids) == ("refused", ())
    assert str(update.refusal).startswith("the regex guide is not supported: ")
    with pytest.raises(TrtspecError, match="the regex guide is not supported: "):
        Answer(engine, Constraint("regex", "("))


class Trials:
    """Replaces trials: they wait until `release`, are recorded, and return `passes`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, passes: bool) -> None:
        self.tried: list[tuple[str, float]] = []
        self.release = threading.Event()

        def wait(trial: GuideTrial, constraint: Constraint, cpu_s: float) -> bool:
            self.tried.append((constraint.guide, cpu_s))
            assert self.release.wait(BUSY_S)
            return passes

        monkeypatch.setattr(GuideTrial, "passes", wait)

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + BUSY_S
        while len(self.tried) < count:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def compiler(tokenizer: Path) -> Iterator[GrammarCompiler]:
    compiler = GrammarCompiler(Tokenizer(tokenizer), 64)
    yield compiler
    compiler.close()


def test_identical_guides_share_one_compilation(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = Trials(monkeypatch, passes=True)
    with ThreadPoolExecutor(20) as threads:
        futures = [*threads.map(lambda _: compiler.submit(Constraint("regex", "ab")), range(20))]
    trials.release.set()
    assert len({id(future.result(BUSY_S)) for future in futures}) == 1
    assert trials.tried == [("ab", grammar_compiler.QUICK_S)]
    assert compiler.submit(Constraint("regex", "ab")).done()


def test_oldest_waiting_guide_is_refused_when_the_queue_is_full(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(monkeypatch, passes=True)
    compiler.submit(Constraint("regex", "first"))
    trials.wait_for(1)
    waiting = [compiler.submit(Constraint("regex", f"a{number}")) for number in range(grammar_compiler.MAX_NEW + 1)]
    with pytest.raises(Overloaded, match="the queue is full: 64 other guides wait to be compiled"):
        waiting[0].result(BUSY_S)
    assert not any(future.done() for future in waiting[1:])
    trials.release.set()
    waiting[-1].result(BUSY_S)
    assert trials.tried[1] == (f"a{grammar_compiler.MAX_NEW}", grammar_compiler.QUICK_S)


def test_guides_that_take_long_wait_in_a_bounded_queue_of_their_own(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = Trials(monkeypatch, passes=False)
    monkeypatch.setattr(grammar_compiler, "MAX_LONG", 0)
    refused = compiler.submit(Constraint("regex", "a"))
    trials.release.set()
    with pytest.raises(Overloaded, match="the queue is full: 0 other guides wait"):
        refused.result(BUSY_S)
    monkeypatch.setattr(grammar_compiler, "MAX_LONG", 1)
    future: Future[CompiledGrammar] = compiler.submit(Constraint("regex", "b"))
    with pytest.raises(TrtspecError, match="the regex guide cannot be compiled: it needs more than 3 s"):
        future.result(BUSY_S)
    assert trials.tried[1:] == [("b", grammar_compiler.QUICK_S), ("b", grammar_compiler.LONG_S)]


def test_guide_with_slow_masks_ends_its_request_only(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    class Slow:
        """A library matcher whose masks take 40 ms of processor time."""

        def __init__(self, matcher: Any) -> None:
            self._matcher = matcher

        def __getattr__(self, name: str) -> Any:
            return getattr(self._matcher, name)

        def unsafe_compute_mask_ptr(self, *arguments: Any) -> None:
            calls.append(time.thread_time())
            while time.thread_time() < calls[-1] + 0.04:
                pass
            self._matcher.unsafe_compute_mask_ptr(*arguments)

    def begin(grammar: CompiledGrammar, ends: Any) -> GrammarMatcher:
        matcher = matcher_of(grammar, ends)
        if matcher.forced() == [SYMBOLS.index("q") + 1]:
            matcher._matcher = Slow(matcher._matcher)
        return matcher

    matcher_of = CompiledGrammar.matcher
    monkeypatch.setattr(CompiledGrammar, "matcher", begin)
    slow = Answer(engine, Constraint("regex", "q[d-f]{200}"))
    ordinary = Answer(engine, Constraint("regex", "c[d-f]{3}"))
    failed = slow.last()
    assert failed.finish_reason == "error"
    assert failed.error == ("the grammar failed: its masks take more than 2 ms of processor time on average")
    assert len(calls) <= 2 + CpuBudget.START_S / 0.038
    assert ordinary.last().finish_reason == "end_id"


def test_masks_refill_the_budget_up_to_its_start() -> None:
    budget = CpuBudget()
    for _ in range(1000):
        budget.spend(0.0019, masks=1)
    assert not budget.is_exceeded
    budget.spend(CpuBudget.START_S + 0.001, masks=0)
    assert budget.is_exceeded
