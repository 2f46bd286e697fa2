# SPDX-License-Identifier: Apache-2.0
"""Clients that ask again and again, each text held against that of the same request asked alone before."""

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
SHOWN = 5  # of what went wrong, in the report


@dataclass(frozen=True)
class Known:
    """A request, where it goes, and the text it has alone."""

    entry: Entry
    ask: Ask
    text: str


@dataclass(frozen=True)
class Turn:
    """What a client does next: how it asks, and after how long it hangs up, None where it stays."""

    known: Known
    stream: bool
    leave_s: float | None = None


@dataclass(frozen=True)
class Record:
    """One request that was answered, or was not; times are of the monotonic clock."""

    turn: Turn
    heard: Heard
    begun: float
    ended: float

    @property
    def problem(self) -> str:
        """Return what was wrong, "" where nothing was."""
        return self.heard.problem or (DIFFERS if self.heard.differs_from(self.turn.known.text) else "")

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    def shown(self) -> dict[str, Any]:
        """Return what a person needs to look for the reason."""
        how = {"entry": self.turn.known.entry.name, "ask": self.turn.known.ask.name, "stream": self.turn.stream}
        found = how | {"problem": self.problem, "seconds": round(self.seconds, 2)}
        texts = {"text": self.heard.text[-80:], "expected": self.turn.known.text[-80:]}
        return found | (texts if self.problem == DIFFERS else {})


def alone(entries: Sequence[Entry], asks: Sequence[Ask], within_s: float) -> list[Known]:
    """Return every request at every entry with its text, asked one after the other; raises SystemExit for none."""
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
    """Keep so many requests open while the block runs; its records grow meanwhile, and are whole behind it.

    Each client rests between its requests for a time drawn from `pauses_s`.
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
                over.wait(0.5)  # a server that is gone is not asked a thousand times a second

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
    """Return counts of a run, and the first of what went wrong."""
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
    """Count records, or other things."""
    return dict(sorted(Counter(map(what, records)).items()))
