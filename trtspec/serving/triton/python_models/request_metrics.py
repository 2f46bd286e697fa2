# SPDX-License-Identifier: Apache-2.0
"""The metrics of one request: arrival, start and end times, and counts."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import zip_longest

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Stats, Update
from trtspec.serving.triton.python_models import metric_families as known
from trtspec.serving.triton.python_models.metric_families import MetricSpec


class RequestMetrics:
    """The progress of one request; written by the engine's thread, read by the metrics thread."""

    def __init__(self, on_end: Callable[[RequestMetrics], None]) -> None:
        self._on_end = on_end
        self._arrived = time.monotonic()
        self._first_at = 0.0
        self._first_tokens = 0
        self._counts = self._published = Stats()
        self._times: deque[tuple[MetricSpec, float]] = deque()  # thread-safe
        self.has_started = self._has_waited = False
        self.reason: str | None = None

    def handed_over(self) -> None:
        """Record that the engine has the request; it may report the queueing time later."""
        self.has_started = True

    def started(self, queue_s: float | None = None) -> None:
        """Record that the engine accepted the request, after `queue_s` seconds or now."""
        self.has_started = True
        if not self._has_waited:
            self._has_waited = True
            self._times.append((known.QUEUE, time.monotonic() - self._arrived if queue_s is None else queue_s))

    def updated(self, update: Update) -> None:
        """Record an update of an engine that reports all counts."""
        if update.queue_s is not None:
            self.started(update.queue_s)
        if update.finish_reason:
            self.ended(update.finish_reason, update.stats)
        else:
            self.progressed(update.stats)

    def progressed(self, counts: Stats) -> None:
        """Record the counts so far; the first with a token determine the time to first token."""
        self._counts = counts
        if not self._first_tokens and counts.new_tokens:
            self._first_at, self._first_tokens = time.monotonic(), counts.new_tokens
            self._times.append((known.TTFT, self._first_at - self._arrived))

    def ended(self, reason: str, counts: Stats | None = None) -> None:
        """Record the finish reason and the final counts.

        A response in one piece does not reveal the time to first token.
        """
        if self.reason is not None:
            return
        now = time.monotonic()
        if counts is not None and not self._first_tokens and counts.new_tokens == 1:
            self.progressed(counts)
        self._counts = counts or self._counts
        self.reason = reason
        further = self._counts.new_tokens - self._first_tokens
        if self._first_tokens and further > 0:
            self._times.append((known.TPOT, (now - self._first_at) / further))
        if self._counts.new_tokens:
            self._times.append((known.DURATION, now - self._arrived))
        self._on_end(self)

    def failed(self, error: Exception) -> None:
        """Record an error: "refused" if the engine had not accepted the request yet."""
        self.ended("refused" if isinstance(error, TrtspecError) and not self.has_started else "error")

    def add_news(self, sums: Counter[tuple[MetricSpec, str]]) -> None:
        """Add the counts since the previous call."""
        now, before = self._counts, self._published
        self._published = now
        sums[known.PROMPT_TOKENS, ""] += now.prompt_tokens - before.prompt_tokens
        sums[known.GENERATED_TOKENS, ""] += now.new_tokens - before.new_tokens
        sums[known.DRAFTED, ""] += now.drafted - before.drafted
        sums[known.ACCEPTED, ""] += now.accepted - before.accepted
        sums[known.STEPS, ""] += now.steps - before.steps
        places = zip_longest(now.accepted_by_position, before.accepted_by_position, fillvalue=0)
        for place, (accepted, earlier) in enumerate(places, 1):
            sums[known.BY_POSITION, str(place)] += accepted - earlier

    def take_times(self) -> list[tuple[MetricSpec, float]]:
        """Return the times measured since the previous call, in seconds."""
        return [self._times.popleft() for _ in range(len(self._times))]
