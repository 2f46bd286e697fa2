# SPDX-License-Identifier: Apache-2.0
"""Progress of long operations and the log of `-v`, on stderr: bars on a terminal, otherwise a line every 30 s.

The lines show that the command is not hanging, and prevent CI systems from ending a silent job. A thread prints them,
because an external tool may run for minutes without output.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Event, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any

from trtspec.cli.render import console, is_terminal, note
from trtspec.core.diagnostics import escape_unprintable, mask_tokens

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, Task, TaskID

    from trtspec.fleet.scheduler import CellRun, StepRun
    from trtspec.store.executor import Status
    from trtspec.store.step import Step


PERIOD_S = 30.0
MAX_CELLS_SHOWN = 20

Expected = Callable[["Step"], float | None]


class Counter:
    """Progress callback, called with (what, done, total); each `what` has its own bar, whose total may grow."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def __call__(self, what: str, done: int, total: int) -> None:
        """Show `done` of `total`; hide a finished task."""
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=total or None)
        self._progress.update(self._bars[what], completed=done, total=total or None, visible=done < total)


class BuildBars(Counter):
    """Build observer: a bar with the remaining time for each running step, a line for each finished one."""

    def __init__(self, progress: Progress, expected: Expected) -> None:
        super().__init__(progress)
        self._expected = expected

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the progress of downloading or unpickling a source; the total may grow."""
        if what not in self._bars:
            note(f"  {what}")
        self(what, done, total)

    def reading(self, done: int, total: int) -> None:
        """Show the progress of hashing sources for the first time, which precedes their conversion."""
        self("read sources", done, total)

    def step_started(self, step: Step, total_bytes: int) -> None:
        if step.key in self._bars:  # a transfer precedes or follows the step itself
            self._progress.remove_task(self._bars[step.key])
        expected = self._expected(step)
        self._bars[step.key] = self._progress.add_task(step.name, total=total_bytes or None, expected=expected)

    def step_advanced(self, step: Step, n: int) -> None:
        self._progress.advance(self._bars[step.key], n)

    def step_message(self, step: Step, text: str) -> None:
        """Show the current activity of the step's tool next to the bar."""
        self._progress.update(self._bars[step.key], description=f"{step.name}: {text}")

    def step_finished(self, step: Step, status: Status, seconds: float) -> None:
        """Replace the bar of a step with a line."""
        if step.key in self._bars:
            self._progress.remove_task(self._bars.pop(step.key))
        spent = "reused" if status == "hit" else f"{seconds:.2f} s"
        note(f"  {step.name:<20} {status:<6} {spent}")


