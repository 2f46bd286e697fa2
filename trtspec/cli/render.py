# SPDX-License-Identifier: Apache-2.0
"""Everything people see: tables, bars, problems. Goes to stderr; stdout is for documents and generated text.

The only module that imports rich, and where something is drawn, so that `--help` need not wait for it. Colours and
bars follow NO_COLOR and whether stderr is a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from trtspec.diagnostics import Diagnostic, RecipeError, render_diagnostic
from trtspec.errors import TrtspecError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from trtspec.graph.executor import Status
    from trtspec.graph.step import Step

FORMAT_VERSION = 1


@cache
def _console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_json(document: Mapping[str, Any]) -> None:
    """Print the command's one document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()  # a reader of the pipe waits for it, and may be gone


def one_or_many(documents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a document with all of them as `recipes`, and the keys of the only one beside it where there is one."""
    only = documents[0] if len(documents) == 1 else {}
    return {"format_version": FORMAT_VERSION, **only, "recipes": list(documents)}


def say(text: str, style: str = "") -> None:
    """Print a line for people; its text is never taken for markup."""
    _console().print(text, style=style, soft_wrap=True)


def show_error(error: TrtspecError, *, as_json: bool) -> None:
    """Show what the user has to act on."""
    if as_json:
        document: dict[str, Any] = {"format_version": FORMAT_VERSION, "ok": False}
        if isinstance(error, RecipeError):
            document["problems"] = [problem.as_dict() for problem in error.diagnostics]
        else:
            where = {"message": error.message, "where": error.where, "hint": error.hint}
            document["error"] = {**where, "exit_code": error.exit_code}
        print_json(document)
    if isinstance(error, RecipeError):
        show_diagnostics(error.diagnostics)
    else:
        say(f"error: {error}", "red")


def show_diagnostics(diagnostics: Sequence[Diagnostic]) -> None:
    """Show a recipe's diagnostics, one paragraph each."""
    for diagnostic in diagnostics:
        say(render_diagnostic(diagnostic) + "\n", "red" if diagnostic.severity == "error" else "yellow")


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> None:
    """Show a table; `right` are the columns with numbers."""
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    _console().print(table)


def amount(nbytes: float) -> str:
    """Return bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


class BuildBars:
    """The observer of a build: a bar with the time left while bytes move, a line when it is done."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._bars: dict[str, TaskID] = {}

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show how much of a source is downloaded or unpickled; the total may grow meanwhile."""
        if what not in self._bars:
            self._bars[what] = self._progress.add_task(what, total=total or None)
            self._progress.console.print(f"  {what}")
        self._progress.update(self._bars[what], completed=done, total=total or None, visible=done < total)

    def reading(self, done: int, total: int) -> None:
        """Show how much of sources that nobody has read yet is read; they are before they are converted."""
        if "" not in self._bars:
            self._bars[""] = self._progress.add_task("read sources", total=total)
        self._progress.update(self._bars[""], completed=done, visible=done < total)

    def step_started(self, step: Step, total_bytes: int) -> None:
        """Begin a bar."""
        self._bars[step.key] = self._progress.add_task(step.name, total=total_bytes or None)

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
        self._progress.console.print(f"  {step.name:<20} {status:<6} {spent}")


@contextmanager
def build_bars() -> Iterator[BuildBars]:
    """Draw bars on stderr while the block runs."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("  {task.description:<20}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=_console(), transient=True, disable=not _console().is_terminal) as progress:
        yield BuildBars(progress)


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
def counter() -> Iterator[Counter]:
    """Draw counts on stderr while the block runs."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("  {task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
    with Progress(
        *columns, TimeRemainingColumn(), console=_console(), transient=True, disable=not _console().is_terminal
    ) as progress:
        yield Counter(progress)
