# SPDX-License-Identifier: Apache-2.0
"""Run processes in turns of half a second, so that drifting machine speed affects all of them equally.

Sequential runs of several seconds put equal engines up to 13 % apart. With turns it is up to 3 %, or 8 % with short
steps on a machine whose speed halves during the run (benchmarks/experiments/profile-predictions.md, 2026-11-25).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.context import SpawnContext
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Semaphore

TURN_S = 0.5  # long compared with refilling caches
WITHIN_S = 600.0


@dataclass(frozen=True)
class Ring:
    """Shared state of processes that take turns: a gate per place, and the number of running processes."""

    gates: Sequence[Semaphore]
    left: Synchronized[int]

    @classmethod
    def make(cls, context: SpawnContext, places: int) -> Ring:
        """Return a ring for at most `places` processes; pass it to them at start."""
        return cls([context.Semaphore(0) for _ in range(places)], context.Value("i", 0))

    def begin(self, runners: int) -> None:
        """Give the first of `runners` processes its turn; no process may be running."""
        self.left.value = runners
        self.gates[0].release()


_joined: list[Ring] = []


def join(ring: Ring) -> None:
    """Join a ring; use it as the initializer of a worker process."""
    _joined[:] = [ring]


class Turn:
    """Context of place `place` among `runners`; entering it waits for the first turn."""

    def __init__(self, place: int, runners: int) -> None:
        [self._ring] = _joined
        self._place, self._runners = place, runners
        self._begun = self._away = 0.0

    def __enter__(self) -> Turn:
        self._wait()
        self._begun = time.perf_counter()
        return self

    def clock(self) -> float:
        """Return seconds without the others' turns; yields the turn if it was long enough."""
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
        while self._ring.left.value:  # others still run: pass the turn on
            self._hand_on()
            self._wait()

    def _others(self) -> list[Semaphore]:
        return [gate for place, gate in enumerate(self._ring.gates[: self._runners]) if place != self._place]

    def _hand_on(self) -> None:
        self._ring.gates[(self._place + 1) % self._runners].release()

    def _wait(self) -> None:
        if not self._ring.gates[self._place].acquire(timeout=WITHIN_S):
            raise SystemExit("a process did not get its turn in time")
