# SPDX-License-Identifier: Apache-2.0
"""The metrics of served models: their definitions, the counts of each request, and their report to Triton's /metrics.

A call of Triton's metrics API takes 25 µs, and concurrent calls from two threads crash tritonserver 2.51
(benchmarks/experiments/triton-python-backend.md). Each request therefore keeps only its latest counts, and one thread
of the model adds the differences and reports them to Triton at most twice a second.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Stats, Update
from trtspec.engine.simulated_acceptance import mark_method

Kind = Literal["counter", "gauge", "histogram"]
REPORTS: dict[Kind, str] = {"counter": "increment", "gauge": "set", "histogram": "observe"}  # methods of Triton's API

# Bucket bounds in seconds, from the time of one step to the longest wait of a user.
WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKEN_TIMES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
TEXT_TIMES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

FALLBACK_REASONS = ("failed", "open", "refused")
FINISH_REASONS = ("length", "end_id", "stop", "cancelled", "refused", "error")


@dataclass(frozen=True)
class MetricSpec:
    """The definition of a metric with the labels `model` and `method`, and optionally one more, `label`.

    `known` are values of that label whose counters start at 0. The first increment of any other value is invisible to
    Prometheus's `rate`.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    label: str = ""
    known: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return ("model", "method", *([self.label] if self.label else []))


def _seconds(name: str, description: str, buckets: tuple[float, ...]) -> MetricSpec:
    return MetricSpec(name, "histogram", "seconds", description, buckets=buckets)


REQUESTS = MetricSpec(
    "trtspec_requests_total", "counter", "requests", "Finished requests by reason", "finish_reason", FINISH_REASONS
)
PROMPT_TOKENS = MetricSpec("trtspec_prompt_tokens_total", "counter", "tokens", "Prompt tokens of the started requests")
GENERATED_TOKENS = MetricSpec("trtspec_generated_tokens_total", "counter", "tokens", "Generated tokens")
TTFT = _seconds(
    "trtspec_time_to_first_token_seconds", "Time from a request's arrival in the model to its first token", WAITS
)
TPOT = _seconds(
    "trtspec_time_per_output_token_seconds", "Mean time per token of a request after its first tokens", TOKEN_TIMES
)
DURATION = _seconds(
    "trtspec_request_duration_seconds", "Time from a request's arrival in the model to its last token", TEXT_TIMES
)
RUNNING = MetricSpec("trtspec_requests_running", "gauge", "requests", "Requests in progress in the engine")
QUEUE = _seconds(
    "trtspec_queue_seconds", "Time from a request's arrival in the model until its engine accepts it", WAITS
)
WAITING = MetricSpec("trtspec_requests_waiting", "gauge", "requests", "Requests waiting for the engine")
DRAFTED = MetricSpec(
    "trtspec_drafted_tokens_total", "counter", "tokens", "Verified draft tokens, including all nodes of a tree"
)
ACCEPTED = MetricSpec("trtspec_accepted_tokens_total", "counter", "tokens", "Accepted draft tokens")
STEPS = MetricSpec("trtspec_decode_steps_total", "counter", "steps", "Decode steps of the target, summed over requests")
BY_POSITION = MetricSpec(
    "trtspec_accepted_tokens_by_position_total",
    "counter",
    "tokens",
    "Accepted draft tokens by position in the draft (depth of a tree), from 1",
    "position",
)
FALLBACKS = MetricSpec(
    "trtspec_fallbacks_total",
    "counter",
    "calls",
    "Times that the target continued without the draft, by reason",
    "reason",
    FALLBACK_REASONS,
)
BREAKER = MetricSpec("trtspec_breaker_open", "gauge", "0 or 1", "Whether the draft is disabled because it failed")

# Metrics grouped by the data that an engine must report.
OF_TEXTS = (REQUESTS, PROMPT_TOKENS, GENERATED_TOKENS, TTFT, TPOT, DURATION, RUNNING)
OF_QUEUE = (QUEUE, WAITING)
OF_DRAFTS = (DRAFTED, ACCEPTED)
OF_STEPS = (STEPS,)
OF_POSITIONS = (BY_POSITION,)
OF_FALLBACKS = (FALLBACKS, BREAKER)
FAMILIES = (*OF_TEXTS, *OF_QUEUE, *OF_DRAFTS, *OF_STEPS, *OF_POSITIONS, *OF_FALLBACKS)


