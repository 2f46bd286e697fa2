# SPDX-License-Identifier: Apache-2.0
"""Report sections about measurements: the target alone, speculation, load tests, drafts, training and predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from trtspec.planning.documents import KindStats, LoadPoint, Percentiles, ProfiledCandidate, SavedRatio
from trtspec.report.evidence import ReportInputs
from trtspec.report.plots import (
    ALONE,
    COLOURS,
    FASTER,
    RING,
    Series,
    against_load,
    faster_ranges,
    format_number,
    grouped,
    lines,
    spans,
)
from trtspec.report.section import Section, Table

STEP_TOKENS = "tokens per step (1 is the target alone)"


def baseline(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on throughput and latency of the target alone."""
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
    by_request = Table.numeric_table("By request", ("", "p50", "p95", "mean"), spreads)
    words = f"{found.prompts.count} prompts, at most {found.max_tokens} tokens each, one at a time,"
    words += f" on {found.engine.backend} ({found.engine.measured_by}), {found.time}."
    yield Section("Baseline: the target alone", words, "", [runs, by_request])


def bench(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on tokens/s with and without speculation, one request at a time."""
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
    accepted = (f"{found.speculative.acceptance_rate:.1%}", "-")
    rows = [
        (name, format_number(arm.median_tokens_per_s), share, f"{arm.mean_accepted_len:.2f}")
        for (name, arm), share in zip(arms.items(), accepted, strict=True)
    ]
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
CLOSED = "Tokens per second relative to the target alone, in alternating rounds."
OPEN = "Speed-up of the end-to-end latency over the target alone, in alternating rounds."
HOW = "Dot: median. Bar: up to the 90th percentile. Line: minimum to 99th percentile."


def throughput(facts: ReportInputs) -> Iterator[Section]:
    """Yield sections on both arms of a load test by concurrency and by arrival rate, with the break-even load."""
    open_loop = [point for point in facts.load.points if point.load.requests_per_s] if facts.load else []
    for points, name, of in ((closed(facts), "concurrency", CLOSED), (open_loop, "requests per second", OPEN)):
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
    """Return a table with one row per load; columns without values are omitted."""
    cells: dict[str, Callable[[LoadPoint], str]] = {
        **{f"{side}, tokens/s": partial(_arm_value, arm, "{.output_tokens_per_s:,.0f}") for arm, side in ARMS.items()},
        "speed-up": lambda point: _ratio(point.speedup),
        "accepted": partial(_arm_value, "served", "{.acceptance_rate:.1%}"),
        **{f"{side}, goodput": partial(_arm_value, arm, "{.goodput_share:.0%}") for arm, side in ARMS.items()},
        **{f"{side}, failed": partial(_arm_value, arm, "{.failed}") for arm, side in ARMS.items()},
    }
    columns = {head: [cell(point) for point in points] for head, cell in cells.items()}
    known = {head: found for head, found in columns.items() if {*found} - {"-", "0"}}
    rows = [(point.load.name, *row) for point, *row in zip(points, *known.values(), strict=True)]
    return Table.numeric_table(f"By {name}, with 95 % intervals", (name, *known), rows)


def latencies(facts: ReportInputs) -> Iterator[Section]:
    """Yield one section per latency metric of a load test, with its distribution at each load."""
    points = facts.load.points if facts.load else []
    for key, title in LATENCIES.items():
        by_arm: dict[str, list[Percentiles | None]] = {
            name: [getattr(point.arms.get(arm), key, None) for point in points] for arm, name in ARMS.items()
        }
        found = {name: values for name, values in by_arm.items() if any(values)}
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
        plot = spans(title, labels, found, "milliseconds")
        yield Section(title, HOW, plot, [Table.numeric_table("Milliseconds", columns, rows)])


def closed(facts: ReportInputs) -> list[LoadPoint]:
    """Return the points of the load test that were measured at a fixed concurrency (closed loop)."""
    return [point for point in facts.load.points if point.load.concurrency] if facts.load else []


def _ratio(found: SavedRatio | None) -> str:
    if found is None:
        return "-"
    return f"{found.ratio:.2f} ({found.interval})" if found.interval else f"{found.ratio:.2f}"


def _arm_value(arm: str, form: str, point: LoadPoint) -> str:
    """Format a value of one arm of a load test, or return "-" if the value is missing."""
    try:
        return form.format(point.arms[arm])
    except (KeyError, TypeError):  # TypeError if the value is None
        return "-"


def by_batch(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on the best expected speed-up of each profiled candidate by load, with the break-even load."""
    candidates = ranked(facts)
    batches = sorted({each.batch for candidate in candidates for each in candidate.best})
    if len(batches) < 2:
        return
    ratios, rows = {}, []
    for candidate in candidates:
        best = {each.batch: each for each in candidate.best}
        ratios[candidate.name] = [best[batch].speedup if batch in best else None for batch in batches]
        cells = (f"{best[batch].speedup:.2f} ({best[batch].draft_len})" if batch in best else "-" for batch in batches)
        rows.append((candidate.name, *cells, faster_ranges(batches, ratios[candidate.name])))
    columns = ("draft", *map(str, batches), "faster")
    table = Table.numeric_table("Speed-up (draft length) by concurrency", columns, rows)
    plot = against_load("Speed-up by concurrency", batches, ratios, "concurrency")
    words = f"Expected speed-up at the best draft length for each concurrency. {RING}{_left_out(candidates)}"
    yield Section("Expected: speed-up by load", words, plot, [table])


def by_kind(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on the mean accepted length of each profiled candidate by kind of prompt."""
    candidates = ranked(facts)
    kinds = sorted({each.kind for candidate in candidates for each in candidate.by_kind})
    if len(kinds) < 2:
        return
    found = {
        candidate.name: {each.kind: each.mean_accepted_len.token_weighted for each in candidate.by_kind}
        for candidate in candidates
    }
    series = [
        Series(
            name,
            [of[kind][0] if kind in of else None for kind in kinds],
            [of[kind][1:] if kind in of else None for kind in kinds],
        )
        for name, of in found.items()
    ]
    rows = [(kind, *(_interval(*of[kind]) if kind in of else "-" for of in found.values())) for kind in kinds]
    table = Table.numeric_table("Tokens per step, with 95 % intervals", ("kind", *found), rows)
    words = f"By kind of prompt; whiskers are 95 % intervals over these prompts.{_left_out(candidates)}"
    plot = grouped("Tokens per step by kind", kinds, series[:COLOURS], STEP_TOKENS, mark=1.0)
    yield Section("Mean accepted length by kind", words, plot, [table])


def by_position(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on the acceptance at each draft position, by profiled candidate."""
    candidates = ranked(facts)
    words = f"Share of the tokens drafted at a position that the target accepted.{_left_out(candidates)}"
    yield from _positions("Acceptance by position", words, "draft", {each.name: each for each in candidates})


def by_position_and_kind(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on the acceptance of the fastest candidate at each draft position, by kind of prompt."""
    first = next(iter(ranked(facts)), None)
    kinds = [each for each in first.by_kind if each.by_position] if first else []
    if first and len(kinds) > 1:
        kinds = _spread(sorted(kinds, key=lambda kind: -kind.acceptance_rate))
        many = f"{len(kinds)} of {len(first.by_kind)} kinds, in order of acceptance"
        words = f"Acceptance of {first.name}, for {many if len(kinds) < len(first.by_kind) else 'each kind of prompt'}."
        yield from _positions("Acceptance by position and kind", words, "kind", {each.kind: each for each in kinds})


def by_length(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on the expected speed-up of the fastest candidate by draft length."""
    first = next(iter(ranked(facts)), None)
    lens = sorted({each.draft_len for each in first.speedups}) if first else []
    if first is None or len(lens) < 2:
        return
    batches = sorted({each.batch for each in first.speedups})
    found = {(each.batch, each.draft_len): each.speedup for each in first.speedups}
    series = [Series(requests(batch), [found.get((batch, length)) for length in lens]) for batch in batches]
    rows = [(each.name, *("-" if value is None else f"{value:.2f}" for value in each.values)) for each in series]
    labels = [str(length) for length in lens]
    table = Table.numeric_table("Expected speed-up by draft length", ("", *labels), rows)
    plot = lines("Expected speed-up by draft length", labels, series, "draft_len", FASTER, (1.0, ALONE))
    words = f"Expected speed-up of {first.name}, from its acceptance and step times."
    yield Section("Draft length", words, plot, [table])


def ranked(facts: ReportInputs) -> list[ProfiledCandidate]:
    """Return the profiled candidates by decreasing speed-up at the smallest batch size."""
    found = facts.profile.methods if facts.profile else []
    return sorted(found, key=lambda each: -each.best[0].speedup if each.best else 0.0)


def requests(many: int) -> str:
    return "1 request" if many == 1 else f"{many} requests"


def _positions(
    title: str, words: str, first: str, found: Mapping[str, ProfiledCandidate | KindStats]
) -> Iterator[Section]:
    rates = {name: each.by_position for name, each in found.items()}
    longest = max(map(len, rates.values()), default=0)
    if not longest:
        return
    labels = [str(place + 1) for place in range(longest)]
    rows = [
        (name, f"{found[name].acceptance_rate:.1%}", *(f"{rate:.2f}" for rate in own), *["-"] * (longest - len(own)))
        for name, own in rates.items()
    ]
    series = [Series(name, own) for name, own in rates.items()][:COLOURS]
    table = Table.numeric_table("Accepted of drafted, by position", (first, "total", *labels), rows)
    yield Section(title, words, lines(title, labels, series, "position in the draft", "accepted"), [table])


def _spread(kinds: list[KindStats]) -> list[KindStats]:
    """Return at most COLOURS kinds, evenly spaced in the given order, including the first and the last."""
    if len(kinds) <= COLOURS:
        return kinds
    return [kinds[round(number * (len(kinds) - 1) / (COLOURS - 1))] for number in range(COLOURS)]


def _left_out(candidates: Sequence[ProfiledCandidate]) -> str:
    return f" The plot shows the {COLOURS} fastest." if len(candidates) > COLOURS else ""


def _interval(mean: float, low: float, high: float) -> str:
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def training(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on the mean accepted length before and after training, by kind of held-out prompt."""
    found = facts.training
    if found is None:
        return
    kinds = ["all", *(each.kind for each in found.kinds)]
    sides = {
        "before": [found.before, *(each.before for each in found.kinds)],
        "after": [found.after, *(each.after for each in found.kinds)],
    }
    series = [
        Series(name, [each.mean_accepted_len for each in side], [each.interval for each in side])
        for name, side in sides.items()
    ]
    words = ["", *(each.verdict for each in found.kinds)]
    rows = [
        (kind, *(_interval(each.mean_accepted_len, *each.interval) for each in pair), word)
        for kind, word, *pair in zip(kinds, words, *sides.values(), strict=True)
    ]
    table = Table("Tokens per step on held-out prompts", ("kind", "before", "after", ""), rows, (1, 2))
    outcome = "The trained draft was published." if found.published else f"Rejected: {'; '.join(found.refusals)}."
    plot = grouped("Tokens per step before and after", kinds, series, STEP_TOKENS, mark=1.0)
    yield Section("Training", f"{outcome} Whiskers are 95 % intervals over these prompts.", plot, [table])


def predicted(facts: ReportInputs) -> Iterator[Section]:
    """Yield the section on the predicted speed-up by batch size and acceptance rate."""
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


MAKERS = (
    *(baseline, bench, throughput, latencies),
    *(by_batch, by_kind, by_position, by_position_and_kind, by_length, training, predicted),
)
