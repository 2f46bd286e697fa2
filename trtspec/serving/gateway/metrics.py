# SPDX-License-Identifier: Apache-2.0
"""The gateway's metrics in the Prometheus text format; Triton exports the engine's metrics at its own /metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtspec.serving.gateway.router import RevisionBackend

BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Histogram:
    """Latency histograms in seconds, one per endpoint."""

    def __init__(self) -> None:
        self._counts: dict[str, list[int]] = {}
        self._sums: Counter[str] = Counter()

    def observe(self, endpoint: str, seconds: float) -> None:
        counts = self._counts.setdefault(endpoint, [0] * (len(BUCKETS_S) + 1))
        counts[bisect_left(BUCKETS_S, seconds)] += 1
        self._sums[endpoint] += seconds  # type: ignore[assignment]

    def lines(self, name: str) -> list[str]:
        found = []
        for endpoint, counts in self._counts.items():
            label = f'endpoint="{endpoint}"'
            totals = list(accumulate(counts))
            for bound, total in zip([*map(str, BUCKETS_S), "+Inf"], totals, strict=True):
                found.append(f'{name}_bucket{{{label},le="{bound}"}} {total}')
            found += [f"{name}_sum{{{label}}} {self._sums[endpoint]:.6f}", f"{name}_count{{{label}}} {totals[-1]}"]
        return found


class GatewayMetrics:
    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # endpoint, status
        self.rejected: Counter[str] = Counter()  # the error's code
        self.broken: Counter[str] = Counter()  # reason code of a broken stream
        self.in_flight = 0
        self.duration, self.first_token = Histogram(), Histogram()

    def render(self, texts: int, revisions: Collection[RevisionBackend]) -> str:
        """Return all metrics in the Prometheus text format; `texts` is the number of completions in progress."""
        shares = [f'{{revision="{each.route.revision}"}} {each.route.share / 100:g}' for each in revisions]
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
        requests = [f'{{endpoint="{name}",status="{status}"}} {n}' for (name, status), n in self.requests.items()]
        lines = [
            *_family("requests_total", "counter", "Finished requests by endpoint and HTTP status.", requests),
            *_family("requests_in_flight", "gauge", "Requests in progress.", [f" {self.in_flight}"]),
            *_family("texts_in_flight", "gauge", "Completions in progress.", [f" {texts}"]),
            *_by_reason("rejected_total", "Requests rejected because of API keys, rate or load.", self.rejected),
            *_by_reason("broken_streams_total", "Streams that ended early, by reason.", self.broken),
            *_family("revision_share_ratio", "gauge", "Share of new requests routed to a revision.", shares),
            *_by_outcome("revision_requests_total", "Finished requests of a revision by outcome.", ended),
            *_by_outcome("shadow_requests_total", "Requests mirrored to a revision, by outcome.", shadowed),
            *_by_outcome("shadow_texts_total", "Mirrored greedy completions, by comparison result.", compared),
        ]
        for name, histogram, description in (
            ("request_duration_seconds", self.duration, "Seconds from a request to the end of its response."),
            ("time_to_first_token_seconds", self.first_token, "Seconds from a request to its first token."),
        ):
            lines += [*_family(name, "histogram", description, []), *histogram.lines(f"trtspec_openai_{name}")]
        return "\n".join(lines) + "\n"


def _by_reason(name: str, description: str, counts: Counter[str]) -> list[str]:
    return _family(name, "counter", description, [f'{{reason="{reason}"}} {n}' for reason, n in counts.items()])


def _by_outcome(name: str, description: str, counts: Mapping[int, Mapping[str, int]]) -> list[str]:
    samples = [
        f'{{revision="{revision}",outcome="{outcome}"}} {n}'
        for revision, outcomes in counts.items()
        for outcome, n in outcomes.items()
    ]
    return _family(name, "counter", description, samples)


def _family(name: str, kind: str, description: str, samples: list[str]) -> list[str]:
    name = f"trtspec_openai_{name}"
    return [f"# HELP {name} {description}", f"# TYPE {name} {kind}", *(f"{name}{sample}" for sample in samples)]
