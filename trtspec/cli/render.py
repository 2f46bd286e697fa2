# SPDX-License-Identifier: Apache-2.0
"""Terminal output: results on stdout, notes and errors on stderr, and the JSON document of `--json`.

Only this module and `progress.py` import rich, and only inside functions, which keeps `--help` fast. Colors depend on
NO_COLOR and on the type of the stream. Lines and tables are fitted to the width of a terminal. In a pipe, each line and
each row of a table stays one line.
"""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from trtspec.cli.layout import Marks, chart, fitted_table, plain_table, pluralize, wrap_command, wrap_text
from trtspec.core.diagnostics import Diagnostic, RecipeError, escape_unprintable, render_diagnostic
from trtspec.core.errors import TrtspecError
from trtspec.core.files import replace_file

if TYPE_CHECKING:
    from rich.console import Console

FORMAT_VERSION = 1


@cache
def console(*, stderr: bool) -> Console:
    """Return the console of stdout or stderr; it looks up the current stream on each write."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def is_terminal(stream: Console) -> bool:
    """Return whether a stream is a real terminal; FORCE_COLOR alone does not count."""
    return stream.is_terminal and stream.file.isatty()


def print_json(document: Mapping[str, Any]) -> None:
    """Print the JSON document of a command on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()  # detect a closed pipe now


def print_result(document: Mapping[str, Any], show: Callable[[], object], *, as_json: bool) -> None:
    """Print the result of a command: its document with `as_json`; otherwise call `show`, which prints it."""
    if as_json:
        print_json(document)
    else:
        show()


def write_output(path: Path, text: str, what: str, hint: str | None = None, *, parents: bool = False) -> None:
    """Write a command's output file atomically; raise a TrtspecError that names it as `what` if that fails.

    With `parents`, missing parent directories are created.
    """
    try:
        if parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.encode())
    except OSError as error:
        raise TrtspecError(f"cannot write {what}: {error.strerror}", where=str(path), hint=hint) from None


def combine_documents(documents: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return a document that lists all documents under `recipes`; a single one is also merged into the top level."""
    only = documents[0] if len(documents) == 1 else {}
    return {"format_version": FORMAT_VERSION, **only, "recipes": list(documents)}


def print_line(text: str, style: str = "") -> None:
    """Print a line of the result on stdout, without interpreting markup."""
    _print(console(stderr=False), text, style)


def print_command(label: str, command: str) -> None:
    """Print a shell command on stdout, wrapped so that it can be copied from a terminal."""
    out, text = console(stderr=False), f"{label}: {command}"
    out.print("\n".join(wrap_command(text, out.width)) if is_terminal(out) else text, soft_wrap=True)


def print_untrusted(pieces: Iterable[bytes]) -> None:
    """Print untrusted bytes on stdout as they arrive; on a terminal, escape control characters."""
    encoding, on_terminal = sys.stdout.encoding, is_terminal(console(stderr=False))
    handler = "replace" if on_terminal else "surrogateescape"
    decoder = codecs.getincrementaldecoder(encoding)(handler)
    cast(TextIOWrapper, sys.stdout).reconfigure(errors=handler)
    for piece in chain(pieces, [b""]):
        text = decoder.decode(piece, final=not piece)
        sys.stdout.write("\n".join(map(escape_unprintable, text.split("\n"))) if on_terminal else text)
        sys.stdout.flush()  # show each line immediately


def note(text: str, style: str = "") -> None:
    """Print a note, which is not part of the result, on stderr."""
    _print(console(stderr=True), text, style)


def warn(text: object) -> None:
    note(f"warning: {text}", "yellow")


def _print(out: Console, text: str, style: str = "") -> None:
    """Print lines, wrapped between words to the width of a terminal."""
    out.print("\n".join(wrap_text(text, out.width)) if is_terminal(out) else text, style=style, soft_wrap=True)


def render_error(error: TrtspecError) -> dict[str, Any]:
    """Return the JSON document of a command that failed."""
    document: dict[str, Any] = {"format_version": FORMAT_VERSION, "ok": False}
    if isinstance(error, RecipeError):
        return document | {"problems": [problem.as_dict() for problem in error.diagnostics]}
    fields = {"message": error.message, "where": error.where, "hint": error.hint, "exit_code": error.exit_code}
    return document | {"error": fields}


def show_error(error: TrtspecError, *, as_json: bool) -> None:
    """Show an error with its hint; with `as_json`, also as a document on stdout."""
    error.hint = error.hint or error.remedy
    if as_json:
        print_json(render_error(error))
    if isinstance(error, RecipeError):
        show_diagnostics(error.diagnostics)
        note(count_problems(error.diagnostics), "red")
    else:
        note(f"error: {error}", "red")


STYLES = {"error": "red", "warning": "yellow", "note": ""}


def count_problems(diagnostics: Iterable[Diagnostic]) -> str:
    """Return the numbers of errors and warnings, such as "1 error, 2 warnings", or ""."""
    severities = [each.severity for each in diagnostics]
    counts = {name: sum(each == name for each in severities) for name in ("error", "warning")}
    return ", ".join(pluralize(count, name) for name, count in counts.items() if count)


def show_diagnostics(diagnostics: Sequence[Diagnostic], *, are_result: bool = False) -> None:
    """Show the diagnostics of a recipe, one paragraph each, on stdout if they are the command's result."""
    out = console(stderr=not are_result)
    for diagnostic in diagnostics:
        _print(out, render_diagnostic(diagnostic) + "\n", STYLES[diagnostic.severity])


def show_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    right: Sequence[int] = (),
    *,
    is_result: bool = True,
) -> None:
    """Show a table, on stderr unless it is the result; `right` are the indices of right-aligned columns."""
    out = console(stderr=not is_result)
    fitted = is_terminal(out)
    table = fitted_table(columns, rows, right, out.width) if fitted else plain_table(columns, rows, right)
    if title:
        _print(out, title)
    for number, lines in enumerate(table):
        for line in filter(None, lines):
            out.print(line, style="" if number else "bold", soft_wrap=True)


def show_chart(title: str, name: str, rows: Sequence[tuple[str, Marks]], letters: Mapping[str, str]) -> None:
    """Show a plot if stdout is a terminal; the accompanying table has its numbers.

    `name` is the heading of the row labels, and `letters` maps each mark to its meaning.
    """
    out = console(stderr=False)
    lines = chart(name, rows, out.width) if is_terminal(out) else []
    if lines:
        print_line(title)
        for line in lines:
            out.print(line, soft_wrap=True)
        print_line(", ".join(f"{letter}: {meaning}" for letter, meaning in letters.items()))
