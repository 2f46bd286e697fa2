# SPDX-License-Identifier: Apache-2.0
"""Circuit breaker for calls to a model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FAILURES = 3
REST_S, LONGEST_REST_S = 0.5, 30.0


class CircuitBreaker:
    """Circuit breaker that opens after `failures` consecutive failures and closes at the first success. Thread-safe.

    While open, it admits one caller per back-off period, which doubles with each failure, from 0.5 s up to 30 s. `now`
    is the clock in seconds. `on_change` receives True when the breaker opens and False when it closes.
    """

    def __init__(
        self,
        failures: int = FAILURES,
        now: Callable[[], float] = time.monotonic,
        on_change: Callable[[bool], None] = lambda is_open: None,
    ) -> None:
        self._limit, self._now, self.on_change = failures, now, on_change
        self._lock = threading.Lock()
        self._failed = 0
        self._until = 0.0  # while open, callers are rejected before this time

    @property
    def is_open(self) -> bool:
        return self._failed >= self._limit

    def allows(self) -> bool:
        """Return whether to call the model; while open, True for one caller, which then reports the result."""
        with self._lock:
            if not self.is_open:
                return True
            if self._now() < self._until:
                return False
            self._until = self._now() + self._rest_s  # admits the next caller even if this one never reports
            return True

    def succeeded(self) -> None:
        with self._lock:
            closes, self._failed = self.is_open, 0
        if closes:
            self.on_change(False)

    def failed(self) -> None:
        """Record a failed or timed-out call."""
        with self._lock:
            self._failed += 1
            self._until = self._now() + self._rest_s
            opens = self._failed == self._limit
        if opens:
            self.on_change(True)

    @property
    def _rest_s(self) -> float:
        return float(min(LONGEST_REST_S, REST_S * 2.0 ** min(16, max(0, self._failed - self._limit))))
