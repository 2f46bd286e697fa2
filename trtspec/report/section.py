# SPDX-License-Identifier: Apache-2.0
"""A section of a report as plain values: a title, words, a plot where one helps, and tables. Knows no markup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns; `right` are the columns with numbers, `digests` those with digests.

    `bad` are the rows that something is wrong with.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    digests: Sequence[int] = ()
    bad: Sequence[int] = ()

    @classmethod
    def of_numbers(cls, caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        """Return a table whose columns are numbers but for the first."""
        return cls(caption, columns, rows, tuple(range(1, len(columns))))


@dataclass(frozen=True)
class Figure:
    """A number that is read first: what it is, and what it is of."""

    value: str
    name: str
    of: str = ""


@dataclass(frozen=True)
class Section:
    """One section; `plot` is SVG, `text` is shown as it is written, `figures` come first."""

    title: str
    words: str
    plot: str = ""
    tables: Sequence[Table] = ()
    text: str = ""
    figures: Sequence[Figure] = ()
