# SPDX-License-Identifier: Apache-2.0
"""SVG plots without scripts, fonts or fixed colours, for light and dark pages and for print.

This module has their common parts: style, series, scale with round ticks, text, legend and SVG frame. Colours are
custom properties of `plots.css`. A plot is 420 units wide so that its text is legible on a phone; the table below it
has the numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from math import ceil, floor, log10
from pathlib import Path

WIDTH, RIGHT, TOP = 420, 12, 32
FONT, LINE = 12.5, 17
GLYPH = 0.61  # width of a character in wide fonts, in em
COLOURS = 6
SAMPLE, GAP = 26, 16  # width of a legend sample, gap between entries
NICE = (1, 2, 2.5, 5, 10)


@cache
def style() -> str:
    """Return the CSS of plots and of their page."""
    return minify_css(Path(__file__).with_name("plots.css"))


def minify_css(sheet: Path) -> str:
    """Return a style sheet without optional white space."""
    return re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r": ", ":", sheet.read_text())).strip()


@dataclass(frozen=True)
class Series:
    """A line or a set of bars: a value or None for each label, with optional intervals."""

    name: str
    values: Sequence[float | None]
    intervals: Sequence[tuple[float, float] | None] = ()

    @property
    def highest(self) -> float:
        """Return the largest value or interval end, at least 0."""
        highs = [interval[1] for interval in self.intervals if interval]
        return max([*(value for value in self.values if value is not None), *highs, 0.0])


@dataclass(frozen=True)
class Scale:
    """Linear scale: maps 0..`top` to `start`..`end`, with a tick at each `step`."""

    top: float
    step: float
    start: float
    end: float

    @classmethod
    def to(cls, most: float, start: float, end: float) -> Scale:
        """Return a scale with three to six round ticks that covers `most`."""
        rough = max(most, 1e-9) / 5
        power = 10.0 ** floor(log10(rough))
        step = next(nice * power for nice in NICE if nice * power >= rough * (1 - 1e-9))
        return cls(ceil(most / step - 1e-9) * step or step, step, start, end)

    def at(self, value: float) -> float:
        return self.start + (self.end - self.start) * value / self.top

    @property
    def ticks(self) -> list[float]:
        return [self.step * number for number in range(round(self.top / self.step) + 1)]


def colour(number: int) -> str:
    return f"var(--c{number % COLOURS})"


def tick_name(value: float) -> str:
    return f"{round(value, 9):,.6g}"


def format_number(value: float) -> str:
    """Return a number with about three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def text_width(words: str) -> float:
    """Return an upper bound of the width of a text, in units."""
    return len(words) * FONT * GLYPH


def truncate_text(words: str, room: float) -> str:
    """Return a text truncated to a width in units."""
    most = max(1, int(room / (FONT * GLYPH)))
    return words if len(words) <= most else words[: most - 1] + "…"


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Return an SVG text; `kind` is a CSS class."""
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{marked}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return an SVG line with the CSS class `kind`."""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" class="{kind}"/>'


def legend(names: Sequence[str], y: float, sample: Callable[[float, float, int], str]) -> tuple[list[str], float]:
    """Return the parts of a legend that starts at `y`, and the y coordinate below it."""
    parts, x = [], 0.0
    for number, name in enumerate(names):
        shown = truncate_text(name, WIDTH - SAMPLE)
        if x and x + SAMPLE + text_width(shown) > WIDTH:
            x, y = 0.0, y + LINE
        parts += [sample(x, y - FONT * 0.35, number), text(x + SAMPLE, y, shown)]
        x += SAMPLE + text_width(shown) + GAP
    return parts, y + LINE


def svg_picture(title: str, parts: Sequence[str], height: float) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )
