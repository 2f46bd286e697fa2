# SPDX-License-Identifier: Apache-2.0
"""Plots with a row for each label and a scale below: grouped or stacked bars, and percentiles of distributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from trtspec.planning.documents import Percentiles
from trtspec.report.plots import (
    FONT,
    LINE,
    RIGHT,
    WIDTH,
    Scale,
    Series,
    colour,
    format_number,
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
        return self.top + (self.high + BETWEEN) * len(self.labels)

    def start(self, number: int) -> float:
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

    def finish(self, title: str, parts: list[str], x_name: str, names: Sequence[str]) -> str:
        """Return the complete SVG: parts, name of the scale, and a legend if there are several series."""
        y = self.bottom + 2 * LINE
        named = text((self.left + WIDTH - RIGHT - VALUE) / 2, y, x_name, "middle", "axis")
        if len(names) < 2:
            return svg_picture(title, [*parts, named], y + 8)
        entries, bottom = legend(names, y + LINE + 6, _swatch)
        return svg_picture(title, [*parts, named, *entries], bottom - LINE + 8)


THICK, THIN, SPAN_THICK = 17, 9, 13


def grouped(title: str, labels: Sequence[str], series: Sequence[Series], x_name: str, mark: float | None = None) -> str:
    """Return a group of bars for each label, with whiskers for intervals and a reference line at `mark`."""
    thick = THICK if len(series) <= 2 else THIN
    most = max([*(each.highest for each in series), mark or 0.0])
    rows = BarRows.to(most, labels, thick * len(series))
    parts = rows.axes()
    for number, each in enumerate(series):
        for group, value in enumerate(each.values):
            if value is not None:
                y = rows.start(group) + thick * number
                interval = each.intervals[group] if each.intervals else None
                parts += _bar(rows, y, thick, value, number, interval)
    if mark is not None:
        x = rows.scale.at(mark)
        parts.append(line(x, rows.top, x, rows.bottom, "mark"))
    return rows.finish(title, parts, x_name, [each.name for each in series])


def stacked(
    title: str, labels: Sequence[str], series: Sequence[Series], x_name: str, limits: Sequence[float | None] = ()
) -> str:
    """Return a stacked bar for each label; `limits` are drawn as lines."""
    sums = [sum(each.values[number] or 0.0 for each in series) for number in range(len(labels))]
    rows = BarRows.to(max([*sums, *(limit for limit in limits if limit)]), labels, THICK)
    parts = rows.axes()
    for group, total in enumerate(sums):
        y, before = rows.start(group), 0.0
        for number, each in enumerate(series):
            value = each.values[group] or 0.0
            parts.append(_rect(rows.scale.at(before), y, rows.scale.at(before + value), THICK - 2, number))
            before += value
        parts.append(_value(rows.scale.at(total), y, THICK, total))
        if limits and (limit := limits[group]):
            parts.append(line(rows.scale.at(limit), y - 3, rows.scale.at(limit), y + THICK + 1, "limit"))
    return rows.finish(title, parts, x_name, [each.name for each in series])


def _bar(
    rows: BarRows, y: float, thick: float, value: float, number: int, interval: tuple[float, float] | None
) -> Iterator[str]:
    yield _rect(rows.left, y, rows.scale.at(value), thick - 2, number)
    end = rows.scale.at(interval[1] if interval else value)
    if interval:
        low, middle = rows.scale.at(interval[0]), y + thick / 2 - 1
        ends = f"M{low:.1f} {middle - 3:.1f}v6M{end:.1f} {middle - 3:.1f}v6"
        yield f'<path d="M{low:.1f} {middle:.1f}H{end:.1f}{ends}" class="whisker"/>'
    if thick == THICK:
        yield _value(end, y, thick, value)


def _rect(start: float, y: float, end: float, thick: float, number: int) -> str:
    size = f'width="{max(0.0, end - start):.1f}" height="{thick}"'
    return f'<rect x="{start:.1f}" y="{y:.1f}" {size} fill="{colour(number)}"/>'


def _value(x: float, y: float, thick: float, value: float) -> str:
    return text(x + 6, y + thick / 2 + FONT * 0.3, format_number(value))


def spans(title: str, labels: Sequence[str], series: Mapping[str, Sequence[Percentiles | None]], x_name: str) -> str:
    """Return a plot with a row for each label and a distribution, or None, for each series."""
    most = max((each.p99 for values in series.values() for each in values if each), default=1.0)
    rows = BarRows.to(most, labels, SPAN_THICK * len(series))
    parts = rows.axes()
    for number, values in enumerate(series.values()):
        for row, spread in enumerate(values):
            if spread:
                parts.append(_span(rows, rows.start(row) + SPAN_THICK * (number + 0.5), spread, number))
    return rows.finish(title, parts, x_name, list(series))


def _span(rows: BarRows, y: float, spread: Percentiles, number: int) -> str:
    least, p50, p90, p99 = map(rows.scale.at, (spread.min, spread.p50, spread.p90, spread.p99))
    fill = colour(number)
    return (
        f'<path d="M{least:.1f} {y:.1f}H{p99:.1f}" stroke="{fill}" stroke-width="1.5"/>'
        f'<path d="M{p50:.1f} {y:.1f}H{max(p90, p50 + 0.5):.1f}" stroke="{fill}" stroke-width="7"/>'
        f'<circle cx="{p50:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" class="dot"/>'
    )


def _swatch(x: float, y: float, number: int) -> str:
    return f'<rect x="{x + 6:.1f}" y="{y - 6:.1f}" width="14" height="12" rx="2" fill="{colour(number)}"/>'
