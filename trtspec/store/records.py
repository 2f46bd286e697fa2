# SPDX-License-Identifier: Apache-2.0
"""Records about a store's entries: their use, leases of running builds, and the throughput of earlier steps.

    root/uses/<key>.json        time of the last use by each recipe's build; a cache
    root/holds/<token>.json     the keys that a build needs, valid while it holds <token>.lock
    root/rates.json             bytes per second by kind of step; a cache

This module does not depend on the entries themselves. In a read-only store nothing is recorded, and nothing can be
removed.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from trtspec.core.files import file_lock, replace_file
from trtspec.store.digest import dump_checksummed, load_checksummed
from trtspec.store.step import Step

if TYPE_CHECKING:
    from filelock import BaseFileLock


USES_SCHEMA = "trtspec.uses/1"
HOLD_SCHEMA = "trtspec.hold/1"


class Leases:
    """Use records of a store's entries, and leases that protect entries during a build."""

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._root = root
        self._clock = clock
        self._holds: list[tuple[Path, set[str]]] = []

    def of(self, key: str) -> dict[str, float]:
        """Return the time of each user's last use of an entry, in seconds since the epoch."""
        document = load_checksummed(USES_SCHEMA, self._notes(key)) or {"users": {}}
        return dict(document["users"])

    def note(self, keys: Collection[str], user: str) -> None:
        """Record that `user`, a recipe's name, uses these entries now; OS errors are ignored."""
        with suppress(OSError), self._lock("uses"):
            for key in keys:
                _write(
                    self._notes(key), dump_checksummed(USES_SCHEMA, {"users": {**self.of(key), user: self._clock()}})
                )

    def forget(self, key: str) -> None:
        self._notes(key).unlink(missing_ok=True)

    @contextmanager
    def holding(self, keys: Collection[str]) -> Iterator[set[str]]:
        """Context manager that protects entries, including future ones, from removal while the block runs.

        Yields the keys, which `hold` adds to.
        """
        path, held, lock = self._root / "holds" / f"{os.getpid()}.{secrets.token_hex(4)}.json", set(keys), None
        with suppress(OSError), self._lock("holds"):
            lock = _file_lock(path.with_suffix(".lock"))
            lock.acquire(timeout=0)
            _write(path, dump_checksummed(HOLD_SCHEMA, {"keys": sorted(held)}))
        self._holds.append((path, held))
        try:
            yield held
        finally:
            self._holds.remove((path, held))
            if lock:
                _release(path, lock)

    def hold(self, key: str) -> None:
        """Also protect the entry of `key` until the innermost `holding` block of this object ends."""
        if self._holds:
            path, held = self._holds[-1]
            held.add(key)
            with suppress(OSError), self._lock("holds"):
                _write(path, dump_checksummed(HOLD_SCHEMA, {"keys": sorted(held)}))

    @contextmanager
    def unheld(self, key: str) -> Iterator[bool]:
        """Context manager that yields True if no build holds a key; new holds wait until the block ends."""
        with self._lock("holds"):
            yield key not in self.held()

    def held(self) -> set[str]:
        """Return the keys that running builds hold, and remove the holds of killed builds."""
        from filelock import Timeout

        found: set[str] = set()
        for path in (self._root / "holds").glob("*.json"):
            try:
                with _file_lock(path.with_suffix(".lock"), timeout_s=0) as lock:
                    _release(path, lock)
            except Timeout:
                found |= {*(load_checksummed(HOLD_SCHEMA, path) or {"keys": ()})["keys"]}
        return found

    def _notes(self, key: str) -> Path:
        return self._root / "uses" / f"{key}.json"

    def _lock(self, name: str) -> BaseFileLock:
        return _file_lock(self._root / "locks" / f"{name}.lock")


def _release(path: Path, lock: BaseFileLock) -> None:
    with suppress(OSError):
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
    lock.release()


def _file_lock(path: Path, timeout_s: float = -1) -> BaseFileLock:
    path.parent.mkdir(parents=True, exist_ok=True)
    return file_lock(path, timeout_s)


def _write(path: Path, data: bytes) -> None:
    """Replace a file without fsync; a power failure may lose the record."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, durable=False)


RATES_SCHEMA = "trtspec.rates/1"
KEPT = 5  # latest runs per kind; older ones are dropped because disks fill up and machines change
LEAST_BYTES = 16 << 20  # for smaller steps, start-up dominates the time


class StepRates:
    """Throughput in bytes per second of the latest runs, by `Step.kind`, of the store in `root`."""

    def __init__(self, root: Path) -> None:
        self._path = root / "rates.json"

    def note(self, step: Step, seconds: float) -> None:
        """Record the duration of a complete run; steps with less than LEAST_BYTES are ignored."""
        if step.total_bytes >= LEAST_BYTES and seconds > 0:
            known = self._load()
            known[step.kind] = [*known.get(step.kind, []), step.total_bytes / seconds][-KEPT:]
            with suppress(OSError):  # on a full disk only the estimate is lost
                self._path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._path, dump_checksummed(RATES_SCHEMA, {"rates": known}), durable=False)

    def estimated_seconds(self, step: Step) -> float | None:
        """Return a step's estimated duration by the median throughput of its kind, or None if unknown."""
        rates = self._load().get(step.kind)
        return step.total_bytes / median(rates) if rates else None

    def _load(self) -> dict[str, list[float]]:
        return dict((load_checksummed(RATES_SCHEMA, self._path) or {"rates": {}})["rates"])
