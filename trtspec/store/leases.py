# SPDX-License-Identifier: Apache-2.0
"""Who uses the entries of a store: who used one and when, and which of them a running build needs.

    root/uses/<key>.json        when each recipe's build last used the entry; may be lost
    root/holds/<token>.json     the keys that a build needs, for as long as it has <token>.lock

Knows nothing of entries. A store that cannot be written to takes no notes, and nobody throws anything away there.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.core.files import file_lock, replace_file
from trtspec.store.checksummed_json import load_sealed, seal

if TYPE_CHECKING:
    from filelock import BaseFileLock

USES_SCHEMA = "trtspec.uses/1"
HOLD_SCHEMA = "trtspec.hold/1"


class Uses:
    """Notes and holds below the root of a store."""

    def __init__(self, root: Path, clock: Callable[[], float]) -> None:
        self._root = root
        self._clock = clock
        self._open: dict[Path, set[str]] = {}  # what builds of this process hold

    def of(self, key: str) -> dict[str, float]:
        """Return when each user last used an entry, in seconds of the epoch."""
        document = load_sealed(USES_SCHEMA, self._notes(key)) or {"users": {}}
        return dict(document["users"])

    def note(self, keys: Collection[str], user: str) -> None:
        """Note that `user` uses entries now."""
        with suppress(OSError), self._lock("uses"):
            for key in keys:
                _write(self._notes(key), seal(USES_SCHEMA, {"users": {**self.of(key), user: self._clock()}}))

    def forget(self, key: str) -> None:
        """Throw away the notes of an entry."""
        self._notes(key).unlink(missing_ok=True)

    @contextmanager
    def holding(self, keys: Collection[str]) -> Iterator[None]:
        """Keep entries, those that are not there yet too, from being thrown away while the block runs."""
        path = self._root / "holds" / f"{os.getpid()}.{secrets.token_hex(4)}.json"
        lock = None
        with suppress(OSError), self._lock("holds"):
            lock = _file_lock(path.with_suffix(".lock"))
            lock.acquire(timeout=0)
            _write(path, seal(HOLD_SCHEMA, {"keys": sorted(keys)}))
            self._open[path] = {*keys}
        try:
            yield
        finally:
            self._open.pop(path, None)
            if lock:
                _release(path, lock)

    def hold_too(self, key: str) -> None:
        """Keep a further entry from being thrown away for as long as this process holds others."""
        if all(key in keys for keys in self._open.values()):
            return
        with suppress(OSError), self._lock("holds"):
            for path, keys in self._open.items():
                keys.add(key)
                _write(path, seal(HOLD_SCHEMA, {"keys": sorted(keys)}))

    @contextmanager
    def unheld(self, key: str) -> Iterator[bool]:
        """Tell whether no build holds a key; none begins to while the block runs."""
        with self._lock("holds"):
            yield key not in self.held()

    def held(self) -> set[str]:
        """Return the keys that running builds hold; what killed ones left is cleared away."""
        from filelock import Timeout

        found: set[str] = set()
        for path in (self._root / "holds").glob("*.json"):
            try:
                with _file_lock(path.with_suffix(".lock"), timeout_s=0) as lock:
                    _release(path, lock)
            except Timeout:
                found |= {*(load_sealed(HOLD_SCHEMA, path) or {"keys": ()})["keys"]}
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
    """Replace a file; a loss of power may lose it, which costs no more than a note."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, durable=False)
