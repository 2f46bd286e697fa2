# SPDX-License-Identifier: Apache-2.0
"""Data classes of a report section: title, text, plot and tables, independent of the output format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table; `right` and `digests` are the indices of columns with numbers and digests.

    `bad` lists the indices of rows to highlight as failed.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    digests: Sequence[int] = ()
    bad: Sequence[int] = ()

    @classmethod
    def numeric_table(cls, caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        """Return a table in which all columns but the first contain numbers."""
        return cls(caption, columns, rows, tuple(range(1, len(columns))))


@dataclass(frozen=True)
class Figure:
    """A key figure: value, name, and source or condition."""

    value: str
    name: str
    of: str = ""


@dataclass(frozen=True)
class Section:
    """A section; `words` is its introduction, `plot` is SVG, and `text` is preformatted."""

    title: str
    words: str
    plot: str = ""
    tables: Sequence[Table] = ()
    text: str = ""
    figures: Sequence[Figure] = ()
