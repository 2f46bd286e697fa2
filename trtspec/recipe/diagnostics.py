# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a recipe, where, and how it reads in plain text.

Owns the form of a problem; knows neither YAML nor the schema. Nothing that looks like a token leaves this module.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn

from trtspec.errors import TrtspecError

Severity = Literal["error", "warning"]

# The shortest real tokens are longer; folder names such as hf_checkpoints are shorter.
TOKEN = re.compile(r"(?<![A-Za-z0-9])(hf_(?=[A-Za-z0-9]{20})|nvapi-(?=[\w-]{20}))[\w-]+")
LINE_WIDTH = 120
MAX_PROBLEMS = 100


@dataclass(frozen=True)
class Mark:
    """A place in a file, counted from 1; a command line's `--set a.b=c` is a place without line and column."""

    file: str
    line: int | None = None
    column: int | None = None
    source: str | None = None


@dataclass(frozen=True)
class Problem:
    """One thing to act on; `path` is the dotted recipe path, `source` the text of the line."""

    severity: Severity
    code: str
    message: str
    hint: str | None
    path: str
    file: str
    line: int | None
    column: int | None
    source: str | None

    @classmethod
    def at(
        cls, mark: Mark, code: str, path: str, message: str, hint: str | None = None, *, severity: Severity = "error"
    ) -> Problem:
        """Return the problem at `mark`, with tokens blotted out."""
        message, path, file = blot_tokens(message), blot_tokens(path), blot_tokens(mark.file)
        hint = blot_tokens(hint) if hint else None
        return cls(severity, code, message, hint, path, file, mark.line, mark.column, mark.source)

    def as_dict(self) -> dict[str, Any]:
        """Return what `--json` shows; the source line is left to the reader of the file."""
        keys = ("severity", "code", "file", "line", "column", "path", "message", "hint")
        return {key: getattr(self, key) for key in keys}


class RecipeError(TrtspecError):
    """The recipe is wrong; `problems` holds everything found, and str() renders all of it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n\n".join(render_problem(problem) for problem in problems))
        self.problems = tuple(problems)


def stop(mark: Mark, code: str, message: str, hint: str | None = None, *, path: str = "") -> NoReturn:
    """Raise the RecipeError of a problem that nothing can be read after."""
    raise RecipeError([Problem.at(mark, code, path, message, hint)])


def blot_tokens(text: str) -> str:
    """Return the text with what looks like a token made unusable."""
    return TOKEN.sub(r"\1***", text)


def position(place: Mark | Problem) -> tuple[str, int, int]:
    """Return what places are sorted by."""
    return place.file, place.line or 0, place.column or 0


def in_order(problems: Sequence[Problem]) -> list[Problem]:
    """Return the problems by position, the first of each path at a place, and no more than a person reads."""
    first_of: dict[object, Problem] = {}
    for problem in problems:
        first_of.setdefault((position(problem), problem.path), problem)
    ordered = sorted(first_of.values(), key=position)
    if len(ordered) <= MAX_PROBLEMS:
        return ordered
    rest = replace(ordered[MAX_PROBLEMS], code="too-many-problems", path="", message="more problems follow", hint=None)
    return [*ordered[:MAX_PROBLEMS], rest]


def render_problem(problem: Problem) -> str:
    """Return the place, the numbered source line, the message and the hint."""
    place = [problem.file, *(str(number) for number in (problem.line, problem.column) if number)]
    lines = ["  ".join(part for part in (":".join(place), problem.path) if part)]
    if problem.line and problem.source is not None:
        lines.append(f"  {problem.line} │ {_window(problem.source, problem.column or 1)}")
    warning = "warning: " if problem.severity == "warning" else ""
    lines += _with_hint(f"  {warning}{problem.message}", problem.hint)
    return "\n".join(_printable(line) for line in lines)


def _with_hint(said: str, hint: str | None) -> list[str]:
    if not hint:
        return [said]
    beside = f"{said}        hint: {hint}"
    return [beside] if len(beside) <= LINE_WIDTH else [said, f"  hint: {hint}"]


def _window(source: str, column: int) -> str:
    if len(source) <= LINE_WIDTH:
        return source
    start = max(0, column - LINE_WIDTH // 2)
    return ("…" if start else "") + source[start : start + LINE_WIDTH] + "…"


def _printable(line: str) -> str:
    """Escape what would move a terminal's cursor or cannot be encoded: the text is a stranger's."""
    line = line.replace("\t", "    ")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
