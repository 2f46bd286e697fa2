# SPDX-License-Identifier: Apache-2.0
"""Percentile plots: dot at the median, bar to the 90th percentile, line from the minimum to the 99th."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtspec.report.plots.frame import colour, swatch
from trtspec.report.plots.rows import BarRows

THICK = 13


@dataclass(frozen=True)
class PercentileSpan:
    """Minimum and percentiles of a distribution."""

    least: float
    p50: float
    p90: float
    p99: float


def spans(title: str, labels: Sequence[str], series: Mapping[str, Sequence[PercentileSpan | None]], x_name: str) -> str:
    """Return a plot with a row for each label and a distribution, or None, for each series."""
    most = max((each.p99 for values in series.values() for each in values if each), default=1.0)
    rows = BarRows.to(most, labels, THICK * len(series))
    parts = rows.axes()
    for number, values in enumerate(series.values()):
        for row, spread in enumerate(values):
            if spread:
                parts.append(_span(rows, rows.start(row) + THICK * (number + 0.5), spread, number))
    return rows.finish(title, parts, x_name, list(series), swatch)


def _span(rows: BarRows, y: float, spread: PercentileSpan, number: int) -> str:
    least, p50, p90, p99 = map(rows.scale.at, (spread.least, spread.p50, spread.p90, spread.p99))
    fill = colour(number)
    return (
        f'<path d="M{least:.1f} {y:.1f}H{p99:.1f}" stroke="{fill}" stroke-width="1.5"/>'
        f'<path d="M{p50:.1f} {y:.1f}H{max(p90, p50 + 0.5):.1f}" stroke="{fill}" stroke-width="7"/>'
        f'<circle cx="{p50:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" class="dot"/>'
    )
