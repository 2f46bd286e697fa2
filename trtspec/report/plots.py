# SPDX-License-Identifier: Apache-2.0
"""SVG plots without scripts, fonts or fixed colors, for light and dark pages and for print.

There are three layouts: one row per label (grouped bars, stacked bars, percentiles of distributions), lines over
equally spaced labels, and speed-up against load with the break-even load. Colors are custom properties in `plots.css`.
A plot is 420 units wide, so that its text is legible on a phone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from itertools import dropwhile, groupby, pairwise
from math import ceil, floor, log10
from pathlib import Path

from trtspec.planning.documents import Percentiles

WIDTH, RIGHT, TOP = 420, 12, 32
FONT, LINE = 12.5, 17
GLYPH = 0.61  # width of a character in a wide font, in em
COLOURS = 6
SAMPLE, GAP = 26, 16  # width of a legend sample and gap between legend entries, in units
NICE = (1, 2, 2.5, 5, 10)
MOST_LABEL = 130
BETWEEN = 11
VALUE = 46  # space for the number behind the longest bar, in units
THICK, THIN, SPAN_THICK = 17, 9, 13
AREA = 190  # height of the plot area in units
SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
    "M-3.5 -3.5h7v7h-7z",
    "M0 -4.5L4.5 3.5H-4.5z",
    "M0 -5L5 0L0 5L-5 0z",
    "M0 4.5L4.5 -3.5H-4.5z",
    "M-4 -1.5h8v3h-8z",
)
FASTER, ALONE = "× the target alone", "slower than the target alone"
RING = "A ring marks the break-even load, interpolated between two loads."
Point = tuple[float, float]
Ratios = Sequence[float | None]


@cache
def style() -> str:
    """Return the CSS of the plots and of the page that contains them."""
    return minify_css(Path(__file__).with_name("plots.css"))


def minify_css(sheet: Path) -> str:
    """Return the text of a style sheet without optional white space."""
    return re.sub(r"\s*([{};,])\s*", r"\1", re.sub(r": ", ":", sheet.read_text())).strip()


@dataclass(frozen=True)
class Series:
    """A named line or set of bars: one value (or None) per label, optionally with intervals."""

    name: str
    values: Sequence[float | None]
    intervals: Sequence[tuple[float, float] | None] = ()

    @property
    def highest(self) -> float:
        """Return the largest value or interval bound, at least 0."""
        highs = [interval[1] for interval in self.intervals if interval]
        return max([*(value for value in self.values if value is not None), *highs, 0.0])


@dataclass(frozen=True)
class Scale:
    """A linear axis that maps values from 0 to `top` to positions from `start` to `end`, with ticks every `step`."""

    top: float
    step: float
    start: float
    end: float

    @classmethod
    def to(cls, most: float, start: float, end: float) -> Scale:
        """Return a scale from 0 to at least `most` with three to six round tick values."""
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
    """Format a number with about three significant digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def text_width(words: str) -> float:
    """Return an upper bound of a text's width in SVG units."""
    return len(words) * FONT * GLYPH


def truncate_text(words: str, room: float) -> str:
    """Truncate a text to a width of `room` SVG units."""
    most = max(1, int(room / (FONT * GLYPH)))
    return words if len(words) <= most else words[: most - 1] + "…"


def text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """Return an SVG text element; `kind` is its CSS class."""
    marked = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{marked}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return an SVG line element; `kind` is its CSS class."""
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" class="{kind}"/>'


def legend(names: Sequence[str], y: float, sample: Callable[[float, float, int], str]) -> tuple[list[str], float]:
    """Return the SVG elements of a legend whose first line is at `y`, and the y coordinate below the legend."""
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


@dataclass(frozen=True)
class BarRows:
    """Geometry of a plot with one row per label.

    Labels end at x = `left`. Rows have the height `high`, start at y = `top`, and are BETWEEN units apart.
    """

    labels: Sequence[str]
    high: float
    left: float
    scale: Scale
    top: float = 8

    @classmethod
    def to(cls, most: float, labels: Sequence[str], high: float) -> BarRows:
        """Return rows whose scale covers values up to `most`."""
        left = 8 + min(MOST_LABEL, max(map(text_width, labels)))
        return cls(labels, high, left, Scale.to(most, left, WIDTH - RIGHT - VALUE))

    @property
    def bottom(self) -> float:
        return self.top + (self.high + BETWEEN) * len(self.labels)

    def start(self, number: int) -> float:
        return self.top + (self.high + BETWEEN) * number + BETWEEN / 2

    def axes(self) -> list[str]:
        """Return the SVG elements of the row labels, the grid and as many tick labels as fit."""
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
        """Return the complete SVG of `parts` with the axis name and, for several series, a legend."""
        y = self.bottom + 2 * LINE
        named = text((self.left + WIDTH - RIGHT - VALUE) / 2, y, x_name, "middle", "axis")
        if len(names) < 2:
            return svg_picture(title, [*parts, named], y + 8)
        entries, bottom = legend(names, y + LINE + 6, _swatch)
        return svg_picture(title, [*parts, named, *entries], bottom - LINE + 8)


def grouped(title: str, labels: Sequence[str], series: Sequence[Series], x_name: str, mark: float | None = None) -> str:
    """Return the SVG of grouped bars, one group per label, with interval whiskers and a reference line at `mark`."""
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
    """Return the SVG of stacked bars, one per label; `limits` are drawn as lines across the bars."""
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
    """Return the SVG of distributions, with one row per label and one bar with percentiles per series."""
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


def lines(
    title: str,
    labels: Sequence[str],
    series: Sequence[Series],
    x_name: str,
    y_name: str,
    mark: tuple[float, str] | None = None,
    crossings: Sequence[float | None] = (),
) -> str:
    """Return the SVG of a line plot.

    `mark` is the value and the name of a reference line. `crossings` are the positions at which the series cross that
    line, as fractional indices of the labels (1.5 is between the second and the third label), or None.
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
    """The load at which speculation stops being faster, interpolated on a logarithmic axis.

    `place` is its fractional index in the list of loads.
    """

    place: float
    load: float

    def __str__(self) -> str:
        return f"~{self.load:.0f}"


def find_break_even(loads: Sequence[float], ratios: Sequence[float | None], limit: float = 1.0) -> BreakEven | None:
    """Return the first point at which the ratios fall to `limit`, or None if they never do."""
    known = [(place, ratio) for place, ratio in enumerate(ratios) if ratio is not None]
    for (before, high), (after, low) in pairwise(known):
        if high > limit >= low:
            share = (high - limit) / (high - low)
            place = before + share * (after - before)
            return BreakEven(place, loads[before] * (loads[after] / loads[before]) ** share)
    return None


def faster_ranges(loads: Sequence[float], ratios: Sequence[float | None]) -> str:
    """Return the ranges of loads with a speed-up above 1 as text, such as "up to ~10"."""
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


def against_load(title: str, loads: Sequence[float], ratios: Mapping[str, Ratios], x_name: str) -> str:
    """Return the SVG of speed-up against load; `ratios` maps names to series, of which the first COLOURS are drawn."""
    series = [Series(name, values) for name, values in ratios.items()][:COLOURS]
    places = [found.place if (found := find_break_even(loads, each.values)) else None for each in series]
    return lines(title, [f"{load:g}" for load in loads], series, x_name, FASTER, (1.0, ALONE), places)
