# SPDX-License-Identifier: Apache-2.0
"""Layout of sentences, shell commands, tables and plots for a width, independent of streams and colors.

Lines break only between words. A path or URL longer than the width stays whole, so that it can be copied from the
terminal, which wraps it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import ceil
from unicodedata import combining, east_asian_width

GAP = "  "
NARROW = 16  # minimum width of a wrapped column
LAST = 12  # minimum width of the last column, whose long words move below the row
ARGUMENT = r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+"""  # a shell argument

Row = Sequence[str]


def pluralize(number: int, noun: str, plural: str = "") -> str:
    """Return a number with a noun in singular or plural: "1 entry", "2 entries"."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def display_width(text: str) -> int:
    """Return the number of terminal columns that a text occupies; wide East Asian characters occupy two."""
    return sum(0 if combining(char) else 2 if east_asian_width(char) in "WF" else 1 for char in text)


def wrap_text(text: str, width: int) -> list[str]:
    """Return the lines of a text wrapped to `width` columns; continuation lines are indented."""
    lines: list[str] = []
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip())) + GAP
        lines += [line] if display_width(line) <= width else _wrapped(line, width, indent)
    return lines


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Wrap a text between words; `indent` starts each line after the first."""
    wrapper = textwrap.TextWrapper(
        max(width, 1),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        expand_tabs=False,
        replace_whitespace=False,
    )
    return wrapper.wrap(text) or [""]


def wrap_command(command: str, width: int) -> list[str]:
    r"""Wrap a shell command; all lines but the last end in \, so that the result is valid shell."""
    if display_width(command) <= width:
        return [command]
    *lines, last = _between_options(command, width - 2)
    return [*(f"{line} \\" for line in lines), last]


def _between_options(command: str, width: int) -> list[str]:
    """Break a command between arguments, but not between an option and its value."""
    lines: list[str] = []
    for part in re.findall(rf"-[\w-]+(?!\S)(?: (?!-){ARGUMENT})?|{ARGUMENT}", command):
        if lines and display_width(f"{lines[-1]} {part}") <= width:
            lines[-1] += f" {part}"
        else:
            lines.append(GAP * bool(lines) + part)
    return lines


def plain_table(columns: Row, rows: Sequence[Row], right: Sequence[int]) -> list[list[str]]:
    """Return one line each for the header and for every row; `right` are the indices of right-aligned columns."""
    joined = [[cell.replace("\n", "; ") for cell in row] for row in (columns, *rows)]
    return [[_aligned(row, _widths(joined), right)] for row in joined]


def fitted_table(columns: Row, rows: Sequence[Row], right: Sequence[int], width: int) -> list[list[str]]:
    """Return the lines of the header and of each row, fitted to `width` columns.

    Columns wrap between words; all but the last are at least as wide as their longest word. A cell of the last column
    with a longer word moves below its row. If that does not suffice, each row becomes a paragraph with one line per
    cell.
    """
    table = [columns, *rows]
    widths = _squeezed(_widths(table), _least(table), width - len(GAP) * (len(columns) - 1))
    if widths is None:
        return [[columns[0]]] + [_paragraph(columns, row, width) for row in rows]
    return [list(_folded_row(row, widths, right)) for row in table]


def _widths(rows: Sequence[Row]) -> list[int]:
    return [
        max(display_width(line) for cell in column for line in cell.split("\n")) for column in zip(*rows, strict=True)
    ]


def _least(rows: Sequence[Row]) -> list[int]:
    *words, _ = _widths([[cell.replace(" ", "\n") for cell in row] for row in rows])
    *columns, last = _widths(rows)
    least = [max(word, min(natural, NARROW)) for word, natural in zip(words, columns, strict=True)]
    return [*least, min(last, LAST)]


def _squeezed(widths: list[int], least: list[int], room: int) -> list[int] | None:
    """Narrow the widest columns until the sum is at most `room`; return None if the minimum widths exceed it."""
    widths = list(widths)
    while sum(widths) > room:
        spare = [(width, number) for number, width in enumerate(widths) if width > least[number]]
        if not spare:
            return None
        widths[max(spare)[1]] -= 1
    return widths


def _folded_row(row: Row, widths: Sequence[int], right: Sequence[int]) -> Iterator[str]:
    columns = [
        [line for part in cell.split("\n") for line in _wrapped(part, width)]
        for cell, width in zip(row, widths, strict=True)
    ]
    below = columns.pop() if any(display_width(line) > widths[-1] for line in columns[-1]) else []
    for cells in zip_longest(*columns, fillvalue=""):
        yield _aligned(cells, widths[: len(cells)], right)
    yield from (GAP + line for line in below)


def _paragraph(columns: Row, row: Row, width: int) -> list[str]:
    names = max(map(display_width, columns[1:]))
    named = [f"{GAP}{name:<{names}}{GAP}{cell}" for name, cell in zip(columns[1:], row[1:], strict=True) if cell]
    return [line for text in (row[0], *named) for line in wrap_text(text.replace("\n", "; "), width)]


def _aligned(cells: Row, widths: Sequence[int], right: Sequence[int]) -> str:
    padded = []
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        padding = " " * (width - display_width(cell))
        padded.append(padding + cell if number in right else cell + padding)
    return GAP.join(padded).rstrip()


MARK, BETWEEN, SEVERAL = "┆", "─", "*"
LEAST, MOST = 24, 72  # columns of the plot area

Marks = Sequence[tuple[str, float]]


def chart(name: str, rows: Sequence[tuple[str, Marks]], width: int) -> list[str]:
    """Return the lines of a plot of this width, or [] if the width is too small; `name` heads the row labels.

    A row is a label and pairs of a letter and a speed-up. The speed-up 1 is marked.
    """
    head = max(len(name), *(len(label) for label, _ in rows))
    columns = min(width - head - 6, MOST)
    top = ceil(max((value for _, marks in rows for _, value in marks), default=1.0) * 2) / 2
    if columns < LEAST:
        return []
    scale = columns / max(top, 1.5)
    ticks = _ticks(scale, columns)
    drawn = [f"{label:>{head}}  {_row(marks, scale, columns)}" for label, marks in rows]
    return [f"{name:>{head}}  {ticks}".rstrip(), *(line.rstrip() for line in drawn)]


def _ticks(scale: float, columns: int) -> str:
    every = next(step for step in (1, 2, 5, 10, 20, 50, 100) if step * scale >= 6)
    line = [" "] * (columns + 4)
    for tick in range(0, int(columns / scale) + 1, every):
        line[round(tick * scale) : round(tick * scale) + 1 + len(str(tick))] = f"{tick}x"
    if every > 1:
        line[round(scale)] = MARK
    return "".join(line)


def _row(marks: Marks, scale: float, columns: int) -> str:
    line = [" "] * (columns + 1)
    places = {letter: round(value * scale) for letter, value in marks}
    if places:
        low, high = min(places.values()), max(places.values())
        line[low : high + 1] = BETWEEN * (high + 1 - low)
    line[round(scale)] = MARK
    for letter, place in places.items():
        line[place] = letter if list(places.values()).count(place) == 1 else SEVERAL
    return "".join(line)
