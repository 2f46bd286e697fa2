# SPDX-License-Identifier: Apache-2.0
"""Schedules the steps of many cells on a pool: each key once, ready steps first, lost steps again.

A failed step ends the cells that need it; all other cells continue. This module does not know where steps run, and
publishes nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from trtspec.core.errors import TrtspecError
from trtspec.fleet.labels import Node, Requirement, choose_requirement, explain_unplaceable, suggest_labels
from trtspec.fleet.pool import Advanced, Event, Failure, Finished, Lost, Message, Outcome, Pool, Started, Task
from trtspec.store.plan import needed_keys
from trtspec.store.step import Step

log = logging.getLogger(__name__)

WAKE_S = 0.5
NODES_PERIOD_S = 5.0  # between two looks at the nodes of a pool
MAX_ATTEMPTS = 5
STALL_S = 120.0
GRACE_S = 15.0  # for a lost node to return before the cells that need it are given up


class MissingOutputs(Exception):
    """Raised by `publish` for outputs, by key, that no store has any more. Internal; the steps run again."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(", ".join(keys))
        self.keys = tuple(keys)


CellStatus = Literal["waiting", "running", "built", "failed", "unplaceable"]


@dataclass(frozen=True)
class Cell:
    """One artifact to build: its steps in plan order, and what each requires, by key; `where` locates it for users.

    `outputs` are the keys of the steps whose outputs are published, by default of all. Other steps run only if one that
    has to run needs them.
    """

    name: str
    steps: tuple[Step, ...]
    requirements: Mapping[str, Requirement] = field(default_factory=dict)
    where: str = ""
    outputs: frozenset[str] = frozenset()

    @property
    def published(self) -> frozenset[str]:
        return self.outputs or frozenset(step.key for step in self.steps)


@dataclass(frozen=True)
class Limits:
    """Limits of a run.

    Attributes:
        attempts: runs of a step whose node was lost each time, before the step fails.
        wait_s: seconds to wait for a node that fits, as on a cluster that grows on demand.
        stall_s: seconds without any running step before the pool counts as unusable.
        strict: refuse to start if any cell cannot be placed.
    """

    attempts: int = MAX_ATTEMPTS
    wait_s: float = 0.0
    stall_s: float = STALL_S
    strict: bool = False


@dataclass
class StepRun:
    """The state of one key: its step, the alternatives that its cells accept, and what became of it.

    `inputs` are the keys of its dependencies. `status` is that of the outcome when `state` is "done", and "unneeded"
    for a step that did not have to run. `builds` counts how often the step was built: a worker of this run published
    its output, even if that worker was lost before it could report it. `chosen` is the alternative for which the step
    is queued or running, and `again` that of its Task. `lost_on` are the nodes that were lost while they ran it, or ""
    for one that had not reported its start.
    """

    step: Step
    inputs: tuple[str, ...] = ()
    alternatives: list[Requirement] = field(default_factory=list)
    cells: list[str] = field(default_factory=list)
    state: Literal["waiting", "queued", "running", "done", "failed"] = "waiting"
    status: Literal["hit", "fetched", "built", "unneeded", ""] = ""
    node: str = ""
    seconds: float = 0.0
    builds: int = 0
    losses: int = 0
    failure: Failure | None = None
    chosen: Requirement | None = None
    again: bool = False
    lost_on: list[str] = field(default_factory=list)


@dataclass
class CellRun:
    """The state of one cell; `failure` is its error, and `step` the name of the step that failed."""

    cell: Cell
    status: CellStatus = "waiting"
    failure: Failure | None = None
    step: str = ""
    node: str = ""
    seconds: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.status in ("waiting", "running")


class FleetObserver(Protocol):
    """Interface for receiving the progress of a run."""

    def changed(self, cells: Sequence[CellRun], steps: Mapping[str, StepRun]) -> None:
        """Called after each change of state; the arguments are the same objects each time."""

    def advanced(self, run: StepRun, n_bytes: int) -> None:
        """Called when a running step has processed `n_bytes` more."""

    def message(self, run: StepRun, text: str) -> None:
        """Called when a running step reports its activity, and when its node is lost."""

    def step_finished(self, run: StepRun) -> None:
        """Called when a step is built, found in the store, or failed."""

    def cell_finished(self, run: CellRun) -> None:
        """Called when a cell is published, failed, or cannot be placed."""


