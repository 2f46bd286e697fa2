# SPDX-License-Identifier: Apache-2.0
"""Runs a plan: takes from the store what is there, builds what is not, and tells an observer."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, Protocol

from trtspec.graph.entry import Entry
from trtspec.graph.plan import Plan
from trtspec.graph.step import Inputs, Step
from trtspec.graph.store import Store

Status = Literal["hit", "built"]


class Observer(Protocol):
    """Who wants to know how the work goes; drawn as bars by the command line."""

    def step_started(self, step: Step, total_bytes: int) -> None:
        """A step that is not in the store begins; `total_bytes` is 0 where its size is unknown."""

    def step_advanced(self, step: Step, n: int) -> None:
        """A begun step has moved `n` more bytes."""

    def step_finished(self, step: Step, status: Status, seconds: float) -> None:
        """A step's output is in the store; steps that were there to begin with come without a start."""


class Unobserved(Observer):
    """Nobody wants to know."""


@dataclass(frozen=True)
class StepResult:
    """What became of a step, how long that took in this run, and the verified output."""

    name: str
    key: str
    status: Status
    seconds: float
    entry: Entry


def execute(plan: Plan, store: Store, observer: Observer) -> list[StepResult]:
    """Bring every step of a plan into the store, in order; whatever a step raises ends the run and is passed on.

    What finished before stays in the store, so the next run resumes there.
    """
    results: dict[str, StepResult] = {}
    for step in plan.steps:
        started = time.perf_counter()
        entry, built = _obtain(step, store, results, observer)
        result = StepResult(step.name, step.key, "built" if built else "hit", time.perf_counter() - started, entry)
        observer.step_finished(step, result.status, result.seconds)
        results[step.key] = result
    return list(results.values())


def _obtain(step: Step, store: Store, results: dict[str, StepResult], observer: Observer) -> tuple[Entry, bool]:
    entry = store.get(step.key).entry
    if entry:
        return entry, False
    observer.step_started(step, step.total_bytes)
    inputs = Inputs({each.key: results[each.key].entry.files_dir for each in step.dependencies})
    return store.build(step, inputs, _Meter(step, observer))


class _Meter:
    def __init__(self, step: Step, observer: Observer) -> None:
        self._step = step
        self._observer = observer

    def advance(self, n_bytes: int) -> None:
        self._observer.step_advanced(self._step, n_bytes)
