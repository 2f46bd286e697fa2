# SPDX-License-Identifier: Apache-2.0
"""The metrics of a served model, reported to Triton's /metrics.

A call of Triton's metrics API takes 25 µs, and concurrent calls from two threads crash tritonserver 2.51
(benchmarks/experiments/log.md). Each request therefore keeps only its latest counts, and one thread of the model adds
the differences and reports them to Triton at most twice a second.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from trtspec.serving.triton.python_models import metric_families as known
from trtspec.serving.triton.python_models.metric_families import MetricSpec
from trtspec.serving.triton.python_models.request_metrics import RequestMetrics

PERIOD_S = 0.5
Occupancy = Callable[[], tuple[int, int]]


class EngineMetrics:
    """The metrics of one model; `families` are those that its engine can report.

    `occupancy` returns the numbers of running and waiting requests, if the engine knows them better. If Triton does not
    accept metrics, the model serves without them and logs that once.
    """

    def __init__(
        self,
        pb_utils: Any,
        args: Mapping[str, str],
        families: Collection[MetricSpec],
        occupancy: Occupancy | None = None,
    ) -> None:
        self._log = pb_utils.Logger
        self._occupancy = occupancy or self._counted
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
        """Count that the target continued without the draft."""
        with self._lock:
            self._sums[known.FALLBACKS, reason] += 1
        self._changed.set()

    def breaker(self, is_open: bool) -> None:
        """Record whether the circuit breaker is open."""
        self._breaker_open = is_open
        self._changed.set()

    def close(self) -> None:
        """Report the remaining counts to Triton and stop."""
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
            for family, seconds in text.take_times():
                exported.observe(family, seconds)
        for text in ended:
            sums[known.REQUESTS, text.reason or "error"] += 1
        for (family, value), amount in sums.items():
            exported.increment(family, value, amount)
        running, waiting = self._occupancy()
        exported.set(known.RUNNING, running)
        exported.set(known.WAITING, waiting)
        exported.set(known.BREAKER, int(self._breaker_open))

    def _counted(self) -> tuple[int, int]:
        with self._lock:
            running = sum(text.has_started for text in self._open)
            return running, len(self._open) - running

    def _end(self, text: RequestMetrics) -> None:
        with self._lock:
            if text in self._open:
                self._open.remove(text)
                self._ended.append(text)
        self._changed.set()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                # No timeout without requests, because nothing changes then. With requests, poll: they may start running
                # unnoticed.
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
    """The metrics registered with Triton; values of unregistered families are ignored."""

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

    def increment(self, family: MetricSpec, value: str, amount: float) -> None:
        """Increase a counter."""
        if amount > 0 and family in self._made:
            self._metric(family, value).increment(amount)

    def observe(self, family: MetricSpec, amount: float) -> None:
        """Add a value to a histogram."""
        if family in self._made:
            self._metric(family).observe(amount)

    def set(self, family: MetricSpec, amount: float) -> None:
        """Set a gauge."""
        if family in self._made:
            self._metric(family).set(amount)

    def _metric(self, family: MetricSpec, value: str = "") -> Any:
        if (family, value) not in self._metrics:
            labels = self._labels | ({family.label: value} if family.label else {})
            buckets = {"buckets": list(family.buckets)} if family.buckets else {}
            self._metrics[family, value] = self._made[family].Metric(labels=labels, **buckets)
        return self._metrics[family, value]


def artifact_method(args: Mapping[str, str]) -> str:
    """Return the speculation method of the artifact that contains a model; "unknown" without an artifact."""
    try:
        manifest = json.loads((Path(args["model_repository"]).parents[1] / "manifest.json").read_bytes())
        return str(manifest["recipe"]["speculation"]["method"])
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return "unknown"
