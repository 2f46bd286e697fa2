# SPDX-License-Identifier: Apache-2.0
"""Journal of the finished tasks of a conversion, so that an interrupted conversion resumes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from trtspec.core.failpoint import failpoint

COMMIT_EVERY_S = 0.5


class ConversionJournal:
    """The names of finished tasks, one per line; without a path nothing is stored.

    The first line is `stamp`, which identifies the sources; a journal with another stamp is discarded. A name is
    written only after the task's bytes are on the disk. A thread syncs twice a second for all tasks that finished since
    the last sync, and continuously if a sync takes longer. A power failure costs about a second of work and never
    corrupts the output. After a disk error nothing more is recorded, and `finish` and the exit raise it, because
    operating systems report a write error only once.
    """

    def __init__(self, path: Path | None, files: Sequence[int], stamp: str = "") -> None:
        self.done = _tasks_done(path, stamp) if path else frozenset()
        self._path, self._files = path, files
        self._finished: list[str] = []
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)

    def __enter__(self) -> ConversionJournal:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()  # unbounded: waits for the disk
        if not self._failure:
            self._commit()
        elif not kind:
            raise self._failure

    def finish(self, name: str) -> None:
        """Record that all bytes of a task are written; raise an earlier disk error."""
        if self._failure:
            raise self._failure
        with self._lock:
            self._finished.append(name)
        failpoint("journal.finished")

    def _work(self) -> None:
        begun = time.monotonic()
        while not self._stop.wait(max(0.0, begun + COMMIT_EVERY_S - time.monotonic())):
            begun = time.monotonic()
            try:
                self._commit()
            except BaseException as error:
                self._failure = error
                return

    def _commit(self) -> None:
        with self._lock:
            names, self._finished = self._finished, []
        if names and self._path:
            for descriptor in self._files:
                os.fdatasync(descriptor)
            with self._path.open("ab") as file:
                file.write("".join(f"{name}\n" for name in names).encode())
                file.flush()
                os.fsync(file.fileno())
            failpoint("journal.committed")


def _tasks_done(path: Path, stamp: str) -> frozenset[str]:
    """Return the finished tasks of a journal, and remove an incomplete last line."""
    whole, newline, _ = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    first, *names = whole.decode(errors="replace").split("\n")
    if not newline or first != stamp:
        path.write_text(f"{stamp}\n")
        return frozenset()
    os.truncate(path, len(whole) + 1)
    return frozenset(names)
