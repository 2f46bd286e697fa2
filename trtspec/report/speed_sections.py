# SPDX-License-Identifier: Apache-2.0
"""Sections about speed: the target alone, speculation one request at a time and under load, and the prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from trtspec.planning.documents import LoadPoint, Percentiles, SavedRatio
from trtspec.report.documents import ReportInputs
from trtspec.report.plots.bars import PercentileSpan, grouped, spans
from trtspec.report.plots.frame import Series, format_number
from trtspec.report.plots.lines import RING, against_load, faster_ranges
from trtspec.report.section import Section, Table


def baseline(facts: ReportInputs) -> Iterator[Section]:
    """Yield the throughput and the latencies of the target alone."""
    found = facts.baseline
    if found is None:
        return
    speeds = (found.median_tokens_per_s, min(found.tokens_per_s), max(found.tokens_per_s))
    rows = [("tokens/s", *(f"{each:,.1f}" for each in speeds))]
    runs = Table.numeric_table("By run", ("", "median", "slowest", "fastest"), rows)
    spreads = [
        (name, *(f"{each:,.3f}" for each in (spread.p50, spread.p95, spread.mean)))
        for name, spread in (("per request, s", found.request_s), ("per token, ms", found.ms_per_token))
    ]
    requests = Table.numeric_table("By request", ("", "p50", "p95", "mean"), spreads)
    words = f"{found.prompts.count} prompts, at most {found.max_tokens} tokens each, one at a time,"
    words += f" on {found.engine.backend} ({found.engine.measured_by}), {found.time}."
    yield Section("Baseline: the target alone", words, "", [runs, requests])


def bench(facts: ReportInputs) -> Iterator[Section]:
    """Yield the tokens/s with and without speculation."""
    found = facts.bench
    if found is None:
        return
    arms = {"speculative": found.speculative, "target alone": found.baseline}
    runs = max(len(arm.tokens_per_s) for arm in arms.values())
    series = [Series(name, arm.tokens_per_s) for name, arm in arms.items()]
    low, high = found.speedup_interval
    words = (
        f"{found.speedup:.2f} times as fast (95 % interval {low:.2f} to {high:.2f}) on {found.prompts} prompts of up to"
        f" {found.max_tokens} new tokens, one at a time; {found.identical_texts} texts are identical."
    )
    rows = [
        (name, format_number(arm.median_tokens_per_s), f"{arm.acceptance_rate:.1%}", f"{arm.mean_accepted_len:.2f}")
        for name, arm in arms.items()
    ]
    rows = [(name, speed, accepted if name == "speculative" else "-", tokens) for name, speed, accepted, tokens in rows]
    table = Table.numeric_table("Both sides", ("", "tokens/s (median)", "accepted", "tokens per step"), rows)
    plot = grouped("Tokens per second by run", [f"run {run + 1}" for run in range(runs)], series, "tokens per second")
    yield Section("Speed with and without speculation", words, plot, [table])


ARMS = {"served": "speculative", "baseline": "target alone"}
LATENCIES = {
    "ttft_ms": "Time to first token",
    "tpot_ms": "Time per output token",
    "itl_ms": "Time between chunks",
    "e2e_ms": "End-to-end latency",
}
CONCURRENCY = "concurrency"
CLOSED = "Tokens per second relative to the target alone, in alternating rounds."
OPEN = "Speed-up of the end-to-end latency over the target alone, in alternating rounds."
HOW = "Dot: median. Bar: up to the 90th percentile. Line: minimum to 99th percentile."


def throughput(facts: ReportInputs) -> Iterator[Section]:
    """Yield the results of both arms by concurrency and by arrival rate, with the break-even load."""
    for points, name, of in ((closed(facts), CONCURRENCY, CLOSED), (_open(facts), "requests per second", OPEN)):
        if not points:
            continue
        ratios = [point.speedup.ratio if point.speedup else None for point in points]
        words, plot = f"{of} ", ""
        if len(points) > 1 and any(ratios):
            loads = [point.load.concurrency or point.load.requests_per_s or 1 for point in points]
            plot = against_load(f"Measured speed-up by {name}", loads, {"speculative": ratios}, name)
            words += f"Faster {faster_ranges(loads, ratios)} ({name}). {RING}"
        unfit = [f"{point.load.name}: not compared, as {point.unfit}" for point in points if point.unfit]
        words += "".join(f" Warning: {each}." for each in [*unfit, *(facts.load.warnings if facts.load else [])])
        yield Section(f"Measured: speed-up by {name}", words.strip(), plot, [_by_load(points, name)])


def _by_load(points: Sequence[LoadPoint], name: str) -> Table:
    """Return a table with a row for each load; empty columns are omitted."""
    cells: dict[str, Callable[[LoadPoint], str]] = {
        **{f"{side}, tokens/s": partial(_arm_value, arm, "{.output_tokens_per_s:,.0f}") for arm, side in ARMS.items()},
        "speed-up": lambda point: _interval(point.speedup),
        "accepted": partial(_arm_value, "served", "{.acceptance_rate:.1%}"),
        **{f"{side}, goodput": partial(_arm_value, arm, "{.goodput_share:.0%}") for arm, side in ARMS.items()},
        **{f"{side}, failed": partial(_arm_value, arm, "{.failed}") for arm, side in ARMS.items()},
    }
    columns = {head: [cell(point) for point in points] for head, cell in cells.items()}
    known = {head: found for head, found in columns.items() if {*found} - {"-", "0"}}
    rows = [(point.load.name, *row) for point, *row in zip(points, *known.values(), strict=True)]
    return Table.numeric_table(f"By {name}, with 95 % intervals", (name, *known), rows)


def latencies(facts: ReportInputs) -> Iterator[Section]:
    """Yield a section for each latency metric, with its distribution by load."""
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
        table = Table.numeric_table("Milliseconds", columns, rows)
        drawn = {name: [_spread(each) for each in values] for name, values in found.items()}
        plot = spans(title, labels, drawn, "milliseconds")
        yield Section(title, HOW, plot, [table])


def closed(facts: ReportInputs) -> list[LoadPoint]:
    """Return the points of the closed loop, which have a concurrency."""
    return [point for point in facts.load.points if point.load.concurrency] if facts.load else []


def _open(facts: ReportInputs) -> list[LoadPoint]:
    return [point for point in facts.load.points if point.load.requests_per_s] if facts.load else []


def _percentiles(point: LoadPoint, arm: str, key: str) -> Percentiles | None:
    found: Percentiles | None = getattr(point.arms.get(arm), key, None)
    return found


def _spread(found: Percentiles | None) -> PercentileSpan | None:
    return PercentileSpan(found.min, found.p50, found.p90, found.p99) if found else None


def _interval(found: SavedRatio | None) -> str:
    if found is None:
        return "-"
    return f"{found.ratio:.2f} ({found.interval})" if found.interval else f"{found.ratio:.2f}"


def _arm_value(arm: str, form: str, point: LoadPoint) -> str:
    """Return a formatted value of an arm, or "-" if it is unknown."""
    try:
        return form.format(point.arms[arm])
    except (KeyError, TypeError):  # TypeError: the value is None
        return "-"


def predicted(facts: ReportInputs) -> Iterator[Section]:
    """Yield the predicted speed-up by batch size, with a line for each acceptance rate."""
    found = facts.plan.predicted if facts.plan else None
    if found is None or len(found.batches) < 2:
        return
    batches = [each.batch for each in found.batches]
    speedups = {rate: [each.speedup.get(rate) for each in found.batches] for rate in found.batches[0].speedup}
    rows = [
        (rate, *("-" if value is None else f"{value:.2f}" for value in values), faster_ranges(batches, values))
        for rate, values in speedups.items()
    ]
    columns = ("acceptance rate", *map(str, batches), "faster")
    table = Table.numeric_table("Predicted speed-up by batch size", columns, rows)
    named = {f"acceptance rate {rate}": values for rate, values in speedups.items()}
    plot = against_load("Predicted speed-up by batch size", batches, named, "batch size")
    words = f"On {found.gpus} {found.gpu}, draft_len {found.draft_len}; predicted, not measured. {RING}"
    yield Section("Predicted: speed-up by batch size", words, plot, [table])
