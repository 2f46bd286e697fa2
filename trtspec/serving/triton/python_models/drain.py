# SPDX-License-Identifier: Apache-2.0
"""Graceful end of open requests: a model answers them with an error before its server's drain ends.

Triton lets open requests finish and then exits, without notifying a Python model of either. The process that stops a
server therefore creates a file next to the repository shortly before, and each model then answers its open requests
with an error.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.1
FILE = "ending"  # in the parent directory of the repository


def ending_file(repository: Path) -> Path:
    """Return the file that marks the end of the drain of a repository's server."""
    return repository.parent / FILE


class DrainWatcher:
    """Calls `end` of each open request once when the file appears."""

    def __init__(self, model: str) -> None:
        """Watch the server of the model in the directory `model`."""
        self._file = ending_file(Path(model).parent)
        self._open: dict[object, Callable[[], None]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="shutdown", daemon=True).start()

    def add(self, request: object, end: Callable[[], None]) -> None:
        with self._lock:
            self._open[request] = end

    def discard(self, request: object) -> None:
        with self._lock:
            self._open.pop(request, None)

    def close(self) -> None:
        self._closed.set()

    def _run(self) -> None:
        while not self._closed.wait(POLL_S):
            if self._file.exists():
                with self._lock:
                    ends, self._open = [*self._open.values()], {}
                for end in ends:
                    end()
