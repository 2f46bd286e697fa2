# SPDX-License-Identifier: Apache-2.0
"""Plot of speed-up against load, with a ring where a line crosses the speed of the target alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trtspec.report.crossing import find_break_even
from trtspec.report.plots.frame import COLOURS, Series
from trtspec.report.plots.lines import lines

FASTER, ALONE = "× the target alone", "slower than the target alone"
RING = "A ring marks the break-even load, interpolated between two loads."

Ratios = Sequence[float | None]


def against_load(title: str, loads: Sequence[float], ratios: Mapping[str, Ratios], x_name: str) -> str:
    """Return the plot of the first COLOURS series of `ratios`, which maps names to speed-ups per load."""
    series = [Series(name, values) for name, values in ratios.items()][:COLOURS]
    places = [found.place if (found := find_break_even(loads, each.values)) else None for each in series]
    return lines(title, [f"{load:g}" for load in loads], series, x_name, FASTER, (1.0, ALONE), places)
