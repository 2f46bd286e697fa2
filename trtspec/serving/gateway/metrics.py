# SPDX-License-Identifier: Apache-2.0
"""The gateway's metrics in the Prometheus text format; Triton exports the engine's metrics at its own /metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

from trtspec.serving.gateway.shared_state import Samples, sum_samples

if TYPE_CHECKING:
    from trtspec.serving.gateway.router import RevisionBackend

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class GatewayMetricSpec:
    """One metric of the gateway; `labels` are in the order of its samples."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    labels: tuple[str, ...] = ()

    def lines(self, samples: Iterable[str]) -> list[str]:
        """Return the metric in the text format; each sample is the part of its line after the name."""
        head = (f"# HELP {self.name} {self.description}", f"# TYPE {self.name} {self.kind}")
        return [*head, *(f"{self.name}{sample}" for sample in samples)]


def _spec(
    name: str, kind: Literal["counter", "gauge", "histogram"], description: str, *labels: str
) -> GatewayMetricSpec:
    return GatewayMetricSpec(f"trtspec_openai_{name}", kind, description, labels)


REQUESTS = _spec("requests_total", "counter", "Finished requests by endpoint and HTTP status.", "endpoint", "status")
IN_FLIGHT = _spec("requests_in_flight", "gauge", "Requests in progress.")
TEXTS = _spec("texts_in_flight", "gauge", "Completions in progress.")
REJECTED = _spec("rejected_total", "counter", "Requests rejected because of API keys, rate or load.", "reason")
BROKEN = _spec("broken_streams_total", "counter", "Streams that ended early, by reason.", "reason")
SHARE = _spec("revision_share_ratio", "gauge", "Share of new requests routed to a revision.", "revision")
REVISION_REQUESTS = _spec(
    "revision_requests_total", "counter", "Finished requests of a revision by outcome.", "revision", "outcome"
)
MIRRORED = _spec(
    "shadow_requests_total", "counter", "Requests mirrored to a revision, by outcome.", "revision", "outcome"
)
COMPARED = _spec(
    "shadow_texts_total", "counter", "Mirrored greedy completions, by comparison result.", "revision", "outcome"
)
DURATION = _spec(
    "request_duration_seconds", "histogram", "Seconds from a request to the end of its response.", "endpoint"
)
FIRST_TOKEN = _spec(
    "time_to_first_token_seconds", "histogram", "Seconds from a request to its first token.", "endpoint"
)
FAMILIES = (
    REQUESTS,
    IN_FLIGHT,
    TEXTS,
    REJECTED,
    BROKEN,
    SHARE,
    REVISION_REQUESTS,
    MIRRORED,
    COMPARED,
    DURATION,
    FIRST_TOKEN,
)


GAUGES = frozenset(each.name for each in FAMILIES if each.kind == "gauge")


class Histogram:
    """Latency histograms in seconds, one per endpoint."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._sums: Counter[str] = Counter()

    def observe(self, endpoint: str, seconds: float) -> None:
        counts = self._counts.setdefault(endpoint, [0] * (len(BUCKETS_S) + 1))
        counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sums[endpoint] += seconds  # type: ignore[assignment]

    def samples(self) -> dict[str, float]:
        """Return the values by the part of their line between the metric's name and the value."""
        found: dict[str, float] = {}
        for endpoint, counts in self._counts.items():
            label = f'endpoint="{endpoint}"'
            totals = list(accumulate(counts))
            for bound, total in zip([*map(str, BUCKETS_S), "+Inf"], totals, strict=True):
                found[f'_bucket{{{label},le="{bound}"}}'] = total
            found[f"_sum{{{label}}}"] = float(self._sums[endpoint])
            found[f"_count{{{label}}}"] = totals[-1]
        return found


class GatewayMetrics:
    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # endpoint, status
        self.rejected: Counter[str] = Counter()  # the error's code
        self.broken: Counter[str] = Counter()  # reason code of a broken stream
        self.in_flight = 0
        self.duration, self.first_token = Histogram(), Histogram()

    def samples(self, revisions: Collection[RevisionBackend]) -> Samples:
        """Return the metrics that can be summed over the gateway's processes."""
        ended = {each.route.revision: each.ended for each in revisions}
        mirrors = {each.route.revision: each.shadow.mirror_stats for each in revisions if each.shadow}
        shadowed = {
            revision: {"ok": seen.sent - seen.failed, "failed": seen.failed, "dropped": seen.dropped}
            for revision, seen in mirrors.items()
        }
        compared = {
            revision: {"same": seen.compared - seen.different, "different": seen.different}
            for revision, seen in mirrors.items()
        }
        return {
            REQUESTS.name: {
                f'{{endpoint="{name}",status="{status}"}}': n for (name, status), n in self.requests.items()
            },
            IN_FLIGHT.name: {"": self.in_flight},
            REJECTED.name: _by_reason(self.rejected),
            BROKEN.name: _by_reason(self.broken),
            REVISION_REQUESTS.name: _by_outcome(ended),
            MIRRORED.name: _by_outcome(shadowed),
            COMPARED.name: _by_outcome(compared),
            DURATION.name: self.duration.samples(),
            FIRST_TOKEN.name: self.first_token.samples(),
        }


def render_metrics(texts: int, revisions: Collection[RevisionBackend], parts: Sequence[Samples]) -> str:
    """Return all metrics in the Prometheus text format.

    `texts` is the number of completions in progress, `parts` has the samples of each process.
    """
    shares = {f'{{revision="{each.route.revision}"}}': each.route.share / 100 for each in revisions}
    samples = {**sum_samples([*parts]), TEXTS.name: {"": texts}, SHARE.name: shares}
    lines = [
        line
        for family in FAMILIES
        for line in family.lines(f"{label} {_number(value)}" for label, value in samples[family.name].items())
    ]
    return "".join(f"{line}\n" for line in lines)


def _number(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def _by_reason(counts: Mapping[str, int]) -> dict[str, float]:
    return {f'{{reason="{reason}"}}': n for reason, n in counts.items()}


def _by_outcome(counts: Mapping[int, Mapping[str, int]]) -> dict[str, float]:
    return {
        f'{{revision="{revision}",outcome="{outcome}"}}': n
        for revision, outcomes in counts.items()
        for outcome, n in outcomes.items()
    }
