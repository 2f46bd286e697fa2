# SPDX-License-Identifier: Apache-2.0
"""Layout of horizontal bar charts: a row for each label, and a scale below."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil

from trtspec.report.plots.frame import (
    FONT,
    LINE,
    RIGHT,
    WIDTH,
    Scale,
    legend,
    line,
    svg_picture,
    text,
    text_width,
    tick_name,
    truncate_text,
)

MOST_LABEL = 130
BETWEEN = 11
VALUE = 46  # units for the number after the longest bar


@dataclass(frozen=True)
class BarRows:
    """Geometry of the rows: labels end at `left`, rows of height `high` start at `top`, with gaps of BETWEEN."""

    labels: Sequence[str]
    high: float
    left: float
    scale: Scale
    top: float = 8

    @classmethod
    def to(cls, most: float, labels: Sequence[str], high: float) -> BarRows:
        """Return rows with a scale that covers `most`."""
        left = 8 + min(MOST_LABEL, max(map(text_width, labels)))
        return cls(labels, high, left, Scale.to(most, left, WIDTH - RIGHT - VALUE))

    @property
    def bottom(self) -> float:
        """Return the y coordinate below the last row."""
        return self.top + (self.high + BETWEEN) * len(self.labels)

    def start(self, number: int) -> float:
        """Return the y coordinate of a row."""
        return self.top + (self.high + BETWEEN) * number + BETWEEN / 2

    def axes(self) -> list[str]:
        """Return the labels and the scale, with as many tick labels as fit."""
        ticks = self.scale.ticks
        parts = [line(x, self.top, x, self.bottom, "grid") for x in map(self.scale.at, ticks)]
        room = self.scale.at(ticks[1]) - self.scale.at(ticks[0])
        every = ceil((text_width(tick_name(ticks[-1])) + 6) / room)
        for tick in ticks[::every]:
            parts.append(text(self.scale.at(tick), self.bottom + LINE - 2, tick_name(tick), "middle"))
        middle = self.high / 2 + FONT * 0.35
        for number, label in enumerate(self.labels):
            parts.append(text(self.left - 8, self.start(number) + middle, truncate_text(label, self.left - 6), "end"))
        return parts

    def finish(
        self,
        title: str,
        parts: list[str],
        x_name: str,
        names: Sequence[str],
        sample: Callable[[float, float, int], str],
    ) -> str:
        """Return the complete SVG: parts, name of the scale, and a legend if there are several series."""
        y = self.bottom + 2 * LINE
        named = text((self.left + WIDTH - RIGHT - VALUE) / 2, y, x_name, "middle", "axis")
        if len(names) < 2:
            return svg_picture(title, [*parts, named], y + 8)
        entries, bottom = legend(names, y + LINE + 6, sample)
        return svg_picture(title, [*parts, named, *entries], bottom - LINE + 8)
