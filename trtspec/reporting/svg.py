# SPDX-License-Identifier: Apache-2.0
"""Plots as inline SVG: no script, no font, no colour but the page's own, so that light, dark and print all work.

Colours are the page's custom properties --c0 .. --c5, text is currentColor. Every plot has a title for those who hear
it; its numbers stand in the table under it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 40
COLOURS = 6
TICKS = 5


@dataclass(frozen=True)
class Series:
    """A line or a group of bars: `values` by label, each with an interval where there is one."""

    name: str
    values: Sequence[float]
    intervals: Sequence[tuple[float, float]] = ()


def bars(title: str, labels: Sequence[str], series: Sequence[Series], unit: str = "", mark: float | None = None) -> str:
    """Return groups of bars; `mark` draws a line across, as a limit."""
    top = _top([*(value for each in series for value in _highs(each)), mark or 0.0])
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    width = min(48.0, step * 0.8 / max(1, len(series)))
    parts = [*_axes(top, unit), *_names(labels, step)]
    for number, each in enumerate(series):
        for place, value in enumerate(each.values):
            x = LEFT + step * (place + 0.5) + width * (number - len(series) / 2)
            parts.append(_bar(x, width, 0.0, value, top, number))
            if each.intervals:
                parts.append(_whisker(x + width / 2, each.intervals[place], top))
    return _figure(title, parts, _limit(mark, top), _legend([each.name for each in series]))


def stacked(title: str, labels: Sequence[str], series: Sequence[Series], unit: str = "") -> str:
    """Return one bar for each label, its parts upon each other."""
    top = _top([sum(each.values[place] for each in series) for place in range(len(labels))])
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    width = min(72.0, step * 0.6)
    parts = [*_axes(top, unit), *_names(labels, step)]
    for place in range(len(labels)):
        below = 0.0
        for number, each in enumerate(series):
            parts.append(_bar(LEFT + step * (place + 0.5) - width / 2, width, below, each.values[place], top, number))
            below += each.values[place]
    return _figure(title, parts, [], _legend([each.name for each in series]))


def lines(
    title: str, labels: Sequence[str], series: Sequence[Series], unit: str = "", mark: float | None = None
) -> str:
    """Return lines over equally spaced labels."""
    top = _top([*(value for each in series for value in _highs(each)), mark or 0.0])
    step = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    parts = [*_axes(top, unit), *_names(labels, step)]
    for number, each in enumerate(series):
        places = [(LEFT + step * (place + 0.5), _y(value, top)) for place, value in enumerate(each.values)]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        colour = f"var(--c{number % COLOURS})"
        dashes = f' stroke-dasharray="{2 + 3 * number} 3"' if number else ""
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return _figure(title, parts, _limit(mark, top), _legend([each.name for each in series]))


def _highs(series: Series) -> list[float]:
    return [*series.values, *(high for _, high in series.intervals)]


def _top(values: Sequence[float]) -> float:
    """Return a round number that all values lie below."""
    most = max([*values, 1e-9])
    scale = 10.0 ** floor(log10(most))
    return float(next(step for step in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * scale >= most) * scale)


def _y(value: float, top: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / top)


def _number(value: float) -> str:
    digits = 0 if value >= 10 or value == 0 else 1 if value >= 1 else min(3, 1 + ceil(-log10(value)))
    return f"{value:.{digits}f}"


def _axes(top: float, unit: str) -> list[str]:
    parts = []
    for tick in range(TICKS + 1):
        value = top * tick / TICKS
        y = _y(value, top)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_number(value)}{escape(unit)}</text>')
    return parts


def _names(labels: Sequence[str], step: float) -> list[str]:
    every = max(1, ceil(len(labels) / 16))
    y = HEIGHT - BOTTOM + 16
    return [
        f'<text x="{LEFT + step * (place + 0.5):.1f}" y="{y}" text-anchor="middle">{_cut(label)}</text>'
        for place, label in enumerate(labels)
        if place % every == 0
    ]


def _cut(label: str, most: int = 18) -> str:
    return escape(label if len(label) <= most else label[: most - 1] + "…")


def _bar(x: float, width: float, low: float, value: float, top: float, number: int) -> str:
    upper, lower = _y(low + value, top), _y(low, top)
    return (
        f'<rect x="{x:.1f}" y="{upper:.1f}" width="{width:.1f}" height="{max(0.0, lower - upper):.1f}"'
        f' fill="var(--c{number % COLOURS})"/>'
    )


def _whisker(x: float, interval: tuple[float, float], top: float) -> str:
    low, high = (_y(value, top) for value in interval)
    return f'<path d="M{x:.1f} {low:.1f}V{high:.1f}M{x - 4:.1f} {low:.1f}h8M{x - 4:.1f} {high:.1f}h8" class="whisker"/>'


def _limit(mark: float | None, top: float) -> list[str]:
    if mark is None:
        return []
    y = _y(mark, top)
    return [f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="mark"/>']


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    items = "".join(
        f'<li><span class="swatch" style="background:var(--c{number % COLOURS})"></span>{escape(name)}</li>'
        for number, name in enumerate(names)
    )
    return f'<ul class="legend">{items}</ul>'


def _figure(title: str, parts: Sequence[str], over: Sequence[str], legend: str) -> str:
    drawn = "".join([*parts, *over])
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{drawn}</svg>{legend}"
    )
