# SPDX-License-Identifier: Apache-2.0
"""Text plot: one row per load, with one letter per series at its value. Independent of the output stream.

requests  0x         1x         2x
       1  .          ┆        b───a
      16  .     b────┆a
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

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
