# SPDX-License-Identifier: Apache-2.0
"""What every plot has: series, a scale with round ticks, texts, a legend, and the picture around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, RIGHT, TOP = 420, 12, 32
FONT, LINE = 12.5, 17
GLYPH = 0.61  # ems that a character takes in wide fonts
COLOURS = 6
SAMPLE, GAP = 26, 16  # of a legend
NICE = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Series:
    """A line or a group of bars: `values` by label, None where there is none, each with an interval if it has one."""

    name: str
    values: Sequence[float | None]
    intervals: Sequence[tuple[float, float] | None] = ()

    @property
    def highest(self) -> float:
        """Return the largest number that is drawn."""
        highs = [interval[1] for interval in self.intervals if interval]
        return max([*(value for value in self.values if value is not None), *highs, 0.0])


@dataclass(frozen=True)
class Scale:
    """Numbers from 0 to `top`, drawn from `start` to `end`, with a tick at each `step`."""

    top: float
    step: float
    start: float
    end: float

    @classmethod
    def to(cls, most: float, start: float, end: float) -> Scale:
        """Return a scale with three to six round ticks that ends at `most` or above."""
        rough = max(most, 1e-9) / 5
        power = 10.0 ** floor(log10(rough))
        step = next(nice * power for nice in NICE if nice * power >= rough * (1 - 1e-9))
        return cls(ceil(most / step - 1e-9) * step or step, step, start, end)

    def at(self, value: float) -> float:
        """Return where a number is drawn."""
        return self.start + (self.end - self.start) * value / self.top

    @property
    def ticks(self) -> list[float]:
        """Return the numbers that are named."""
        return [self.step * number for number in range(round(self.top / self.step) + 1)]


def colour(number: int) -> str:
    """Return the colour of a series."""
    return f"var(--c{number % COLOURS})"


def tick_name(value: float) -> str:
    """Return a tick's number as short as it can be."""
    return f"{round(value, 9):,.6g}"


def short(value: float) -> str:
    """Return a number with three digits or so."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def width_of(words: str) -> float:
    """Return the units that a text takes at most in usual fonts."""
    return len(words) * FONT * GLYPH


def cut(words: str, room: float) -> str:
    """Return a text that takes no more than so many units."""
    most = max(1, int(room / (FONT * GLYPH)))
    return words if len(words) <= most else words[: most - 1] + "…"


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Return a text at a place; `kind` is a class of the page's style."""
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{marked}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a straight line of a class of the page's style."""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" class="{kind}"/>'


def legend(names: Sequence[str], y: float, sample: Callable[[float, float, int], str]) -> tuple[list[str], float]:
    """Return the names of series beside samples of them, in rows from y on, and where the next row would be."""
    parts, x = [], 0.0
    for number, name in enumerate(names):
        shown = cut(name, WIDTH - SAMPLE)
        if x and x + SAMPLE + width_of(shown) > WIDTH:
            x, y = 0.0, y + LINE
        parts += [sample(x, y - FONT * 0.35, number), text(x + SAMPLE, y, shown)]
        x += SAMPLE + width_of(shown) + GAP
    return parts, y + LINE


def picture(title: str, parts: Sequence[str], height: float) -> str:
    """Return the SVG around what was drawn."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg>"
    )


def swatch(x: float, y: float, number: int) -> str:
    """Return the sample of a bar."""
    return f'<rect x="{x + 6:.1f}" y="{y - 6:.1f}" width="14" height="12" rx="2" fill="{colour(number)}"/>'


def columns(count: int, left: float) -> Iterator[float]:
    """Yield the middles of equal columns right of `left`."""
    step = (WIDTH - RIGHT - left) / max(1, count)
    for number in range(count):
        yield left + step * (number + 0.5)
