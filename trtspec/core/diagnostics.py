# SPDX-License-Identifier: Apache-2.0
"""Data type, sort order and text form of diagnostics: problems in recipes, methods, backends and checkpoints.

This module does not depend on YAML or the recipe schema. API tokens are masked in everything it renders.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from pydantic import ValidationError

Severity = Literal["error", "warning", "note"]

# Real tokens have at least 20 characters after the prefix; folder names such as hf_checkpoints have fewer.
TOKEN = re.compile(r"(?<![A-Za-z0-9])(hf_(?=[A-Za-z0-9]{20})|nvapi-(?=[\w-]{20}))[\w-]+")
LINE_WIDTH = 120
MAX_DIAGNOSTICS = 100


@dataclass(frozen=True)
class Mark:
    """A position in a file: 1-based `line` and `column`, and the `text` of that line.

    A value set with `--set a.b=c` on the command line has neither a line nor a column.
    """

    file: str = ""
    line: int | None = None
    column: int | None = None
    text: str | None = None


@dataclass(frozen=True)
class Diagnostic:
    """One problem at the dotted recipe path `path`: a machine-readable `code`, and a message and hint for users.

    An "error" prevents the build. A "warning" does not, and a "note" is a fact to know of a correct recipe. `source`
    cites the origin of a rule as repository:path@commit or an issue; `mark` is the position in the
    recipe file, once it is known.
    """

    path: str
    code: str
    message: str
    hint: str | None = None
    severity: Severity = "error"
    source: str = ""
    mark: Mark = Mark()

    @property
    def file(self) -> str:
        return self.mark.file

    @property
    def line(self) -> int | None:
        return self.mark.line

    @property
    def column(self) -> int | None:
        return self.mark.column

    def at(self, mark: Mark) -> Diagnostic:
        """Return a copy at position `mark`, with API tokens masked in all of its texts."""
        return replace(
            self,
            path=mask_tokens(self.path),
            message=mask_tokens(self.message),
            hint=mask_tokens(self.hint) if self.hint else None,
            mark=replace(mark, file=mask_tokens(mark.file)),
        )

    def below(self, prefix: str) -> Diagnostic:
        """Return a copy with `prefix` prepended to its dotted recipe path."""
        return replace(self, path=".".join(filter(None, (prefix, self.path))))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for `--json`, without `source` and the text of the source line."""
        keys = ("severity", "code", "file", "line", "column", "path", "message", "hint")
        return {key: getattr(self, key) for key in keys}


