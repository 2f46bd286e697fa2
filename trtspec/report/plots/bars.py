# SPDX-License-Identifier: Apache-2.0
"""Horizontal bar charts, grouped or stacked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtspec.report.plots.frame import FONT, Series, colour, format_number, line, swatch, text
from trtspec.report.plots.rows import BarRows

THICK, THIN = 17, 9


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
    return rows.finish(title, parts, x_name, [each.name for each in series], swatch)


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
    return rows.finish(title, parts, x_name, [each.name for each in series], swatch)


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
