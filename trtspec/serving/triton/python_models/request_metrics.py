# SPDX-License-Identifier: Apache-2.0
"""One request as its metrics see it: when it came, began and ended, and what it took."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from itertools import zip_longest

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Stats, Update
from trtspec.serving.triton.python_models import metric_families as known
from trtspec.serving.triton.python_models.metric_families import Family


class Text:
    """One request on its way. Its engine's thread says how far it is, the thread of the metrics reads that."""

    def __init__(self, on_end: Callable[[Text], None]) -> None:
        self._on_end = on_end
        self._arrived = time.monotonic()
        self._first_at = 0.0
        self._first_tokens = 0
        self._counts = self._published = Stats()
        self._times: deque[tuple[Family, float]] = deque()  # which two threads may use
        self.has_started = self._has_waited = False
        self.reason: str | None = None

    def handed_over(self) -> None:
        """Note that the engine has the request, of which it may say later how long it waited."""
        self.has_started = True

    def started(self, queue_s: float | None = None) -> None:
        """Note that the engine took the request in, after so many seconds or just now."""
        self.has_started = True
        if not self._has_waited:
            self._has_waited = True
            self._times.append((known.QUEUE, time.monotonic() - self._arrived if queue_s is None else queue_s))

    def updated(self, update: Update) -> None:
        """Take news of an engine that says all there is to know."""
        if update.queue_s is not None:
            self.started(update.queue_s)
        if update.finish_reason:
            self.ended(update.finish_reason, update.stats)
        else:
            self.progressed(update.stats)

    def progressed(self, counts: Stats) -> None:
        """Take the counts so far; the first with a token say when that came."""
        self._counts = counts
        if not self._first_tokens and counts.new_tokens:
            self._first_at, self._first_tokens = time.monotonic(), counts.new_tokens
            self._times.append((known.TTFT, self._first_at - self._arrived))

    def ended(self, reason: str, counts: Stats | None = None) -> None:
        """Note why the text ended, and its last counts.

        An answer that comes whole says nothing of its first token.
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
        """Note that the text ended with an error: what was wrong before the engine took it in was refused."""
        self.ended("refused" if isinstance(error, TrtspecError) and not self.has_started else "error")

    def add_news(self, sums: Counter[tuple[Family, str]]) -> None:
        """Add what was counted since this was called before."""
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

    def take_times(self) -> list[tuple[Family, float]]:
        """Return what was measured since this was called before, in seconds."""
        return [self._times.popleft() for _ in range(len(self._times))]
