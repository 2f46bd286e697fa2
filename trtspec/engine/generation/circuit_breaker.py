# SPDX-License-Identifier: Apache-2.0
"""A circuit breaker: whether a model that failed is worth asking now."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

FAILURES = 3
REST_S, LONGEST_REST_S = 0.5, 30.0


class Breaker:
    """Opens after failures in a row; then one caller at a time may try, after a rest that grows with each failure.

    Closed by the first success. Asked by many threads.
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
        self._until = 0.0  # nobody is let through before

    @property
    def is_open(self) -> bool:
        """Return whether the model is being left alone."""
        return self._failed >= self._limit

    def allows(self) -> bool:
        """Return whether to ask the model; while open, True to one caller, who is to say how it went."""
        with self._lock:
            if not self.is_open:
                return True
            if self._now() < self._until:
                return False
            self._until = self._now() + self._rest_s  # for this one; were it never heard of again, for the next
            return True

    def succeeded(self) -> None:
        """Note that the model answered."""
        with self._lock:
            closes, self._failed = self.is_open, 0
        if closes:
            self.on_change(False)

    def failed(self) -> None:
        """Note that the model did not answer, or not in time."""
        with self._lock:
            self._failed += 1
            self._until = self._now() + self._rest_s
            opens = self._failed == self._limit
        if opens:
            self.on_change(True)

    @property
    def _rest_s(self) -> float:
        return float(min(LONGEST_REST_S, REST_S * 2.0 ** min(16, max(0, self._failed - self._limit))))
