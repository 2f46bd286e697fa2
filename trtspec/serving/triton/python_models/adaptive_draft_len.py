# SPDX-License-Identifier: Apache-2.0
"""How much to draft, by what was measured: tokens a second of each length, at each load.

Whether drafts pay depends on how many are accepted, and on what a step of either model costs under the load of the
moment. Both are in the time that a step took and the tokens that it gave, so nothing else is measured. A length may
follow the text's acceptance without changing its distribution: each step's rule is exact for whatever was drafted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

FIRST_SAMPLES = 4  # of each length, before any is preferred
MEMORY = 0.95  # what a sample weighs after the next one
AGAIN_S, AGAIN_STEPS = 10.0, 200.0  # after so long, and so many of its steps, a length is tried again
BETTER = 1.05  # by so much another length has to be faster


@dataclass
class _Measured:
    """What a length gave: decayed sums of seconds, tokens and steps; `samples` are all steps, `last` is when."""

    seconds: float = 0.0
    tokens: float = 0.0
    weight: float = 0.0
    samples: int = 0
    last: float = 0.0

    def is_due(self, now: float) -> bool:
        """Return whether a sample is wanted to know what this length gives."""
        if self.samples < FIRST_SAMPLES:
            return True
        return now - self.last > max(AGAIN_S, AGAIN_STEPS * self.seconds / self.weight)

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Choice:
    """A length, and the load that it was chosen for; `begun` is when."""

    draft_len: int
    load: int
    begun: float


class Lengths(Protocol):
    """Chooses how much is drafted."""

    def choose(self) -> Choice:
        """Return how much to draft now."""

    def note(self, choice: Choice, tokens: int) -> None:
        """Note how many tokens a step gave that was begun with a choice and ends now."""


class DraftLengths(Lengths):
    """Chooses lengths for the texts of one model; asked by many threads."""

    def __init__(
        self, most: int, schedule: Sequence[tuple[int, int]] = (), now: Callable[[], float] = time.monotonic
    ) -> None:
        """Tell what may be chosen.

        Args:
            most: the longest draft; half of it, and none, are the others.
            schedule: pairs (texts, draft_len): while at most so many texts are made, at most so much is drafted, and
                beyond the last pair nothing.
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
        """Count a text while it is made."""
        self._count(1)
        try:
            yield
        finally:
            self._count(-1)

    def limit(self) -> int:
        """Return the longest draft that the schedule allows now."""
        if not self._schedule:
            return self.most
        return min(self.most, next((draft_len for texts, draft_len in self._schedule if self._texts <= texts), 0))

    def choose(self) -> Choice:
        limit = self.limit()
        with self._lock:
            load, now = self._texts.bit_length(), self._now()
            lengths = sorted({0, (limit + 1) // 2, limit}, reverse=True)
            return Choice(self._chosen(load, lengths, now), load, now)

    def note(self, choice: Choice, tokens: int) -> None:
        now = self._now()
        with self._lock:
            measured = self._measured[choice.load, choice.draft_len]
            measured.seconds = measured.seconds * MEMORY + now - choice.begun
            measured.tokens = measured.tokens * MEMORY + tokens
            measured.weight = measured.weight * MEMORY + 1
            measured.samples += 1
            measured.last = now

    def _chosen(self, load: int, lengths: Sequence[int], now: float) -> int:
        found = {length: self._measured.setdefault((load, length), _Measured()) for length in lengths}
        for length, measured in found.items():
            if measured.is_due(now):
                measured.last = now  # of a length that is tried again, one text takes a sample and not all
                return length
        preferred = self._preferred.get(load)
        best = max(lengths, key=lambda length: found[length].rate)
        if preferred in found and found[best].rate < BETTER * found[preferred].rate:
            return preferred
        self._preferred[load] = best
        return best

    def _count(self, change: int) -> None:
        with self._lock:
            self._texts += change


class Scheduled(Lengths):
    """As much as the schedule allows, for texts that are to be made again in the same steps."""

    def __init__(self, lengths: DraftLengths) -> None:
        self._lengths = lengths

    def choose(self) -> Choice:
        return Choice(self._lengths.limit(), 0, 0.0)

    def note(self, choice: Choice, tokens: int) -> None:
        """Measure nothing: other steps are compared with each other."""