@contextmanager
def build_bars(expected: Expected = lambda step: None) -> Iterator[BuildBars]:
    """Show build steps while the block runs; `expected` returns the expected seconds of a step, or None."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    with _live_progress(
        TextColumn("  {task.description:<20}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    ) as shown:
        yield BuildBars(shown, expected)


WAITING = "waiting for "  # the beginning of messages that are shown without a terminal, too


class FleetTable(Counter):
    """Observer of a build on a pool: a table of cells on a terminal, otherwise a line for each finished step."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._cells: Sequence[CellRun] = ()
        self._steps: Mapping[str, StepRun] = {}
        self._done_bytes: dict[str, int] = {}
        self._messages: dict[str, str] = {}
        self.started = monotonic()

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the progress of downloading or unpickling a source; the total may grow."""
        self(what, done, total)

    def reading(self, done: int, total: int) -> None:
        """Show the progress of hashing sources for the first time."""
        self("read sources", done, total)

    def changed(self, cells: Sequence[CellRun], steps: Mapping[str, StepRun]) -> None:
        self._cells, self._steps = cells, steps
        if "steps" not in self._bars:
            self._bars["steps"] = self._progress.add_task("steps", total=len(steps))
        done = sum(run.state in ("done", "failed") for run in steps.values())
        self._progress.update(self._bars["steps"], completed=done)

    def advanced(self, run: StepRun, n_bytes: int) -> None:
        self._done_bytes[run.step.key] = self._done_bytes.get(run.step.key, 0) + n_bytes

    def message(self, run: StepRun, text: str) -> None:
        self._messages[run.step.key] = text
        if run.state in ("waiting", "queued") or text.startswith(WAITING):
            note(f"  {run.step.name:<20} {text}", "yellow")

    def step_finished(self, run: StepRun) -> None:
        """Print a line for a step that was built or failed, with its node and the number of cells that share it."""
        shared = f", shared by {len(run.cells)} cells" if len(run.cells) > 1 else ""
        if run.state == "failed":
            note(f"  {run.step.name:<20} failed on {run.node or 'no node'} for {run.cells[0]}{shared}", "red")
        elif run.status == "built":
            note(f"  {run.step.name:<20} built  {run.seconds:.2f} s on {run.node} for {run.cells[0]}{shared}")

    def cell_finished(self, run: CellRun) -> None:
        """Print a line for a cell that has no artifact; the results list the others."""
        if run.status != "built":
            reason = f": {run.failure.message}" if run.failure and run.status == "unplaceable" else ""
            note(f"  {run.cell.name}: {run.status}{reason}", "red")

    def __rich__(self) -> Any:
        """Return the table of the cells that are not finished, most advanced first, with the overall progress."""
        from rich.console import Group
        from rich.table import Table

        table = Table(box=None, padding=(0, 2, 0, 2), header_style="bold")
        for column in ("cell", "steps", "step", "node", "time"):
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        still = [run for run in self._cells if run.is_open]
        running = sorted(still, key=lambda run: run.status != "running")
        for run in running[:MAX_CELLS_SHOWN]:
            table.add_row(run.cell.name, *self._describe_cell(run))
        if len(still) > MAX_CELLS_SHOWN:
            table.add_row(f"and {len(still) - MAX_CELLS_SHOWN} more", "", "", "", "")
        return Group(table, self._progress) if still else self._progress

    def _describe_cell(self, run: CellRun) -> tuple[str, str, str, str]:
        steps = [self._steps[step.key] for step in run.cell.steps]
        done = sum(each.state == "done" for each in steps)
        current = next((each for each in steps if each.state == "running"), None)
        if current is None:
            return f"{done}/{len(steps)}", run.status, "", format_duration(monotonic() - self.started)
        total, count = current.step.total_bytes, self._done_bytes.get(current.step.key, 0)
        part = f" {min(1.0, count / total):.0%}" if total and count else ""
        text = f"{current.step.name}{part} {self._messages.get(current.step.key, '')}".rstrip()
        return f"{done}/{len(steps)}", text, current.node, format_duration(monotonic() - self.started)


@contextmanager
def fleet_table() -> Iterator[FleetTable]:
    """Show the cells of a build on a pool while the block runs."""
    from rich.live import Live
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    out = console(stderr=True)
    columns = (TextColumn("  {task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    if is_terminal(out):
        shown = FleetTable(Progress(*columns, TimeRemainingColumn(), console=out))
        with Live(shown, console=out, transient=True, refresh_per_second=4):
            yield shown
        return
    with _live_progress(*columns) as progress:
        yield FleetTable(progress)


@contextmanager
def counter() -> Iterator[Counter]:
    """Show the progress of counted work while the block runs."""
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

    counts = TextColumn("{task.completed}/{task.total}")
    with _live_progress(TextColumn("  {task.description}"), BarColumn(), counts, TimeRemainingColumn()) as shown:
        yield Counter(shown)


@contextmanager
def transfer_bars() -> Iterator[Counter]:
    """Show the progress, speed and remaining time of transfers in bytes while the block runs."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with _live_progress(TextColumn("  {task.description}"), *columns) as shown:
        yield Counter(shown)


@contextmanager
def _live_progress(*columns: ProgressColumn) -> Iterator[Progress]:
    from rich.progress import Progress

    out, ended = console(stderr=True), Event()
    if is_terminal(out):
        with Progress(*columns, console=out, transient=True) as progress:
            yield progress
        return
    progress = Progress(console=out, disable=True)  # not drawn, but still counts
    reporter = Thread(target=report_progress, args=(progress, ended.wait), daemon=True)
    reporter.start()
    try:
        yield progress
    finally:
        ended.set()
        reporter.join()  # unbounded: `ended` is set


def report_progress(progress: Progress, wait: Callable[[float], bool]) -> None:
    """Print the progress of all tasks each time that `wait(PERIOD_S)` returns False, until it returns True."""
    started = progress.get_time()
    while not wait(PERIOD_S):
        running = [task for task in progress.tasks if task.visible and not task.finished]
        for task in running:
            note(f"  {task.description}: {_describe(task)}")
        if not running:
            note(f"  still running after {format_duration(progress.get_time() - started)}")


def _describe(task: Task) -> str:
    """Return the completed share and the remaining time at the current pace."""
    spent = task.elapsed or 0.0
    if not task.total:
        return f"{format_duration(spent)} elapsed"
    expected: float | None = task.fields.get("expected")  # seconds of a step, by earlier builds
    seconds = None if expected is None else max(0.0, expected - spent)
    if task.completed and task.remaining:
        seconds = spent * task.remaining / task.completed
    return f"{task.percentage:.0f} %, {'unknown time' if seconds is None else format_duration(seconds)} left"


def format_duration(seconds: float) -> str:
    """Return a formatted duration, such as "1 h 05 min" or "2 min 30 s"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


PACKAGE = logging.getLogger("trtspec")


@contextmanager
def verbose() -> Iterator[None]:
    """Show log records of level INFO and above while the block runs."""
    handler, level = _Notes(), PACKAGE.level
    PACKAGE.addHandler(handler)
    PACKAGE.setLevel(logging.INFO)
    try:
        yield
    finally:
        PACKAGE.removeHandler(handler)
        PACKAGE.setLevel(level)


class _Notes(logging.Handler):
    """Log handler that prints above progress bars, with control characters escaped and tokens redacted."""

    def emit(self, record: logging.LogRecord) -> None:
        package = record.name.split(".")[1]
        for line in mask_tokens(self.format(record)).splitlines():
            note(f"{record.relativeCreated / 1000:8.2f} s  {package}: {escape_unprintable(line)}", "dim")
