# SPDX-License-Identifier: Apache-2.0
"""Break-even load: interpolate the load at which a measured speed-up falls to 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import dropwhile, pairwise


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
