# SPDX-License-Identifier: Apache-2.0
"""The sections about a benchmark under loads: speed-up against load, and how latencies are distributed."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.reporting.against_load import RING, against_load
from trtspec.reporting.crossing import pays
from trtspec.reporting.documents import Facts
from trtspec.reporting.forms.load import LoadPoint, Percentiles, Ratio
from trtspec.reporting.plots.spans import Spread, spans
from trtspec.reporting.section import Section, Table

ARMS = {"served": "speculative", "baseline": "target alone"}
LATENCIES = {
    "ttft_ms": "Time to the first token",
    "tpot_ms": "Time of each further token",
    "itl_ms": "Time between chunks",
    "e2e_ms": "Time to the last token",
}
HOW = "A dot is the median, the bar ends at the 90th percentile, the line goes from the least to the 99th."


def throughput(facts: Facts) -> Iterator[Section]:
    """Yield the tokens a second of both arms by concurrency, and where drafting stops paying."""
    points = closed(facts)
    ratios = [point.speedup.ratio if point.speedup else None for point in points]
    if len(points) < 2 or not any(ratios):
        return
    loads = [point.load.concurrency or 1 for point in points]
    rows = [
        (
            str(point.load.concurrency),
            *(f"{point.arms[arm].output_tokens_per_s:,.0f}" if arm in point.arms else "-" for arm in ARMS),
            _interval(point.speedup),
            _accepted(point),
        )
        for point in points
    ]
    columns = ("requests at once", *(f"{name}, tokens/s" for name in ARMS.values()), "speed-up", "accepted")
    table = Table.of_numbers("By requests at once, with 95 % intervals", columns, rows)
    plot = against_load("Measured speed-up by requests at once", loads, {"speculative": ratios}, "requests at once")
    words = f"Tokens a second over those of the target alone, measured in turn: pays {pays(loads, ratios)}. {RING}"
    words += "".join(f" Warning: {each}." for each in (facts.load.warnings if facts.load else []))
    yield Section("Measured: speed-up against load", words, plot, [table])


def latencies(facts: Facts) -> Iterator[Section]:
    """Yield the distributions of each latency by load."""
    points = facts.load.points if facts.load else []
    for key, title in LATENCIES.items():
        found = {
            name: [_percentiles(point, arm, key) for point in points]
            for arm, name in ARMS.items()
            if any(_percentiles(point, arm, key) for point in points)
        }
        if not found:
            continue
        labels = [point.load.name for point in points]
        rows = [
            (f"{label}, {name}", *(f"{value:,.1f}" for value in (each.p50, each.p90, each.p95, each.p99, each.max)))
            for place, label in enumerate(labels)
            for name, values in found.items()
            if (each := values[place])
        ]
        columns = ("requests", "p50", "p90", "p95", "p99", "max")
        table = Table.of_numbers("Milliseconds", columns, rows)
        drawn = {name: [_spread(each) for each in values] for name, values in found.items()}
        plot = spans(title, labels, drawn, "milliseconds")
        yield Section(title, HOW, plot, [table])


def closed(facts: Facts) -> list[LoadPoint]:
    """Return the points with so many requests at once."""
    return [point for point in facts.load.points if point.load.concurrency] if facts.load else []


def _percentiles(point: LoadPoint, arm: str, key: str) -> Percentiles | None:
    found: Percentiles | None = getattr(point.arms.get(arm), key, None)
    return found


def _spread(found: Percentiles | None) -> Spread | None:
    return Spread(found.min, found.p50, found.p90, found.p99) if found else None


def _interval(found: Ratio | None) -> str:
    if found is None:
        return "-"
    known = f" ({found.low:.2f} to {found.high:.2f})" if found.low and found.high else ""
    return f"{found.ratio:.2f}{known}"


def _accepted(point: LoadPoint) -> str:
    served = point.arms.get("served")
    return f"{served.acceptance_rate:.1%}" if served and served.acceptance_rate is not None else "-"