class RequestMetrics:
    """The progress of one request; written by the engine's thread, read by the metrics thread."""

    def __init__(self, on_end: Callable[[RequestMetrics], None]) -> None:
        self._on_end = on_end
        self._arrived = time.monotonic()
        self._first_at = 0.0
        self._first_tokens = 0
        self._counts = self._published = Stats()
        self.times: deque[tuple[MetricSpec, float]] = deque()  # in seconds, until they are reported; thread-safe
        self.has_started = self._has_waited = False
        self.reason: str | None = None

    def handed_over(self) -> None:
        """Record that the engine has the request; the engine may report the queueing time later."""
        self.has_started = True

    def started(self, queue_s: float | None = None) -> None:
        """Record that the engine accepted the request, after `queue_s` seconds or, if None, now."""
        self.has_started = True
        if not self._has_waited:
            self._has_waited = True
            self.times.append((QUEUE, time.monotonic() - self._arrived if queue_s is None else queue_s))

    def updated(self, update: Update) -> None:
        """Record an update of an engine that reports all counts."""
        if update.queue_s is not None:
            self.started(update.queue_s)
        if update.finish_reason:
            self.ended(update.finish_reason, update.stats)
        else:
            self.progressed(update.stats)

    def progressed(self, counts: Stats) -> None:
        """Record the counts so far; the first call with a token determines the time to first token."""
        self._counts = counts
        if not self._first_tokens and counts.new_tokens:
            self._first_at, self._first_tokens = time.monotonic(), counts.new_tokens
            self.times.append((TTFT, self._first_at - self._arrived))

    def ended(self, reason: str, counts: Stats | None = None) -> None:
        """Record the finish reason and final counts; one response for all tokens gives no time to first token."""
        if self.reason is not None:
            return
        now = time.monotonic()
        if counts is not None and not self._first_tokens and counts.new_tokens == 1:
            self.progressed(counts)
        self._counts = counts or self._counts
        self.reason = reason
        further = self._counts.new_tokens - self._first_tokens
        if self._first_tokens and further > 0:
            self.times.append((TPOT, (now - self._first_at) / further))
        if self._counts.new_tokens:
            self.times.append((DURATION, now - self._arrived))
        self._on_end(self)

    def failed(self, error: Exception) -> None:
        """Record an error; its reason is "refused" if the request was invalid and not yet started, else "error"."""
        self.ended("refused" if isinstance(error, TrtspecError) and not self.has_started else "error")

    def add_news(self, sums: Counter[tuple[MetricSpec, str]]) -> None:
        """Add the changes of all counts since the previous call to `sums`."""
        now, before = self._counts, self._published
        self._published = now
        sums[PROMPT_TOKENS, ""] += now.prompt_tokens - before.prompt_tokens
        sums[GENERATED_TOKENS, ""] += now.new_tokens - before.new_tokens
        sums[DRAFTED, ""] += now.drafted - before.drafted
        sums[ACCEPTED, ""] += now.accepted - before.accepted
        sums[STEPS, ""] += now.steps - before.steps
        places = zip_longest(now.accepted_by_position, before.accepted_by_position, fillvalue=0)
        for place, (accepted, earlier) in enumerate(places, 1):
            sums[BY_POSITION, str(place)] += accepted - earlier


PERIOD_S = 0.5
Occupancy = Callable[[], tuple[int, int]]


