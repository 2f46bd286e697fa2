# SPDX-License-Identifier: Apache-2.0
"""Execution of a plan: take outputs from the store, build the missing ones and notify an observer.

Outputs that the build does not need are neither fetched nor built. Steps run sequentially in plan order. Steps that
require devices run concurrently with the others, each on its own devices, as far as devices are free.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Condition, Lock
from typing import Literal, Protocol

from trtspec.core.processes import sigterm_as_interrupt
from trtspec.store.entry import StoreEntry
from trtspec.store.files import with_digests
from trtspec.store.plan import StepPlan, plan_status
from trtspec.store.step import Inputs, RunStopped, Step, StepProgress
from trtspec.store.store import Store

log = logging.getLogger(__name__)

Status = Literal["hit", "fetched", "built", "unneeded"]
WAKE_S = 0.5  # a signal delivered to another thread is handled when this thread wakes


class Observer(Protocol):
    """Interface for receiving the progress of a run, one call at a time."""

    def step_started(self, step: Step, total_bytes: int) -> None:
        """Called when a step or the transfer of its output starts; `total_bytes` is 0 if its size is unknown.

        A step may start several times: the transfer from a team store, the step itself, and the transfer to it.
        """

    def step_advanced(self, step: Step, n: int) -> None:
        """Called when a running step has processed `n` more bytes."""

    def step_message(self, step: Step, text: str) -> None:
        """Called when a running step reports its current activity."""

    def step_finished(self, step: Step, status: Status, seconds: float) -> None:
        """Called when a step's output is in the store; `seconds` is the time spent on the step in this run."""


class Unobserved:
    """An observer that ignores every event."""

    def step_started(self, step: Step, total_bytes: int) -> None: ...
    def step_advanced(self, step: Step, n: int) -> None: ...
    def step_message(self, step: Step, text: str) -> None: ...
    def step_finished(self, step: Step, status: Status, seconds: float) -> None: ...


@dataclass(frozen=True)
class StepResult:
    """The result of a step with its final key: status, seconds spent on it in this run, and its verified entry.

    An unneeded step has no entry.
    """

    step: Step
    status: Status
    seconds: float
    entry: StoreEntry | None

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def key(self) -> str:
        return self.step.key

    @property
    def output(self) -> StoreEntry:
        """Return the entry; raises ValueError for an unneeded step."""
        if self.entry is None:
            raise ValueError(f"the output of {self.name} was not needed")
        return self.entry


def execute(plan: StepPlan, store: Store, observer: Observer, devices: Sequence[str] = ()) -> list[StepResult]:
    """Build the missing steps of a plan that are needed, and return the results of all its steps, in plan order.

    The first exception of a step ends the run and is raised. Finished steps stay in the store, so the next run
    continues there. `devices` are allocated to steps that require some; without any, such steps run like other steps.
    """
    run = _Run(store, observer)
    with sigterm_as_interrupt():
        statuses = plan_status(plan, store)
        run.results |= {
            each.key: StepResult(each.step, "unneeded", 0.0, None) for each in statuses if each.status == "unneeded"
        }
        steps = [each.step for each in statuses if each.status != "unneeded"]
        if devices and any(step.num_devices for step in steps):
            _run_concurrently(steps, run, list(devices))
        else:
            for step in steps:
                run.bring(step)
    return [run.results[step.key] for step in plan.steps]


