# SPDX-License-Identifier: Apache-2.0
"""JSON document of a load test; docs/interface.md describes its fields.

Summarizes the rounds of each arm (rates, percentiles, goodput, acceptance), computes the speed-up for each category of
prompts, such as code and chat, and warns about doubtful results.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import zip_longest
from typing import Any

from trtspec.bench.load.arrivals import THROUGHPUT
from trtspec.bench.load.client import SERVED, Counters
from trtspec.bench.load.intervals import ratio_of_rounds
from trtspec.bench.load.rounds import LoadWorkload, Round
from trtspec.bench.load.sample import MS, RequestSample, Slo
from trtspec.bench.load.sweep import NOISY, Point, SweepResult, summarize_noise
from trtspec.core.installation import __version__
from trtspec.engine.simulated_acceptance import describe_simulation

PERCENTILES = (50, 90, 95, 99)
MOST_ERRORS = 5  # distinct errors to list
BUSY = 0.8  # share of one processor above which the client may be the bottleneck
LATE_MS = 10.0  # 99th percentile of send delays above which a warning is given
GROWING = 1.5  # ratio of the later to the earlier half of a round's latencies that indicates a queue
OUTLIER = 3.5  # modified z-score limit (Iglewicz and Hoaglin, 1993)
COMPARED = {"output_tokens_per_s": THROUGHPUT, "ttft_ms": "mean_ttft_ms", "tpot_ms": "mean_tpot_ms",
            "e2e_ms": "mean_e2e_ms"}  # fmt: skip


def summarize_arm(rounds: Sequence[Round], counters: Counters, slo: Slo | None) -> dict[str, Any]:
    """Return the JSON fields of one arm; percentiles cover all requests with a complete response."""
    samples = [sample for each in rounds for sample in each.answered]
    seconds, prompt_tokens = sum(each.seconds for each in rounds), [sample.prompt_tokens for sample in samples]
    failed = [sample.error for each in rounds for sample in each.samples if not sample.ok]
    kept = sum(map(slo.holds, samples)) if slo else None
    late_ms = (MS * (sample.sent_s - sample.due_s) for each in rounds for sample in each.samples)
    cpu_s = [each.client_cpu_s for each in rounds if each.client_cpu_s is not None]
    return {
        "requests": len(samples),
        "failed": len(failed),
        "errors": dict(Counter(failed).most_common(MOST_ERRORS)),
        "seconds": round(seconds, 4),
        "prompt_tokens": None if None in prompt_tokens else sum(count or 0 for count in prompt_tokens),
        "output_tokens": sum(sample.output_tokens for sample in samples),
        "tokens_are_counted": all(sample.is_counted for sample in samples),
        "requests_per_s": round(len(samples) / seconds, 4),
        "output_tokens_per_s": round(
            sum(each.steady_state_tokens for each in rounds) / sum(each.steady_state_s for each in rounds), 3
        ),
        "request_tokens_per_s": summarize_values(sample.tokens_per_s for sample in samples),
        "ttft_ms": summarize_values(sample.ttft_ms for sample in samples),
        "tpot_ms": summarize_values(sample.tpot_ms for sample in samples),
        "itl_ms": summarize_values(gap for sample in samples for gap in sample.itl_ms),
        "e2e_ms": summarize_values(sample.e2e_ms for sample in samples),
        "e2e_growth": round(statistics.geometric_mean(each.e2e_growth for each in rounds), 3),
        "sent_late_ms": summarize_values(late_ms),
        "goodput_requests_per_s": None if kept is None else round(kept / seconds, 4),
        "goodput_share": None if kept is None else round(kept / (len(samples) + len(failed)), 4),
        **_drafts(samples, counters),
        "by_kind": _by_kind(samples),
        "finish_reasons": dict(Counter(sample.finish_reason or "unknown" for sample in samples)),
        "client_cpu_share": round(sum(cpu_s) / seconds, 4) if cpu_s else None,
        "rounds": [each.as_dict(slo) for each in rounds],
    }


def summarize_values(values: Iterable[float | None]) -> dict[str, float] | None:
    """Return the mean, percentiles, minimum and maximum of the known values, or None if no value is known.

    Percentiles are interpolated linearly, as in numpy.
    """
    import numpy as np

    known = [value for value in values if value is not None]
    if not known:
        return None
    found = {"mean": float(np.mean(known)), "min": min(known)}
    for share, value in zip(PERCENTILES, np.percentile(known, PERCENTILES), strict=True):
        found[f"p{share}"] = float(value)
    return {name: round(value, 4) for name, value in {**found, "max": max(known)}.items()}


def _drafts(samples: Sequence[RequestSample], counters: Counters) -> dict[str, Any]:
    """Return acceptance metrics from per-response counts, or from counters; `drafts_told_by` is the source."""
    counted = [sample for sample in samples if sample.drafted is not None and sample.accepted is not None]
    histogram = [sum(steps) for steps in zip_longest(*(sample.histogram for sample in counted), fillvalue=0)]
    source = "answers" if counted else "counters" if counters.drafted else ""
    rates = _rates(*(_counts(counted) if counted else counters))
    return {**rates, "acceptance_histogram": histogram, "drafts_told_by": source}


def _counts(samples: Sequence[RequestSample]) -> Counters:
    """Return the total draft counts of all requests, so that long responses have more weight."""
    columns = zip(*((each.steps or 0, each.drafted or 0, each.accepted or 0) for each in samples), strict=True)
    return Counters(*map(sum, columns))


def _rates(steps: float, drafted: float, accepted: float) -> dict[str, Any]:
    return {
        "acceptance_rate": round(accepted / drafted, 4) if drafted else None,
        "mean_accepted_len": round(1 + accepted / steps, 4) if steps and drafted else None,
    }


def _by_kind(samples: Sequence[RequestSample]) -> dict[str, dict[str, Any]]:
    """Return metrics by category of prompts; empty for a single category."""
    kinds = defaultdict(list)
    for sample in samples:
        kinds[sample.kind].append(sample)
    if len(kinds) < 2:
        return {}
    return {
        kind or "-": {
            "requests": len(found),
            "tpot_ms": summarize_values(sample.tpot_ms for sample in found),
            **_rates(*_counts(found)),
        }
        for kind, found in sorted(kinds.items())
    }


def category_speedups(pairs: Sequence[tuple[Round, Round]]) -> dict[str, dict[str, Any]]:
    """Return the speed-up with its interval by category of prompts; empty for a single category.

    `pairs` are rounds of the served and the baseline arm. The ratio of a round is the geometric mean of baseline TPOT /
    served TPOT over the requests that both arms completed. Prompts without a category are listed as "-".
    """
    kinds = sorted({sample.kind for served, _ in pairs for sample in served.samples})
    if len(kinds) < 2:
        return {}
    ratios = {kind: [ratio for pair in pairs if (ratio := _tpot_ratio(kind, *pair))] for kind in kinds}
    return {kind or "-": ratio_of_rounds(found).as_dict() for kind, found in ratios.items() if found}


def _tpot_ratio(kind: str, served: Round, alone: Round) -> float | None:
    ratios = [
        theirs.tpot_ms / ours.tpot_ms
        for ours, theirs in zip(served.samples, alone.samples, strict=True)
        if ours.kind == kind and ours.ok and theirs.ok and ours.tpot_ms and theirs.tpot_ms
    ]
    return statistics.geometric_mean(ratios) if ratios else None


def collect_warnings(points: Sequence[Mapping[str, Any]], noise: Mapping[str, Any]) -> list[str]:
    """Return warnings about the points of a document, one sentence each."""
    found = [warning for point in points for warning in _point_warnings(point)]
    if noise["spread"] > NOISY:
        found.append(
            f"the machine is noisy: the quartiles of a fixed {noise['median_work_ms']:.0f} ms of work are "
            f"{noise['spread']:.0%} apart"
        )
    return found


def _point_warnings(point: Mapping[str, Any]) -> Iterator[str]:
    load = point["load"]
    at = f"concurrency {load['concurrency']}" if "concurrency" in load else f"{load['requests_per_s']:g} requests/s"
    for name, arm in point["arms"].items():
        yield from (f"{at}: {name}: {remark}" for remark in _arm_warnings(arm, load))
    if point["outlier_rounds"]:
        rounds = ", ".join(str(number) for number in point["outlier_rounds"])
        yield f"{at}: the ratio of round {rounds} is an outlier; it is included"
    if (same := point["identical_texts"]) and same["same"] < same["compared"]:
        yield f"{at}: {same['compared'] - same['same']} of {same['compared']} texts differ between the arms"


def _arm_warnings(arm: Mapping[str, Any], load: Mapping[str, Any]) -> Iterator[str]:
    if arm["failed"]:
        first = next(iter(arm["errors"]))
        yield f"{arm['failed']} of {arm['failed'] + arm['requests']} requests failed: {first}"
    if not arm["tokens_are_counted"]:
        yield "the server does not report token counts: chunks are counted, which may contain several tokens"
    if arm["itl_ms"] is None and arm["output_tokens"] > arm["requests"]:
        yield "each response came in one chunk: the server does not stream, and TTFT is the end-to-end time"
    if (arm["client_cpu_share"] or 0) > BUSY:
        yield f"the client used {arm['client_cpu_share']:.0%} of a processor and may be the bottleneck"
    if arm["sent_late_ms"]["p99"] > LATE_MS:
        yield f"1 in 100 requests was sent {arm['sent_late_ms']['p99']:.0f} ms or more late, which adds to latency"
    if "requests_per_s" in load and arm["e2e_growth"] > GROWING:
        growth = f"latencies grow {arm['e2e_growth']:.1f} times within a round"
        yield f"{growth}: requests arrive faster than the server completes them"


def build_document(
    swept: SweepResult,
    workload: LoadWorkload,
    slo: Slo | None,
    driver: str = "trtspec",
    simulated: Sequence[float] = (),
) -> dict[str, Any]:
    """Return the document of a load test; texts are not compared if acceptance was `simulated` with some rates."""
    points = swept.points
    found = [_point(point, slo, compares_texts=not simulated) for point in points]
    lengths = [point["arms"][SERVED]["mean_accepted_len"] for point in found]
    mean = statistics.fmean(lengths) if lengths and None not in lengths else None
    noise = summarize_noise([each for point in points for each in point.work_ms])
    ended = [f"the sweep ended early: {swept.ended_by}"] if swept.ended_by else []
    return {
        "format_version": 1,
        "kind": "load",
        "trtspec_version": __version__,
        "driver": driver,
        "ended_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "arms": {
            name: {"url": each.url, "api": each.api_name, "model": each.model, "extra": dict(each.extra)}
            for name, each in swept.arms.items()
        },
        "workload": workload.as_dict(),
        "slo": asdict(slo) if slo else None,
        "client": {"machine": platform.machine(), "processors": os.cpu_count(), "python": platform.python_version()},
        "noise": noise,
        "points": found,
        "crossover": find_crossover(points),
        "ended_by": swept.ended_by or None,
        "warnings": [*ended, *collect_warnings(found, noise)],
        **(describe_simulation(simulated, mean) if simulated else {}),
    }


def _point(point: Point, slo: Slo | None, *, compares_texts: bool) -> dict[str, Any]:
    arms = {name: summarize_arm(rounds, point.counters[name], slo) for name, rounds in point.rounds.items()}
    speedup, unfit = point.speedup, point.unfit
    ratios = {} if unfit else {name: point.ratios(metric) for name, metric in COMPARED.items()}
    return {
        "load": point.load.as_dict(),
        "requests_per_round": point.requests,
        "arms": arms,
        "judged_by": point.load.judged_by,
        "unfit": unfit or None,
        "speedup": speedup.as_dict() if speedup else None,
        "speedups": [round(each, 4) for each in point.speedups()],
        "outlier_rounds": find_outliers(point.speedups()),
        "served_to_baseline": {name: ratio_of_rounds(each).as_dict() for name, each in ratios.items() if each},
        "speedup_by_kind": {} if unfit else category_speedups(point.pairs),
        "identical_texts": _identical(point) if compares_texts else None,
    }


def find_outliers(ratios: Sequence[float]) -> list[int]:
    """Return the numbers of rounds whose ratio is far from the others; they are reported but not excluded."""
    logs = [math.log(each) for each in ratios]
    if len(logs) < 5:
        return []
    middle = statistics.median(logs)
    deviations = [abs(each - middle) for each in logs]
    usual = statistics.median(deviations)
    return [number for number, far in enumerate(deviations) if 0.6745 * far > OUTLIER * usual > 0]


def _identical(point: Point) -> dict[str, int] | None:
    """Return the numbers of identical and of compared texts, or None if no text can be compared."""
    digests = [
        (ours.text_sha256, theirs.text_sha256)
        for served, alone in point.pairs
        for ours, theirs in zip(served.samples, alone.samples, strict=True)
        if ours.text_sha256 and theirs.text_sha256
    ]
    return {"same": sum(ours == theirs for ours, theirs in digests), "compared": len(digests)} if digests else None


def find_crossover(points: Sequence[Point]) -> dict[str, Any] | None:
    """Return the first closed-loop load at which speculation is slower, and `is_shown` if its interval confirms it."""
    for point in points:
        speedup = point.speedup
        if point.load.judged_by == THROUGHPUT and speedup and speedup.value < 1:
            return {**point.load.as_dict(), "speedup": round(speedup.value, 4), "is_shown": speedup.shows < 0}
    return None
