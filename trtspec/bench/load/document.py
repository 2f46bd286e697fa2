# SPDX-License-Identifier: Apache-2.0
"""Build the JSON document of a load benchmark; docs/interface.md describes its fields."""

from __future__ import annotations

import math
import os
import platform
import statistics
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

from trtspec.bench.load.arrival import THROUGHPUT
from trtspec.bench.load.by_category import category_speedups
from trtspec.bench.load.client import Endpoint
from trtspec.bench.load.client_noise import summarize_noise
from trtspec.bench.load.rounds import Round
from trtspec.bench.load.slo import Slo
from trtspec.bench.load.summary import summarize_arm
from trtspec.bench.load.sweep import BASELINE, SERVED, Point, SweepResult
from trtspec.bench.load.warnings import collect_warnings
from trtspec.bench.load.workload import LoadWorkload
from trtspec.core.version import __version__

FORMAT_VERSION, KIND = 1, "load"
OUTLIER = 3.5  # modified z-score limit (Iglewicz and Hoaglin, 1993)
COMPARED = {"output_tokens_per_s": THROUGHPUT, "ttft_ms": "mean_ttft_ms", "tpot_ms": "mean_tpot_ms",
            "e2e_ms": "mean_e2e_ms"}  # fmt: skip


def build_document(
    swept: SweepResult, workload: LoadWorkload, slo: Slo | None, driver: str = "trtspec"
) -> dict[str, Any]:
    """Return the complete document."""
    points = swept.points
    found = [_point(point, slo) for point in points]
    noise = summarize_noise([each for point in points for each in point.work_ms])
    ended = [f"the sweep ended early: {swept.ended_by}"] if swept.ended_by else []
    return {
        "format_version": FORMAT_VERSION,
        "kind": KIND,
        "trtspec_version": __version__,
        "driver": driver,
        "ended_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "arms": {name: _arm(endpoint) for name, endpoint in swept.arms.items()},
        "workload": workload.as_dict(),
        "slo": slo.as_dict() if slo else None,
        "client": {"machine": platform.machine(), "processors": os.cpu_count(), "python": platform.python_version()},
        "noise": noise,
        "points": found,
        "crossover": find_crossover(points),
        "ended_by": swept.ended_by or None,
        "warnings": [*ended, *collect_warnings(found, noise)],
    }


def _arm(endpoint: Endpoint) -> dict[str, Any]:
    return {"url": endpoint.url, "api": endpoint.api_name, "model": endpoint.model, "extra": dict(endpoint.extra)}


def _point(point: Point, slo: Slo | None) -> dict[str, Any]:
    arms = {name: summarize_arm(rounds, point.counters[name], slo) for name, rounds in point.rounds.items()}
    speedup = point.speedup
    return {
        "load": point.load.as_dict(),
        "requests_per_round": point.requests,
        "arms": arms,
        "judged_by": point.load.judged_by,
        "unfit": point.unfit or None,
        "speedup": speedup.as_dict() if speedup else None,
        "speedups": [round(each, 4) for each in point.speedups()],
        "outlier_rounds": find_outliers(point.speedups()),
        "served_to_baseline": {} if point.unfit else _ratios(point),
        "speedup_by_kind": {} if point.unfit or BASELINE not in point.rounds else category_speedups(*_arms(point)),
        "identical_texts": _identical(point),
    }


def _ratios(point: Point) -> dict[str, Any]:
    """Return the served arm's metrics divided by the baseline's, with intervals."""
    from trtspec.bench.load.intervals import ratio_of_rounds

    found = {
        name: point.ratios(lambda each, attribute=attribute: getattr(each, attribute))  # type: ignore[misc]
        for name, attribute in COMPARED.items()
    }
    return {name: ratio_of_rounds(ratios).as_dict() for name, ratios in found.items() if ratios}


def find_outliers(ratios: Sequence[float]) -> list[int]:
    """Return the rounds whose ratio is far from the others'; they are reported but not excluded."""
    logs = [math.log(each) for each in ratios]
    if len(logs) < 5:
        return []
    middle = statistics.median(logs)
    deviations = [abs(each - middle) for each in logs]
    usual = statistics.median(deviations)
    return [number for number, far in enumerate(deviations) if 0.6745 * far > OUTLIER * usual > 0]


def _identical(point: Point) -> dict[str, int] | None:
    """Return how many requests have identical texts in both arms, or None if unknown."""
    if BASELINE not in point.rounds:
        return None
    both = [
        (ours.text_sha256, theirs.text_sha256)
        for served, alone in zip(*_arms(point), strict=True)
        for ours, theirs in zip(served.samples, alone.samples, strict=True)
        if ours.text_sha256 and theirs.text_sha256
    ]
    if not both:
        return None
    return {"same": sum(ours == theirs for ours, theirs in both), "compared": len(both)}


def _arms(point: Point) -> tuple[Sequence[Round], Sequence[Round]]:
    return point.rounds[SERVED], point.rounds[BASELINE]


def find_crossover(points: Sequence[Point]) -> dict[str, Any] | None:
    """Return the first closed load at which speculation is slower, and whether its interval shows that."""
    for point in points:
        speedup = point.speedup
        if point.load.judged_by == THROUGHPUT and speedup and speedup.value < 1:
            return {**point.load.as_dict(), "speedup": round(speedup.value, 4), "is_shown": speedup.shows < 0}
    return None
