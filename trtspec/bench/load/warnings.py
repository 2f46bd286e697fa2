# SPDX-License-Identifier: Apache-2.0
"""What a reader of a load benchmark has to know before he believes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trtspec.bench.load.client_noise import NOISY

BUSY = 0.8  # of a processor: from then on the client may be what is measured
LATE_MS = 10.0
GROWING = 1.5  # the later half of a round's latencies over the earlier half's


def remarks_on(points: Sequence[Mapping[str, Any]], noise: Mapping[str, Any]) -> list[str]:
    """Return warnings about a document's points, each in a sentence."""
    found = [f"{_name(point)}: {remark}" for point in points for remark in _of_point(point)]
    if noise["spread"] > NOISY:
        found.append(
            f"the machine is noisy: the quartiles of the same {noise['median_work_ms']:.0f} ms of work are "
            f"{noise['spread']:.0%} apart"
        )
    return found


def _name(point: Mapping[str, Any]) -> str:
    load = point["load"]
    return f"concurrency {load['concurrency']}" if "concurrency" in load else f"{load['requests_per_s']:g} requests/s"


def _of_point(point: Mapping[str, Any]) -> Iterator[str]:
    for name, arm in point["arms"].items():
        yield from (f"{name}: {remark}" for remark in _of_arm(arm, point["load"]))
    if point["outlier_rounds"]:
        rounds = ", ".join(str(number) for number in point["outlier_rounds"])
        yield f"the ratio of round {rounds} is far from the others'; it counts as they do"
    if (same := point["identical_texts"]) and same["same"] < same["compared"]:
        yield f"{same['compared'] - same['same']} of {same['compared']} texts differ between the arms"


def _of_arm(arm: Mapping[str, Any], load: Mapping[str, Any]) -> Iterator[str]:
    if arm["failed"]:
        first = next(iter(arm["errors"]))
        yield f"{arm['failed']} of {arm['failed'] + arm['requests']} requests failed: {first}"
    if not arm["tokens_are_counted"]:
        yield "the server does not count its tokens: chunks are counted, which may hold several"
    if arm["itl_ms"] is None and arm["output_tokens"] > arm["requests"]:
        yield "each answer came in one piece: the server does not stream, and TTFT is the whole answer's time"
    if (arm["client_cpu_share"] or 0) > BUSY:
        yield f"the client took {arm['client_cpu_share']:.0%} of a processor: the figures may be its own"
    if arm["sent_late_ms"]["p99"] > LATE_MS:
        yield f"1 in 100 requests was sent {arm['sent_late_ms']['p99']:.0f} ms late or more; their latencies say so"
    if "requests_per_s" in load and arm["e2e_growth"] > GROWING:
        yield f"latencies grow {arm['e2e_growth']:.1f} times within a round: more requests come than are answered"
