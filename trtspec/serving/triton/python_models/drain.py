# SPDX-License-Identifier: Apache-2.0
"""The last word of a model to whoever still waits when its server's drain ends: an error, and no silent close.

Triton lets open requests finish and then exits; a Python model hears nothing of either. Whoever ends a server therefore
writes a file beside the repository a moment before, and each model answers what is open with an error then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.1
FILE = "ending"  # beside the repository


def ending_file(repository: Path) -> Path:
    """Return the file that says that the drain of a repository's server ends."""
    return repository.parent / FILE


class Shutdown:
    """Calls `end` of each open request, once, when the file is there."""

    def __init__(self, model: str) -> None:
        """Watch for the end of the server of the model in this directory."""
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
