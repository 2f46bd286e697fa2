# SPDX-License-Identifier: Apache-2.0
"""Warnings about the validity of a load benchmark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trtspec.bench.load.client_noise import NOISY

BUSY = 0.8  # share of a processor; above it, the client may be the bottleneck
LATE_MS = 10.0
GROWING = 1.5  # later half of a round's latencies / earlier half


def collect_warnings(points: Sequence[Mapping[str, Any]], noise: Mapping[str, Any]) -> list[str]:
    """Return warnings about a document's points, one sentence each."""
    found = [f"{_name(point)}: {remark}" for point in points for remark in _point_warnings(point)]
    if noise["spread"] > NOISY:
        found.append(
            f"the machine is noisy: the quartiles of a fixed {noise['median_work_ms']:.0f} ms of work are "
            f"{noise['spread']:.0%} apart"
        )
    return found


def _name(point: Mapping[str, Any]) -> str:
    load = point["load"]
    return f"concurrency {load['concurrency']}" if "concurrency" in load else f"{load['requests_per_s']:g} requests/s"


def _point_warnings(point: Mapping[str, Any]) -> Iterator[str]:
    for name, arm in point["arms"].items():
        yield from (f"{name}: {remark}" for remark in _arm_warnings(arm, point["load"]))
    if point["outlier_rounds"]:
        rounds = ", ".join(str(number) for number in point["outlier_rounds"])
        yield f"the ratio of round {rounds} is an outlier; it is included"
    if (same := point["identical_texts"]) and same["same"] < same["compared"]:
        yield f"{same['compared'] - same['same']} of {same['compared']} texts differ between the arms"


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
