# SPDX-License-Identifier: Apache-2.0
"""Line plots over equally spaced labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from math import ceil

from trtspec.report.plots.frame import (
    LINE,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    Series,
    colour,
    columns,
    legend,
    line,
    svg_picture,
    text,
    text_width,
    tick_name,
    truncate_text,
)

AREA = 190  # height of the plot area in units
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.5L4.5 3.5H-4.5z",
    "M0 -5L5 0L0 5L-5 0z",
    "M0 4.5L4.5 -3.5H-4.5z",
    "M-4 -1.5h8v3h-8z",
)

Point = tuple[float, float]


def lines(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    x_name: str,
    y_name: str,
    mark: tuple[float, str] | None = None,
    crossings: Sequence[float | None] = (),
) -> str:
    """Return a plot of lines.

    `mark` is the value and name of a reference line. `crossings` are the positions where the series cross it, as
    fractional indices of the labels (1.5 is between the second and the third), or None.
    """
    most = max([*(each.highest for each in series), mark[0] if mark else 0.0])
    scale = Scale.to(most, TOP + AREA, TOP)
    left = 10 + max(text_width(tick_name(tick)) for tick in scale.ticks)
    places = list(columns(len(labels), left))
    parts = [*_axes(scale, left, y_name), *_labels(labels, places, x_name)]
    parts += _mark(mark, scale, left) if mark else []
    for number, each in enumerate(series):
        parts += _series(each, number, places, scale)
    for number, crossing in enumerate(crossings):
        if crossing is not None and mark:
            parts += _crossing(_between(places, crossing), scale.at(mark[0]), number)
    named, bottom = legend([each.name for each in series], TOP + AREA + 3 * LINE + 6, _sample)
    return svg_picture(title, [*parts, *named], bottom - LINE + 8)


def _axes(scale: Scale, left: float, name: str) -> Iterator[str]:
    for tick in scale.ticks:
        y = scale.at(tick)
        yield line(left, y, WIDTH - RIGHT, y, "grid")
        yield text(left - 6, y + 4, tick_name(tick), "end")
    yield text(0, 13, name, kind="axis")


def _labels(labels: Sequence[str], places: Sequence[float], name: str) -> Iterator[str]:
    room = places[1] - places[0] if len(places) > 1 else WIDTH / 2
    every = ceil(24 / room)
    for label, x in list(zip(labels, places, strict=True))[::every]:
        yield text(x, TOP + AREA + LINE, truncate_text(label, every * room - 4), "middle")
    yield text((places[0] + places[-1]) / 2, TOP + AREA + 2 * LINE, name, "middle", "axis")


def _mark(mark: tuple[float, str], scale: Scale, left: float) -> list[str]:
    y = scale.at(mark[0])
    size = f'width="{WIDTH - RIGHT - left:.1f}" height="{scale.start - y:.1f}"'
    return [
        f'<rect x="{left:.1f}" y="{y:.1f}" {size} class="below"/>',
        line(left, y, WIDTH - RIGHT, y, "mark"),
        text(left + 6, scale.start - 7, mark[1], kind="axis"),
    ]


def _series(series: Series, number: int, places: Sequence[float], scale: Scale) -> Iterator[str]:
    drawn = [
        (x, scale.at(value)) if value is not None else None for x, value in zip(places, series.values, strict=False)
    ]
    for is_drawn, run in groupby(drawn, key=lambda point: point is not None):
        points = " ".join(f"{point[0]:.1f},{point[1]:.1f}" for point in run if point)
        if is_drawn:
            yield f'<polyline points="{points}" fill="none" stroke="{colour(number)}" stroke-width="2.2"/>'
    for x, interval in zip(places, series.intervals, strict=False):
        if interval:
            yield line(x, scale.at(interval[0]), x, scale.at(interval[1]), "whisker")
    yield from (_shape(point, number) for point in drawn if point)


def _shape(at: Point, number: int) -> str:
    shape = SHAPES[number % len(SHAPES)]
    return f'<path d="{shape}" transform="translate({at[0]:.1f} {at[1]:.1f})" fill="{colour(number)}"/>'


def _crossing(x: float, y: float, number: int) -> list[str]:
    stroke = f'stroke="{colour(number)}" fill="none"'
    return [
        f'<path d="M{x:.1f} {y:.1f}V{TOP + AREA}" {stroke} stroke-width="1.5" stroke-dasharray="3 3"/>',
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="7" {stroke} stroke-width="2"/>',
    ]


def _between(places: Sequence[float], place: float) -> float:
    before = int(place)
    after = min(before + 1, len(places) - 1)
    return places[before] + (places[after] - places[before]) * (place - before)


def _sample(x: float, y: float, number: int) -> str:
    stroke = f'<path d="M{x:.1f} {y:.1f}h20" stroke="{colour(number)}" stroke-width="2.2"/>'
    return stroke + _shape((x + 10, y), number)