class _Run:
    """The state of one run: results by the plan's keys, digests of source files, and the first failure.

    It is shared by the threads that run steps.
    """

    def __init__(self, store: Store, observer: Observer) -> None:
        self.results: dict[str, StepResult] = {}
        self.failure: BaseException | None = None
        self._found: dict[Path, tuple[str, str]] = {}
        self._store = store
        self._observer = observer
        self._lock = Lock()
        self._idle = Condition(self._lock)
        self._working = 0

    def is_ready(self, step: Step) -> bool:
        return all(each.key in self.results for each in step.dependencies)

    def bring(self, step: Step, devices: tuple[str, ...] = ()) -> None:
        """Bring a step's output into the store, and inputs that seemed unneeded if the step has to run after all."""
        started = time.perf_counter()
        absent = [each for each in step.dependencies if self.results[each.key].entry is None]
        if absent and not self._store.get(step.key).entry:
            if entry := self._store.fetch(step, lambda total: _Meter(step, self, total)):
                self._finish(step.key, StepResult(step, "fetched", time.perf_counter() - started, entry))
                return
            for each in absent:
                self.bring(each)
            started, absent = time.perf_counter(), []
        planned_key, known = step.key, [each for each in step.dependencies if each not in absent]
        before = [self.results[each.key].output for each in known]
        inputs = Inputs({entry.key: entry.files_dir for entry in before}, devices)
        step = with_digests(step, self._found)
        found = self._store.obtain(step, inputs, lambda total: _Meter(step, self, total))
        self._found |= inputs.found_digests
        self._finish(planned_key, StepResult(found.step, found.status, time.perf_counter() - started, found.entry))

    def _finish(self, planned_key: str, result: StepResult) -> None:
        log.info("%s: %s in %.2f s, %s", result.name, result.status, result.seconds, result.output.directory)
        with self.observing() as observer:
            observer.step_finished(result.step, result.status, result.seconds)
        self.results[planned_key] = result

    def fail(self, error: BaseException) -> BaseException:
        """Record an error, unless the run has already failed, and return the run's first error."""
        with self._lock:
            self.failure = self.failure or error
        return self.failure

    @contextmanager
    def working(self) -> Iterator[None]:
        """Context manager that counts a thread as working; raises RunStopped if the run has already failed."""
        with self._idle:
            if self.failure:
                raise RunStopped
            self._working += 1
        try:
            yield
        finally:
            with self._idle:
                self._working -= 1
                self._idle.notify_all()

    def wait_until_idle(self) -> None:
        with self._idle:
            self._idle.wait_for(lambda: not self._working)

    @contextmanager
    def observing(self) -> Iterator[Observer]:
        """Context manager that gives one thread at a time access to the observer."""
        with self._lock:
            yield self._observer


class _Meter(StepProgress):
    """Reports a step's start and progress to the observer; raises RunStopped in the step if the run has failed."""

    def __init__(self, step: Step, run: _Run, total_bytes: int) -> None:
        self._step = step
        self._run = run
        with run.observing() as observer:
            observer.step_started(step, total_bytes)

    def advance(self, n_bytes: int) -> None:
        if self._run.failure:
            raise RunStopped
        if n_bytes:
            with self._run.observing() as observer:
                observer.step_advanced(self._step, n_bytes)

    def set_message(self, text: str) -> None:
        with self._run.observing() as observer:
            observer.step_message(self._step, text)


def _run_concurrently(steps: Sequence[Step], run: _Run, free: list[str]) -> None:
    """Run steps with devices in threads and other steps in this thread; the first failure stops all and is raised."""
    waiting, most = list(steps), len(free)
    lent: dict[Future[None], tuple[str, ...]] = {}
    with ThreadPoolExecutor(most) as pool:
        try:
            while waiting or lent:
                for step in [each for each in waiting if each.num_devices and run.is_ready(each)]:
                    if (wanted := min(step.num_devices, most)) <= len(free):
                        devices, free = tuple(free[:wanted]), free[wanted:]
                        lent[pool.submit(_bring, run, step, devices)] = devices
                        waiting.remove(step)
                here = next((each for each in waiting if not each.num_devices and run.is_ready(each)), None)
                if here:
                    waiting.remove(here)
                    run.bring(here)
                # Poll for finished steps without waiting as long as this thread has work.
                for future in wait(lent, timeout=0 if here else WAKE_S, return_when=FIRST_COMPLETED).done:
                    future.result()
                    free += lent.pop(future)
        except BaseException as error:
            failure = run.fail(error)
            # Steps stop at their next progress report. The pool alone does not wait for all of them: it does not track
            # a thread that was being started when an interrupt arrived.
            run.wait_until_idle()
            raise failure from None


def _bring(run: _Run, step: Step, devices: tuple[str, ...]) -> None:
    try:
        with run.working():
            run.bring(step, devices)
    except BaseException as error:
        run.fail(error)
        raise
