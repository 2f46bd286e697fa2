# SPDX-License-Identifier: Apache-2.0
"""Where speculation stops paying: the load at which a measured speed-up falls to 1, between two that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Crossing:
    """`place` is counted in loads from 0; `load` is read off a line between its neighbours, on a logarithmic axis."""

    place: float
    load: float

    def __str__(self) -> str:
        return f"~{self.load:.0f}"


def crossing(loads: Sequence[float], ratios: Sequence[float | None], limit: float = 1.0) -> Crossing | None:
    """Return where ratios first fall to a limit; None where they stay above, or begin below."""
    known = [(place, ratio) for place, ratio in enumerate(ratios) if ratio is not None]
    for (before, high), (after, low) in pairwise(known):
        if high > limit >= low:
            share = (high - limit) / (high - low)
            place = before + share * (after - before)
            return Crossing(place, loads[before] * (loads[after] / loads[before]) ** share)
    return None


def pays(loads: Sequence[float], ratios: Sequence[float | None]) -> str:
    """Return in a few words for which loads speculation is faster."""
    first = next((ratio for ratio in ratios if ratio is not None), 0.0)
    if found := crossing(loads, ratios):
        return f"up to {found}"
    return f"up to {loads[-1]:g}+" if first > 1.0 else "nowhere"
