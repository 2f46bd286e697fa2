# SPDX-License-Identifier: Apache-2.0
"""Data classes for a report section, independent of the output format: text, figures, plot and tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table; `right` and `digests` have the indices of columns with numbers and with digests.

    `bad` has the indices of the rows that are highlighted as failed.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[int] = ()
    digests: Sequence[int] = ()
    bad: Sequence[int] = ()

    @classmethod
    def numeric_table(cls, caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
        """Create a table in which all columns but the first contain numbers."""
        return cls(caption, columns, rows, tuple(range(1, len(columns))))


@dataclass(frozen=True)
class Figure:
    """A key figure: its value, its name, and the source or condition `of` the measurement."""

    value: str
    name: str
    of: str = ""


@dataclass(frozen=True)
class Section:
    """A section of a report; `words` is an introduction, `plot` is an SVG image, and `text` is preformatted."""

    title: str
    words: str
    plot: str = ""
    tables: Sequence[Table] = ()
    text: str = ""
    figures: Sequence[Figure] = ()
