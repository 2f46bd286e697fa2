# SPDX-License-Identifier: Apache-2.0
"""Adaptive draft length: the length with the most tokens per second, as measured for each load.

The benefit of drafting depends on the acceptance rate and on the cost of a step of either model at the current load.
The time of a step and its number of tokens reflect both, so nothing else is measured. The length may depend on a
completion's acceptance without changing its distribution, because each step is exact for any draft.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

FIRST_SAMPLES = 4  # samples of each length before one is preferred
DECAY = 0.95  # decay of a sample's weight per further sample
AGAIN_S, AGAIN_STEPS = 10.0, 200.0  # a length is measured again after this time or this many of its steps, if longer
MIN_IMPROVEMENT = 1.05  # another length must be faster by this factor


@dataclass
class _Measured:
    """Measurements of one draft length at one load.

    `seconds`, `tokens` and `weight` (the number of steps) are exponentially decayed sums. `last` is the time of the
    latest sample.
    """

    seconds: float = 0.0
    tokens: float = 0.0
    weight: float = 0.0
    samples: int = 0
    last: float = 0.0

    def is_due(self, now: float) -> bool:
        """Return True if another sample is needed; `now` is in seconds."""
        if self.samples < FIRST_SAMPLES:
            return True
        return now - self.last > max(AGAIN_S, AGAIN_STEPS * self.seconds / self.weight)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class DraftLenChoice:
    """A chosen draft length, with the load that it was chosen for and the start time of its step.

    `load` is the bit length of the number of requests in progress.
    """

    draft_len: int
    load: int
    begun: float


class AdaptiveDraftLen:
    """Chooses draft lengths for the requests of one model by measured speed; thread-safe."""

    def __init__(
        self, most: int, schedule: Sequence[tuple[int, int]] = (), now: Callable[[], float] = time.monotonic
    ) -> None:
        """Set the candidate lengths.

        Args:
            most: the longest draft in tokens; the other candidates are half of the longest allowed one, and 0.
            schedule: pairs (texts, draft_len): with at most `texts` requests in progress, draft at most `draft_len`
                tokens; beyond the last pair, do not draft.
            now: a clock in seconds.
        """
        self.most = most
        self._schedule, self._now = schedule, now
        self._lock = threading.Lock()
        self._texts = 0
        self._measured: dict[tuple[int, int], _Measured] = {}
        self._preferred: dict[int, int] = {}

    @contextmanager
    def text(self) -> Iterator[None]:
        """Context manager that counts a request as in progress."""
        with self._lock:
            self._texts += 1
        try:
            yield
        finally:
            with self._lock:
                self._texts -= 1

    def limit(self) -> int:
        """Return the longest draft that the schedule allows at the current load."""
        if not self._schedule:
            return self.most
        return min(self.most, next((draft_len for texts, draft_len in self._schedule if self._texts <= texts), 0))

    def choose(self) -> DraftLenChoice:
        """Return the draft length for a step that begins now."""
        limit = self.limit()
        with self._lock:
            load, now = self._texts.bit_length(), self._now()
            lengths = sorted({0, (limit + 1) // 2, limit}, reverse=True)
            return DraftLenChoice(self._chosen(load, lengths, now), load, now)

    def note(self, choice: DraftLenChoice, tokens: int) -> None:
        """Record that the step with `choice` ends now and produced `tokens` tokens."""
        now = self._now()
        with self._lock:
            measured = self._measured[choice.load, choice.draft_len]
            measured.seconds = measured.seconds * DECAY + now - choice.begun
            measured.tokens = measured.tokens * DECAY + tokens
            measured.weight = measured.weight * DECAY + 1
            measured.samples += 1
            measured.last = now

    def _chosen(self, load: int, lengths: Sequence[int], now: float) -> int:
        found = {length: self._measured.setdefault((load, length), _Measured()) for length in lengths}
        for length, measured in found.items():
            if measured.is_due(now):
                measured.last = now  # so that only one request at a time measures a length again
                return length
        preferred = self._preferred.get(load)
        best = max(lengths, key=lambda length: found[length].rate)
        if preferred in found and found[best].rate < MIN_IMPROVEMENT * found[preferred].rate:
            return preferred
        self._preferred[load] = best
        return best
