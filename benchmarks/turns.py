# SPDX-License-Identifier: Apache-2.0
"""Processes that run by turns of half a second: a machine whose speed drifts slows all of them alike.

Runs of some seconds, one after the other, put equal engines up to 13 % apart; by turns it is up to 3, or 8 where short
steps meet a machine that halves its speed meanwhile (benchmarks/experiments/log.md, 2026-11-25).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Semaphore

TURN_S = 0.5  # long beside what caches take to be filled again
WITHIN_S = 600.0


@dataclass(frozen=True)
class Ring:
    """What processes share that run by turns: a gate for each place, and how many of them have not ended."""

    gates: Sequence[Semaphore]
    left: Synchronized[int]

    @classmethod
    def make(cls, context: SpawnContext, places: int) -> Ring:
        """Return a ring for at most so many processes, which get it when they begin."""
        return cls([context.Semaphore(0) for _ in range(places)], context.Value("i", 0))

    def begin(self, runners: int) -> None:
        """Let the first of so many runners have its turn; nobody may be running."""
        self.left.value = runners
        self.gates[0].release()


_joined: list[Ring] = []


def join(ring: Ring) -> None:
    """Take part in a ring from now on; what a process that begins is to call."""
    _joined[:] = [ring]


class Turn:
    """Place `place` among `runners` while the context is open, which begins with a turn of its own."""

    def __init__(self, place: int, runners: int) -> None:
        [self._ring] = _joined
        self._place, self._runners = place, runners
        self._begun = self._away = 0.0

    def __enter__(self) -> Turn:
        self._wait()
        self._begun = time.perf_counter()
        return self

    def clock(self) -> float:
        """Return seconds, which stand still while others have their turn; gives them one if its own was long enough."""
        now = time.perf_counter()
        seconds = now - self._away
        if now - self._begun > TURN_S:
            self._hand_on()
            self._wait()
            self._begun = time.perf_counter()
            self._away += self._begun - now
        return seconds

    def __exit__(self, *_: object) -> None:
        with self._ring.left.get_lock():
            self._ring.left.value -= 1
            is_last = not self._ring.left.value
        if is_last:
            for gate in self._others():
                gate.release()
        while self._ring.left.value:  # others run: what comes round is handed on
            self._hand_on()
            self._wait()

    def _others(self) -> list[Semaphore]:
        return [gate for place, gate in enumerate(self._ring.gates[: self._runners]) if place != self._place]

    def _hand_on(self) -> None:
        self._ring.gates[(self._place + 1) % self._runners].release()

    def _wait(self) -> None:
        if not self._ring.gates[self._place].acquire(timeout=WITHIN_S):
            raise SystemExit("a process that runs by turns did not get its own in time")
