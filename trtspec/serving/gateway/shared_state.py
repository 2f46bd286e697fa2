# SPDX-License-Identifier: Apache-2.0
"""State that all processes of a gateway share, so that limits, the split of requests and metrics are those of one.

The memory is mapped before the processes are forked. A record lock protects it, because the system releases that lock
if a process is killed.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

MAX_REVISIONS = 64
METRICS_BYTES = 256 << 10  # of one process
COPIES = 2  # of each process's metrics, written in turn
WORD = 8  # bytes of each number

Samples = Mapping[str, Mapping[str, float]]  # by metric, then by the part of a line between name and value


class SharedState:
    """Counts of completions, spent requests and routed requests, and each process's metrics.

    The process with number `index` writes at its own place. The metrics of processes that ended are added up in one
    more place, so that no counter decreases.
    """

    def __init__(self, processes: int = 1, holders: int = 1) -> None:
        """Map the memory for a number of processes and of holders of API keys."""
        self.processes, self.index = processes, 0
        places = processes + 1
        words = processes + 2 * holders + 1 + 2 * MAX_REVISIONS + places
        self._memory = mmap.mmap(-1, words * WORD + COPIES * places * METRICS_BYTES)
        view = memoryview(self._memory)
        at = 0

        def part(count: int, kind: Literal["q", "d"]) -> Any:
            nonlocal at
            begin, at = at, at + count * WORD
            return view[begin:at].cast(kind)

        self._texts = part(processes, "q")
        self._buckets = part(2 * holders, "d")
        self._generation, self._served = part(1, "q"), part(2 * MAX_REVISIONS, "q")
        self._valid = part(places, "q")  # of each place, the number of the copy that is valid
        self._metrics = [
            [view[at + (COPIES * place + copy) * METRICS_BYTES :][:METRICS_BYTES] for copy in range(COPIES)]
            for place in range(places)
        ]
        self._file = tempfile.TemporaryFile() if processes > 1 else None  # noqa: SIM115  open as long as the gateway

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Let no other process change the state inside the block, which must not wait or nest."""
        if self._file is None:
            yield
            return
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    @property
    def texts(self) -> int:
        """Return the number of completions in progress."""
        return int(sum(self._texts))

    def add_texts(self, count: int) -> None:
        """Change the number of completions in progress in this process."""
        self._texts[self.index] += count

    def bucket(self, holder: int) -> tuple[float, float]:
        """Return the requests that a holder of an API key has spent, and the time of that count; (0, 0) at first."""
        return self._buckets[2 * holder], self._buckets[2 * holder + 1]

    def set_bucket(self, holder: int, spent: float, at: float) -> None:
        self._buckets[2 * holder], self._buckets[2 * holder + 1] = spent, at

    @contextmanager
    def served(self, generation: int) -> Iterator[dict[int, int]]:
        """Yield the numbers of routed requests by revision, for the routes of a generation, to be changed.

        The first process with new routes begins them. A process whose routes are out of date gets an empty dictionary.
        """
        with self.locked():
            if generation < self._generation[0]:
                yield {}
                return
            if generation > self._generation[0]:
                self._generation[0] = generation
                self._served[:] = memoryview(bytes(len(self._served) * WORD)).cast("q")
            pairs = self._served.tolist()
            counts = {revision: count for revision, count in zip(pairs[::2], pairs[1::2], strict=True) if count}
            yield counts
            for place, pair in enumerate([*counts.items()][:MAX_REVISIONS]):
                self._served[2 * place], self._served[2 * place + 1] = pair

    def publish(self, samples: Samples) -> None:
        """Make this process's metrics visible to the others."""
        self._write(self.index, samples)

    def others(self) -> list[Samples]:
        """Return the metrics of the other processes, including those that ended."""
        return [self._read(place) for place in range(self.processes + 1) if place != self.index]

    def retire(self, index: int, gauges: frozenset[str]) -> None:
        """Keep the metrics of a process that ended, except its `gauges`, and free what it had reserved."""
        with self.locked():
            self._texts[index] = 0
        ended = {name: each for name, each in self._read(index).items() if name not in gauges}
        self._write(self.processes, sum_samples([self._read(self.processes), ended]))
        self._write(index, {})

    def _write(self, place: int, samples: Samples) -> None:
        raw = json.dumps(samples).encode()
        if len(raw) > METRICS_BYTES - WORD:
            raise ValueError(f"{len(raw):,} bytes of metrics")
        with self.locked():
            copy = 1 - self._valid[place]  # the other one stays as it is if this process is killed within a write
            self._metrics[place][copy][: WORD + len(raw)] = struct.pack("=q", len(raw)) + raw
            self._valid[place] = copy

    def _read(self, place: int) -> Samples:
        with self.locked():
            metrics = self._metrics[place][self._valid[place]]
            (length,) = struct.unpack("=q", metrics[:WORD])
            raw = bytes(metrics[WORD : WORD + length])
        found: Samples = json.loads(raw) if raw else {}
        return found


def sum_samples(parts: list[Samples]) -> Samples:
    """Return the sums of equal samples, in the order of their first occurrence."""
    sums: dict[str, dict[str, float]] = {}
    for part in parts:
        for name, samples in part.items():
            known = sums.setdefault(name, {})
            for label, value in samples.items():
                known[label] = known.get(label, 0) + value
    return sums
