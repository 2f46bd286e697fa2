# SPDX-License-Identifier: Apache-2.0
"""Clients that send requests continuously and compare each text with the text of a sequential run."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from benchmarks.soak.asking import Ask, Entry, Heard, hear

DIFFERS = "another text"
T = TypeVar("T")
SHOWN = 5  # failures listed in the report


@dataclass(frozen=True)
class Known:
    """A request, its API, and its expected text."""

    entry: Entry
    ask: Ask
    text: str


@dataclass(frozen=True)
class Turn:
    """A client's next action: how it sends, and when it disconnects, or None."""

    known: Known
    stream: bool
    leave_s: float | None = None


@dataclass(frozen=True)
class Record:
    """The outcome of one request; times are of the monotonic clock."""

    turn: Turn
    heard: Heard
    begun: float
    ended: float

    @property
    def problem(self) -> str:
        """Return what went wrong, or ""."""
        return self.heard.problem or (DIFFERS if self.heard.differs_from(self.turn.known.text) else "")

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    def shown(self) -> dict[str, Any]:
        """Return the details needed to investigate a failure."""
        how = {"entry": self.turn.known.entry.name, "ask": self.turn.known.ask.name, "stream": self.turn.stream}
        found = how | {"problem": self.problem, "seconds": round(self.seconds, 2)}
        texts = {"text": self.heard.text[-80:], "expected": self.turn.known.text[-80:]}
        return found | (texts if self.problem == DIFFERS else {})


def alone(entries: Sequence[Entry], asks: Sequence[Ask], within_s: float) -> list[Known]:
    """Return every request at every API with its text, run sequentially; raise SystemExit if one fails."""
    found = []
    for entry in entries:
        for ask in asks:
            heard = hear(entry, ask, stream=False, within_s=within_s)
            if heard.problem:
                raise SystemExit(f"{entry.name} does not serve {ask.name}: {heard.problem}")
            found.append(Known(entry, ask, heard.text))
    return found


@contextmanager
def load(
    streams: int,
    choose: Callable[[random.Random], Turn],
    *,
    seed: int,
    within_s: float,
    pauses_s: tuple[float, float] = (0.0, 0.0),
) -> Iterator[list[Record]]:
    """Keep the given number of requests open for the duration of the block; its records are complete afterwards.

    Each client pauses between its requests for a random time from `pauses_s`.
    """
    records: list[Record] = []
    over = threading.Event()

    def run(number: int) -> None:
        chance = random.Random(f"{seed} {number}")
        while not over.is_set():
            turn, begun = choose(chance), time.monotonic()
            heard = hear(turn.known.entry, turn.known.ask, stream=turn.stream, within_s=within_s, leave_s=turn.leave_s)
            records.append(Record(turn, heard, begun, time.monotonic()))
            over.wait(chance.uniform(*pauses_s))
            if heard.problem:
                over.wait(0.5)  # avoid busy retries if the server is gone

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(streams)]
    try:
        for thread in threads:
            thread.start()
        yield records
    finally:
        over.set()
        for thread in threads:
            thread.join(within_s + 1)


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Return the counts of a run and the first failures."""
    wrong = [record for record in records if record.problem]
    return {
        "requests": len(records),
        "hung_up": sum(record.heard.left for record in records),
        "failures": sum(record.problem != DIFFERS for record in wrong),
        "different_texts": sum(record.problem == DIFFERS for record in wrong),
        "slowest_s": round(max((record.seconds for record in records), default=0.0), 2),
        "problems": [record.shown() for record in wrong[:SHOWN]],
    }


def by(records: Sequence[T], what: Callable[[T], str]) -> Mapping[str, int]:
    """Count records, or other items, by a key."""
    return dict(sorted(Counter(map(what, records)).items()))