class RecipeError(TrtspecError):
    """An invalid recipe; `diagnostics` contains all problems found, and `str()` renders them as text."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__("\n\n".join(render_diagnostic(each) for each in diagnostics))
        self.diagnostics = tuple(diagnostics)


def raise_recipe_error(mark: Mark, code: str, message: str, hint: str | None = None, *, path: str = "") -> NoReturn:
    """Raise a RecipeError with a single diagnostic, for a problem that makes further parsing impossible."""
    raise RecipeError([Diagnostic(path, code, message, hint).at(mark)])


def mask_tokens(text: str) -> str:
    """Return the text with Hugging Face and NVIDIA API tokens replaced by their prefix and `***`."""
    return TOKEN.sub(r"\1***", text)


def sort_position(place: Mark | Diagnostic) -> tuple[str, int, int]:
    """Return the sort key (file, line, column) of a mark or diagnostic."""
    return place.file, place.line or 0, place.column or 0


def sort_diagnostics(diagnostics: Sequence[Diagnostic]) -> list[Diagnostic]:
    """Return the diagnostics in order of position, keeping only the first one for each recipe path and position.

    If more than MAX_DIAGNOSTICS remain, the rest is replaced by one diagnostic with the code "too-many-problems".
    """
    first_of: dict[object, Diagnostic] = {}
    for diagnostic in diagnostics:
        first_of.setdefault((sort_position(diagnostic), diagnostic.path), diagnostic)
    ordered = sorted(first_of.values(), key=sort_position)
    if len(ordered) <= MAX_DIAGNOSTICS:
        return ordered
    last = ordered[MAX_DIAGNOSTICS]
    rest = replace(last, code="too-many-problems", path="", message="more problems follow", hint=None)
    return [*ordered[:MAX_DIAGNOSTICS], rest]


def render_diagnostic(diagnostic: Diagnostic) -> str:
    """Return a diagnostic as text: position and recipe path, numbered source line, message and hint, one per line."""
    mark = diagnostic.mark
    place = [mark.file, *(str(number) for number in (mark.line, mark.column) if number)]
    lines = ["  ".join(part for part in (":".join(place), diagnostic.path) if part)]
    if mark.line and mark.text is not None:
        lines.append(f"  {mark.line} │ {_window(mark.text, mark.column or 1)}")
    kind = "" if diagnostic.severity == "error" else f"{diagnostic.severity}: "
    lines.append(f"  {kind}{diagnostic.message}")
    lines += [f"  hint: {diagnostic.hint}"] if diagnostic.hint else []
    return "\n".join(escape_unprintable(line) for line in lines)


def _window(text: str, column: int) -> str:
    if len(text) <= LINE_WIDTH:
        return text
    start = max(0, column - LINE_WIDTH // 2)
    return ("…" if start else "") + text[start : start + LINE_WIDTH] + "…"


PYDANTIC_MESSAGES = (  # pairs of a regular expression for a pydantic message and its replacement
    (r"(?:Value error|Assertion failed), ", ""),
    (r"Input should be a valid number\b.*", "expected a number"),
    (r"Input should be a valid integer\b.*", "expected a whole number"),
    (r"Input should be a valid (boolean|string|list|dictionary|tuple)\b.*", r"expected a \1"),
    (r"Input should be a valid date\b.*", "expected a date"),
    (r"Input should be an? (?:instance|object)\b.*", "expected a mapping"),
    (r"Input should be a (?:finite number)\b.*", "expected a finite number"),
    (r"Input should be greater than or equal to (\S+)", r"must be at least \1"),
    (r"Input should be less than or equal to (\S+)", r"must be at most \1"),
    (r"Input should be (greater|less) than (\S+)", r"must be \1 than \2"),
    (r"Input should be (.*)", r"expected \1"),
    (r"\w+ should have (at least|at most) (.*?)(?: after validation)?(?:, not \d+)?", r"needs \1 \2"),
    (r"String should match pattern .*", "does not have the expected form"),
    (r"Field required", "is missing"),
    (r"Extra inputs are not permitted", "unknown key"),
    (r"Invalid JSON: (.*)", r"not valid JSON: \1"),
)


def simplify_pydantic_message(text: str) -> str:
    """Rephrase a pydantic error message in the style of trtspec's messages, if it is a known one."""
    for pattern, words in PYDANTIC_MESSAGES[1:]:
        if found := re.fullmatch(pattern, text, re.DOTALL):
            return found.expand(words)
    return re.sub(PYDANTIC_MESSAGES[0][0], PYDANTIC_MESSAGES[0][1], text)


class InvalidValue(NamedTuple):
    """The first problem that pydantic found in a document: the dotted path of the value, "" for all of it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


def first_invalid(error: ValidationError) -> InvalidValue:
    """Return an error's first problem; the path, which may be of a foreign document, is cut to MAX_QUOTED_CHARS."""
    first = error.errors(include_url=False, include_context=False)[0]
    path = escape_unprintable(".".join(map(str, first["loc"])))
    if len(path) > MAX_QUOTED_CHARS:
        path = f"{path[: MAX_QUOTED_CHARS - 1]}…"
    return InvalidValue(path, simplify_pydantic_message(first["msg"]))


def escape_unprintable(line: str) -> str:
    """Replace tabs with four spaces and escape other unprintable characters, which could move the cursor."""
    line = line.replace("\t", "    ")
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)


MAX_QUOTED_CHARS = 100  # maximum characters of a quoted value


def quote_value(value: Any) -> str:
    """Format a value for a message: a string in Python quotes, others as JSON, cut to MAX_QUOTED_CHARS characters."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[: MAX_QUOTED_CHARS - 1]}…"
