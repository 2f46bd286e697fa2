# SPDX-License-Identifier: Apache-2.0
"""How far long work is, on stderr: bars where it is a terminal, elsewhere a line every half minute.

A log that says nothing for long reads as a hang, and some machines end a job for it. Those lines come from a thread,
since a tool that runs for minutes says nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from trtspec.cli.render import console, is_terminal, note

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, Task, TaskID

    from trtspec.store.executor import Status
    from trtspec.store.step import Step

PERIOD_S = 30.0

Expected = Callable[["Step"], float | None]


class BuildBars:
    """The observer of a build: a bar with the time left while bytes move, a line when it is done."""

    def __init__(self, progress: Progress, expected: Expected) -> None:
        self._progress = progress
        self._expected = expected
        self._bars: dict[str, TaskID] = {}

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show how much of a source is downloaded or unpickled; the total may grow meanwhile."""
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=total or None)
            note(f"  {what}")
        self._progress.update(self._bars[what], completed=done, total=total or None, visible=done < total)

    def reading(self, done: int, total: int) -> None:
        """Show how much of sources that nobody has read yet is read; they are before they are converted."""
        if "" not in self._bars:
            self._bars[""] = self._progress.add_task("read sources", total=total)
        self._progress.update(self._bars[""], completed=done, visible=done < total)

    def step_started(self, step: Step, total_bytes: int) -> None:
        """Begin a bar."""
        expected = self._expected(step)
        self._bars[step.key] = self._progress.add_task(step.name, total=total_bytes or None, expected=expected)

    def step_advanced(self, step: Step, n: int) -> None:
        """Move the bar."""
        self._progress.advance(self._bars[step.key], n)

    def step_said(self, step: Step, text: str) -> None:
        """Show beside the bar what the step's tool is at."""
        self._progress.update(self._bars[step.key], description=f"{step.name}: {text}")

    def step_finished(self, step: Step, status: Status, seconds: float) -> None:
        """Replace the bar by a line."""
        if step.key in self._bars:
            self._progress.remove_task(self._bars.pop(step.key))
        spent = f"{seconds:.2f} s" if status == "built" else "was there"
        note(f"  {step.name:<20} {status:<6} {spent}")


class Counter:
    """Shows counted work, several kinds one after another; call it with (what, done, total)."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show `done` of `total`; a finished kind disappears."""
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total)
        self._progress.update(self._tasks[what], completed=done, visible=done < total)


@contextmanager
def build_bars(expected: Expected = lambda step: None) -> Iterator[BuildBars]:
    """Show steps while the block runs; `expected` is how many seconds a step will take, where that is known."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    with _shown(TextColumn("  {task.description:<20}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()) as shown:
        yield BuildBars(shown, expected)


@contextmanager
def counter() -> Iterator[Counter]:
    """Show counts while the block runs."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    counts = TextColumn("{task.completed}/{task.total}")
    with _shown(TextColumn("  {task.description}"), BarColumn(), counts, TimeRemainingColumn()) as shown:
        yield Counter(shown)


@contextmanager
def _shown(*columns: ProgressColumn) -> Iterator[Progress]:
    from rich.progress import Progress

    out, ended = console(stderr=True), Event()
    if is_terminal(out):
        with Progress(*columns, console=out, transient=True) as progress:
            yield progress
        return
    progress = Progress(console=out, disable=True)  # which still counts
    teller = Thread(target=tell, args=(progress, ended.wait), daemon=True)
    teller.start()
    try:
        yield progress
    finally:
        ended.set()
        teller.join()  # unbounded: what it waits for has come


def tell(progress: Progress, wait: Callable[[float], bool]) -> None:
    """Print how far all work is each time that `wait` gives False after so many seconds, until it gives True."""
    started = progress.get_time()
    while not wait(PERIOD_S):
        running = [task for task in progress.tasks if task.visible and not task.finished]
        for task in running:
            note(f"  {task.description}: {_how_far(task)}")
        if not running:
            note(f"  still at work after {duration(progress.get_time() - started)}")


def _how_far(task: Task) -> str:
    """Return the share that is done, and the time left at the pace so far."""
    spent = task.elapsed or 0.0
    if not task.total:
        return f"{duration(spent)} so far"
    seconds = spent * task.remaining / task.completed if task.completed and task.remaining else _left(task, spent)
    return f"{task.percentage:.0f} %, {'unknown time' if seconds is None else duration(seconds)} left"


def _left(task: Task, spent: float) -> float | None:
    """Return the seconds left of what nothing is done of yet, as earlier builds took."""
    expected = task.fields.get("expected")
    return None if expected is None else max(0.0, expected - spent)


def duration(seconds: float) -> str:
    """Return a time as people read it, as 1 h 05 min or 2 min 30 s."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