class UnobservedFleet:
    """An observer that ignores every event."""

    def changed(self, cells: Sequence[CellRun], steps: Mapping[str, StepRun]) -> None: ...
    def advanced(self, run: StepRun, n_bytes: int) -> None: ...
    def message(self, run: StepRun, text: str) -> None: ...
    def step_finished(self, run: StepRun) -> None: ...
    def cell_finished(self, run: CellRun) -> None: ...


class Scheduler:
    """Runs the steps of cells on a pool.

    `has` returns whether the output of a step exists, and `hand_over` makes an output that exists available to all
    workers; it is called once for each of them. `publish` is called with a cell whose steps are all done; a
    TrtspecError that it raises fails the cell. The pool is not used if no step has to run.
    """

    def __init__(
        self,
        cells: Iterable[Cell],
        pool: Pool,
        *,
        has: Callable[[Step], bool] = lambda step: False,
        hand_over: Callable[[Step], None] = lambda step: None,
        publish: Callable[[Cell, Mapping[str, StepRun]], None] = lambda cell, steps: None,
        observer: FleetObserver | None = None,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cells = [CellRun(cell) for cell in cells]
        self.steps = _merge(run.cell for run in self.cells)
        self._by_name = {run.cell.name: run for run in self.cells}
        self._pool, self._has, self._hand_over, self._publish = pool, has, hand_over, publish
        self._observer: FleetObserver = observer or UnobservedFleet()
        self._limits, self._clock = limits or Limits(), clock
        self._started = self._active_at = self._nodes_at = clock()
        self._nodes: list[Node] = []
        self._unfit_since: dict[str, float] = {}  # by step key

    def run(self) -> None:
        """Run until each cell is published, failed or cannot be placed; the states are in `cells` and `steps`.

        Raise TrtspecError if the pool becomes unusable, or in strict mode if a cell cannot be placed.
        """
        for run in self.steps.values():
            if self._has(run.step):
                self._finish(run, "hit")
        if any(self.steps[key].state != "done" for key in self._needed()):
            self._nodes, self._nodes_at = self._pool.nodes(), self._clock()
            self._refuse_unplaceable(self._limits.wait_s)
        if self._limits.strict and (refused := [run for run in self.cells if run.status == "unplaceable"]):
            raise TrtspecError(
                f"{len(refused)} of {len(self.cells)} cells cannot be placed: {_summary(refused[0])}",
                where=refused[0].cell.where,
                hint="add nodes with these labels, or omit --strict to build the other cells",
            )
        self._publish_finished()
        if any(run.is_open for run in self.cells):
            self._nodes = self._nodes or self._pool.nodes()
            self._pool.prepare()
        for run in [each for each in self.steps.values() if each.status == "hit"]:
            self._hand_over(run.step)
        self._active_at = self._clock()
        while any(run.is_open for run in self.cells):
            self._submit_ready()
            events = self._pool.wait(WAKE_S)
            for event in events:
                self._apply(event)
            if events:
                self._publish_finished()
                self._observer.changed(self.cells, self.steps)
            self._look_at_nodes(has_events=bool(events))
        for run in self.steps.values():
            if run.state == "waiting" and any(self._by_name[name].status == "built" for name in run.cells):
                run.status = "unneeded"

    def _submit_ready(self) -> None:
        needed = self._needed()
        for run in self.steps.values():
            if run.state == "waiting" and run.step.key in needed and self._is_ready(run):
                # Without a fitting node, the first alternative is queued, which a growing cluster takes as demand.
                chosen = choose_requirement(run.alternatives, self._nodes) or run.alternatives[0]
                run.state, run.chosen = "queued", chosen
                self._pool.submit(Task(run.step, chosen, run.again))

    def _needed(self) -> set[str]:
        """Return the keys of the outputs that the open cells need."""
        published = {key for run in self.cells if run.is_open for key in run.cell.published}
        present = {key for key, run in self.steps.items() if run.state == "done"}
        return needed_keys([run.step for run in self.steps.values()], published, present)

    def _is_ready(self, run: StepRun) -> bool:
        return all(self.steps[key].state == "done" for key in run.inputs)

    def _apply(self, event: Event) -> None:
        run = self.steps[event.key]
        if isinstance(event, Started):
            run.state, run.node = "running", event.node
            for cell in self._open_cells(run):
                cell.status, cell.node = "running", event.node
        elif isinstance(event, Advanced):
            self._observer.advanced(run, event.n_bytes)
        elif isinstance(event, Message):
            self._observer.message(run, event.text)
        elif isinstance(event, Lost):
            self._lose(run, event)
        elif isinstance(event, Finished):
            self._end(run, event.outcome)

    def _end(self, run: StepRun, outcome: Outcome) -> None:
        run.node, run.seconds = outcome.node, run.seconds + outcome.seconds
        if outcome.status == "missing":
            self._rebuild_inputs(run, outcome)
        elif outcome.status == "failed":
            self._fail(run, outcome.failure or Failure("the worker reported no reason"))
        else:
            if outcome.status == "built":
                run.builds += 1
            elif run.lost_on and not run.builds:  # it was absent before: the lost worker published it
                run.builds, run.node = 1, run.lost_on[-1] or run.node
            self._finish(run, "built" if run.builds else outcome.status)

    def _finish(self, run: StepRun, status: Literal["hit", "fetched", "built"]) -> None:
        run.state, run.status = "done", status
        self._observer.step_finished(run)

    def _lose(self, run: StepRun, event: Lost) -> None:
        run.losses += 1
        run.lost_on.append(run.node if run.state == "running" else "")
        run.state = "waiting"
        log.info("%s: lost on %s: %s", run.step.name, event.node, event.reason)
        if run.losses >= self._limits.attempts:
            message = f"its worker was lost {run.losses} times, last on {event.node}: {event.reason}"
            self._fail(run, Failure(message, hint="look for an out-of-memory kill in the log of the node"))
        else:
            self._observer.message(run, f"lost on {event.node}, runs again")

    def _rebuild_inputs(self, run: StepRun, outcome: Outcome) -> None:
        """Build again what a worker's store and the team store lack: a node was lost together with its outputs."""
        run.losses += 1
        run.state = "waiting"
        if run.losses >= self._limits.attempts:
            self._fail(run, _missing(outcome.node, [self.steps[key].step.name for key in outcome.missing]))
            return
        log.info("%s: %s lacks %s", run.step.name, outcome.node, ", ".join(outcome.missing))
        self._rebuild(outcome.missing)

    def _rebuild(self, keys: Iterable[str]) -> None:
        for run in (self.steps[key] for key in keys if key in self.steps):
            if run.state == "done":
                run.state, run.again = "waiting", True

    def _fail(self, run: StepRun, failure: Failure) -> None:
        run.state, run.failure = "failed", failure
        self._observer.step_finished(run)
        for cell in self._open_cells(run):
            self._close(cell, "failed", failure, run.step.name)
        self._cancel_unneeded()

    def _open_cells(self, run: StepRun) -> list[CellRun]:
        """Return the open cells that need a step."""
        return [cell for name in run.cells if (cell := self._by_name[name]).is_open]

    def _cancel_unneeded(self) -> None:
        needed = self._needed()
        for run in self.steps.values():
            if run.state in ("queued", "running") and run.step.key not in needed:
                self._pool.cancel(run.step.key)
                run.state = "waiting"

    def _close(self, run: CellRun, status: CellStatus, failure: Failure | None = None, step: str = "") -> None:
        run.status, run.failure, run.step = status, failure, step
        run.seconds = self._clock() - self._started
        self._observer.cell_finished(run)

    def _publish_finished(self) -> None:
        for run in self.cells:
            if run.is_open and all(self.steps[key].state == "done" for key in run.cell.published):
                self._publish_cell(run)

    def _publish_cell(self, run: CellRun) -> None:
        try:
            self._publish(run.cell, self.steps)
        except MissingOutputs as error:
            lost = [self.steps[key] for key in error.keys]
            for each in lost:
                each.losses += 1
            if any(each.losses >= self._limits.attempts for each in lost):
                failure = _missing("this machine", [each.step.name for each in lost])
                self._close(run, "failed", failure, lost[0].step.name)
            else:
                self._rebuild(error.keys)
        except TrtspecError as error:
            failure = Failure(error.message, error.where, error.hint or error.remedy, error.exit_code)
            self._close(run, "failed", failure, "publish")
        else:
            self._close(run, "built")

    def _refuse_unplaceable(self, patience_s: float) -> None:
        """Close the cells with a step that no node has been able to run for `patience_s`."""
        now, needed = self._clock(), self._needed()
        for run in self.steps.values():
            is_waiting = run.state in ("waiting", "queued") and run.step.key in needed
            if not is_waiting or choose_requirement(run.alternatives, self._nodes):
                self._unfit_since.pop(run.step.key, None)
            elif now - self._unfit_since.get(run.step.key, now) >= patience_s:
                self._give_up(run)
            elif self._unfit_since.setdefault(run.step.key, now) == now:
                why = explain_unplaceable(run.alternatives, self._nodes)
                self._observer.message(run, f"waiting for a node, for {patience_s:.0f} s: {why}")
        self._cancel_unneeded()

    def _requeue_unfit(self) -> None:
        """Queue steps again that wait for a node that was lost, if a node fits another alternative."""
        for run in self.steps.values():
            is_unfit = run.state == "queued" and run.chosen and not choose_requirement([run.chosen], self._nodes)
            if is_unfit and choose_requirement(run.alternatives, self._nodes):
                self._pool.cancel(run.step.key)
                run.state = "waiting"

    def _give_up(self, run: StepRun) -> None:
        nearest = suggest_labels(run.alternatives, self._nodes)
        failure = Failure(
            f"no node can run {run.step.name}: {explain_unplaceable(run.alternatives, self._nodes)}",
            hint=nearest or "start a node with these labels, or wait for one with --wait-for-nodes",
            exit_code=1,
        )
        for cell in self._open_cells(run):
            self._close(cell, "unplaceable", failure, run.step.name)

    def _look_at_nodes(self, *, has_events: bool) -> None:
        """Look regularly for lost and new nodes; raise TrtspecError if nothing has run for too long."""
        now = self._clock()
        if has_events or any(run.state == "running" for run in self.steps.values()):
            self._active_at = now
        if now - self._nodes_at >= NODES_PERIOD_S:
            self._nodes_at, self._nodes = now, self._pool.nodes()
            self._requeue_unfit()
            self._refuse_unplaceable(max(self._limits.wait_s, GRACE_S))
        if now - self._active_at > self._limits.stall_s + self._limits.wait_s:
            queued = sum(run.state == "queued" for run in self.steps.values())
            raise TrtspecError(
                f"no step has run for {now - self._active_at:.0f} s, although {queued} are queued",
                hint="see whether other work occupies the nodes; finished steps are cached: run the command again",
            )


def _merge(cells: Iterable[Cell]) -> dict[str, StepRun]:
    """Return the steps of all cells by key, dependencies first; equal keys are one step."""
    steps: dict[str, StepRun] = {}
    for cell in cells:
        for step in cell.steps:
            if step.key not in steps:
                steps[step.key] = StepRun(step, tuple(each.key for each in step.dependencies))
            run = steps[step.key]
            run.cells.append(cell.name)
            requirement = cell.requirements.get(step.key, Requirement(devices=step.num_devices))
            if requirement not in run.alternatives:
                run.alternatives.append(requirement)
    return steps


def _missing(node: str, names: Sequence[str]) -> Failure:
    hint = "give all nodes one store: TRTSPEC_REMOTE, or TRTSPEC_CACHE on a file system that all of them mount"
    return Failure(f"{node} does not find the output of {', '.join(names)}", hint=hint)


def _summary(run: CellRun) -> str:
    return f"{run.cell.name}: {run.failure.message}" if run.failure else run.cell.name