class EngineMetrics:
    """The metrics of one model; `families` are the metrics that its engine can report.

    `occupancy` returns the numbers of running and waiting requests; by default they are derived from the open requests.
    `slots` is the maximum number of requests that the engine runs at once, for an engine that accepts more and does not
    report which of them wait. `engine_queue` returns the length of the engine's own queue, or None if it is unknown:
    requests within the slots may wait there, for example for memory. If Triton does not accept metrics, the model logs
    that once and serves without them.
    """

    def __init__(
        self,
        pb_utils: Any,
        args: Mapping[str, str],
        families: Collection[MetricSpec],
        occupancy: Occupancy | None = None,
        slots: int | None = None,
        engine_queue: Callable[[], int | None] = lambda: None,
    ) -> None:
        self._log = pb_utils.Logger
        self._occupancy = occupancy or self._counted
        self._slots, self._engine_queue = slots, engine_queue
        self._sums: Counter[tuple[MetricSpec, str]] = Counter()
        self._open: set[RequestMetrics] = set()
        self._ended: list[RequestMetrics] = []
        self._breaker_open = False
        self._changed, self._closing, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._exported: TritonMetrics | None = None
        try:
            self._exported = TritonMetrics(pb_utils, args, families)
        except Exception as error:
            self._give_up(error)
            return
        self._thread = threading.Thread(target=self._run, name="trtspec-metrics", daemon=True)
        self._thread.start()

    def text(self) -> RequestMetrics:
        """Return the metrics of a request that has just arrived."""
        text = RequestMetrics(self._end)
        if self._exported:
            with self._lock:
                self._open.add(text)
            self._changed.set()
        return text

    def fallback(self, reason: str) -> None:
        """Count that the target continued without the draft, by reason."""
        with self._lock:
            self._sums[FALLBACKS, reason] += 1
        self._changed.set()

    def breaker(self, is_open: bool) -> None:
        self._breaker_open = is_open
        self._changed.set()

    def close(self) -> None:
        """Report the remaining counts to Triton and stop the metrics thread."""
        if self._exported:
            self._closing.set()
            self._changed.set()
            self._thread.join(10 * PERIOD_S)

    def _publish(self) -> None:
        exported = self._exported
        if exported is None:
            return
        with self._lock:
            ended, self._ended = self._ended, []
            sums, self._sums = self._sums, Counter()
            texts = [*ended, *self._open]
        for text in texts:
            text.add_news(sums)
            while text.times:
                exported.report(*text.times.popleft())
        for text in ended:
            sums[REQUESTS, text.reason or "error"] += 1
        for (family, value), amount in sums.items():
            exported.report(family, amount, value)
        running, waiting = self._occupancy()
        exported.report(RUNNING, running)
        exported.report(WAITING, waiting)
        exported.report(BREAKER, int(self._breaker_open))

    def _counted(self) -> tuple[int, int]:
        queued = self._queued()
        with self._lock:
            started = sum(text.has_started for text in self._open)
            running = started if self._slots is None else min(started, self._slots)
            running = min(running, max(0, started - queued))
            return running, len(self._open) - running

    def _queued(self) -> int:
        """Return the length of the engine's queue, 0 if it is unknown; an engine that fails is not read again."""
        try:
            return self._engine_queue() or 0
        except Exception as error:
            self._engine_queue = lambda: None
            self._log.log_warn(f"the engine's queue cannot be read: {type(error).__name__}: {error}")
            return 0

    def _end(self, text: RequestMetrics) -> None:
        with self._lock:
            if text in self._open:
                self._open.remove(text)
                self._ended.append(text)
        self._changed.set()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                # Without requests, nothing changes until the next event. With requests, poll, because no event marks
                # the time at which one starts to run.
                self._changed.wait(PERIOD_S if self._open else None)
                self._changed.clear()
                self._closing.wait(PERIOD_S)
                self._publish()
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            self._exported = None
            self._open.clear()
            self._ended.clear()
        self._log.log_warn(f"metrics are disabled for this model: {type(error).__name__}: {error}")


class TritonMetrics:
    """The metrics registered with Triton; values of unregistered metrics are ignored."""

    def __init__(self, pb_utils: Any, args: Mapping[str, str], families: Collection[MetricSpec]) -> None:
        self._labels = {"model": args["model_name"], "method": artifact_method(args)}
        self._metrics: dict[tuple[MetricSpec, str], Any] = {}
        kinds, self._made = pb_utils.MetricFamily, {}
        for family in families:
            kind = getattr(kinds, family.kind.upper(), None)
            if kind is None:  # histograms require Triton 24.09
                pb_utils.Logger.log_warn(f"{family.name} is not exported: this Triton lacks {family.kind}s")
                continue
            self._made[family] = kinds(name=family.name, description=family.description, kind=kind)
            for value in family.known or ("",) * (not family.label):
                self._metric(family, value)

    def report(self, family: MetricSpec, amount: float, value: str = "") -> None:
        """Increment a counter, observe a histogram value or set a gauge; `value` is the extra label's value."""
        if family in self._made and (amount > 0 or family.kind != "counter"):
            getattr(self._metric(family, value), REPORTS[family.kind])(amount)

    def _metric(self, family: MetricSpec, value: str) -> Any:
        if (family, value) not in self._metrics:
            labels = self._labels | ({family.label: value} if family.label else {})
            buckets = {"buckets": list(family.buckets)} if family.buckets else {}
            self._metrics[family, value] = self._made[family].Metric(labels=labels, **buckets)
        return self._metrics[family, value]


def artifact_method(args: Mapping[str, str]) -> str:
    """Return the speculation method of the artifact that contains a model; "unknown" without an artifact.

    If the artifact's acceptance is simulated, the method is marked.
    """
    try:
        manifest = json.loads((Path(args["model_repository"]).parents[1] / "manifest.json").read_bytes())
        method = str(manifest["recipe"]["speculation"]["method"])
        return mark_method(method, manifest.get("simulated_acceptance", ()))
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return "unknown"
