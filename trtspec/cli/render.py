# SPDX-License-Identifier: Apache-2.0
"""What people see: results (tables, verdicts) on stdout, notes and errors on stderr; and the one document of `--json`.

With `progress.py` the only module that imports rich, and where something is drawn, so that `--help` need not wait for
it. Colours follow NO_COLOR and whether the stream is a terminal. What a terminal shows fits its width; elsewhere a line
is one line and a row of a table is one, however long, for what reads the pipe.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from io import TextIOWrapper
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

from trtspec.cli.chart import Marks, chart
from trtspec.cli.layout import counted, fitted_table, folded, folded_command, plain_table
from trtspec.core.diagnostics import Diagnostic, RecipeError, printable, render_diagnostic
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from rich.console import Console

FORMAT_VERSION = 1


@cache
def console(*, stderr: bool) -> Console:
    """Return what writes to a stream, the one that is in its place when something is written."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def is_terminal(stream: Console) -> bool:
    """Return whether somebody looks: a stream that FORCE_COLOR makes coloured is still no terminal."""
    return stream.is_terminal and stream.file.isatty()


def print_json(document: Mapping[str, Any]) -> None:
    """Print the command's one document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()  # a reader of the pipe waits for it, and may be gone


def one_or_many(documents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a document with all of them as `recipes`, and the keys of the only one beside it where there is one."""
    only = documents[0] if len(documents) == 1 else {}
    return {"format_version": FORMAT_VERSION, **only, "recipes": list(documents)}


def say(text: str, style: str = "") -> None:
    """Print a line of a result on stdout; its text is never taken for markup."""
    _print(console(stderr=False), text, style)


def say_command(label: str, command: str) -> None:
    """Print a shell's command on stdout, so that it can be copied from a terminal, too."""
    out, text = console(stderr=False), f"{label}: {command}"
    out.print("\n".join(folded_command(text, out.width)) if is_terminal(out) else text, soft_wrap=True)


def show_foreign(pieces: Iterable[bytes]) -> None:
    """Print a stranger's text on stdout as it comes: bytes as they are, but on a terminal nothing that controls it."""
    encoding, is_shown = sys.stdout.encoding, is_terminal(console(stderr=False))
    handler = "replace" if is_shown else "surrogateescape"
    decoder = codecs.getincrementaldecoder(encoding)(handler)
    cast(TextIOWrapper, sys.stdout).reconfigure(errors=handler)
    for piece in chain(pieces, [b""]):
        text = decoder.decode(piece, final=not piece)
        sys.stdout.write("\n".join(map(printable, text.split("\n"))) if is_shown else text)
        sys.stdout.flush()  # somebody waits for each line


def note(text: str, style: str = "") -> None:
    """Print a line about the work, which is no part of its result, on stderr."""
    _print(console(stderr=True), text, style)


def _print(out: Console, text: str, style: str = "") -> None:
    """Print lines, which are broken between words where they are wider than a terminal."""
    out.print("\n".join(folded(text, out.width)) if is_terminal(out) else text, style=style, soft_wrap=True)


def render_error(error: TrtspecError) -> dict[str, Any]:
    """Return the document of a command that failed."""
    document: dict[str, Any] = {"format_version": FORMAT_VERSION, "ok": False}
    if isinstance(error, RecipeError):
        return document | {"problems": [problem.as_dict() for problem in error.diagnostics]}
    said = {"message": error.message, "where": error.where, "hint": error.hint, "exit_code": error.exit_code}
    return document | {"error": said}


def show_error(error: TrtspecError, *, as_json: bool) -> None:
    """Show what the user has to act on."""
    error.hint = error.hint or error.remedy
    if as_json:
        print_json(render_error(error))
    if isinstance(error, RecipeError):
        show_diagnostics(error.diagnostics)
        note(problems_of(error.diagnostics), "red")
    else:
        note(f"error: {error}", "red")


def problems_of(diagnostics: Iterable[Diagnostic]) -> str:
    """Return how many errors there are and, beside them, how many warnings; "" of neither."""
    severities = [each.severity for each in diagnostics]
    counts = {name: sum(each == name for each in severities) for name in ("error", "warning")}
    return ", ".join(counted(count, name) for name, count in counts.items() if count)


def show_diagnostics(diagnostics: Sequence[Diagnostic], *, are_result: bool = False) -> None:
    """Show a recipe's diagnostics, one paragraph each; only of `check` they are the result."""
    out = console(stderr=not are_result)
    for diagnostic in diagnostics:
        style = "red" if diagnostic.severity == "error" else "yellow"
        _print(out, render_diagnostic(diagnostic) + "\n", style)


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    *,
    is_result: bool = True,
) -> None:
    """Show a table; `right` are the columns with numbers."""
    out = console(stderr=not is_result)
    fitted = is_terminal(out)
    table = fitted_table(columns, rows, right, out.width) if fitted else plain_table(columns, rows, right)
    if title:
        _print(out, title)
    for number, lines in enumerate(table):
        for line in filter(None, lines):
            out.print(line, style="" if number else "bold", soft_wrap=True)


def show_chart(title: str, name: str, rows: Sequence[tuple[str, Marks]], letters: Mapping[str, str]) -> None:
    """Show a plot on a terminal, and nowhere else: its numbers are in the table beside it.

    `name` is what the rows' labels are, `letters` what their marks stand for.
    """
    out = console(stderr=False)
    lines = chart(name, rows, out.width) if is_terminal(out) else []
    if lines:
        say(title)
        for line in lines:
            out.print(line, soft_wrap=True)
        say(", ".join(f"{letter}: {meaning}" for letter, meaning in letters.items()))
