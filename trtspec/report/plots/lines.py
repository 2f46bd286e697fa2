# SPDX-License-Identifier: Apache-2.0
"""Line plots over equally spaced labels, and the plot of speed-up against load with its break-even load."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby, pairwise
from math import ceil

from trtspec.report.plots import (
    COLOURS,
    LINE,
    RIGHT,
    TOP,
    WIDTH,
    Scale,
    Series,
    colour,
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
    width = (WIDTH - RIGHT - left) / max(1, len(labels))
    places = [left + width * (number + 0.5) for number in range(len(labels))]
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


@dataclass(frozen=True)
class BreakEven:
    """Crossing point: `place` is a fractional index of the loads; `load` is interpolated on a logarithmic axis."""

    place: float
    load: float

    def __str__(self) -> str:
        return f"~{self.load:.0f}"


def find_break_even(loads: Sequence[float], ratios: Sequence[float | None], limit: float = 1.0) -> BreakEven | None:
    """Return the first point where the ratios fall to the limit, or None if they do not."""
    known = [(place, ratio) for place, ratio in enumerate(ratios) if ratio is not None]
    for (before, high), (after, low) in pairwise(known):
        if high > limit >= low:
            share = (high - limit) / (high - low)
            place = before + share * (after - before)
            return BreakEven(place, loads[before] * (loads[after] / loads[before]) ** share)
    return None


def faster_ranges(loads: Sequence[float], ratios: Sequence[float | None]) -> str:
    """Return the ranges of loads with a speed-up above 1, such as "up to ~10"."""
    known = [(load, ratio) for load, ratio in zip(loads, ratios, strict=True) if ratio is not None]
    spans, rest = list[str](), known
    while rest := list(dropwhile(lambda each: each[1] <= 1.0, rest)):
        found, since = find_break_even([load for load, _ in rest], [ratio for _, ratio in rest]), rest[0][0]
        if rest[0] == known[0]:
            spans.append(f"up to {found or f'{rest[-1][0]:g}+'}")
        else:
            spans.append(f"from {since:g} to {found}" if found else f"from {since:g} on")
        rest = list(dropwhile(lambda each: each[1] > 1.0, rest))
    return " and ".join(spans) or "nowhere"


FASTER, ALONE = "× the target alone", "slower than the target alone"
RING = "A ring marks the break-even load, interpolated between two loads."

Ratios = Sequence[float | None]


def against_load(title: str, loads: Sequence[float], ratios: Mapping[str, Ratios], x_name: str) -> str:
    """Return the plot of the first COLOURS series of `ratios`, which maps names to speed-ups per load."""
    series = [Series(name, values) for name, values in ratios.items()][:COLOURS]
    places = [found.place if (found := find_break_even(loads, each.values)) else None for each in series]
    return lines(title, [f"{load:g}" for load in loads], series, x_name, FASTER, (1.0, ALONE), places)
