# SPDX-License-Identifier: Apache-2.0
"""Detection of disconnected clients by one thread for all requests of a model, so that their work can be cancelled.

The thread of a request cannot detect it, because it waits for the next token, which may take long or never arrive.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable

POLL_S = 0.2  # each check is a message to the server


class Registration:
    """One watched request."""

    def __init__(
        self, is_cancelled: Callable[[], bool], on_left: Callable[[], None], end: Callable[[Registration], None]
    ):
        self._is_cancelled, self._on_left, self._end = is_cancelled, on_left, end
        self._lock = threading.Lock()
        self._over = False
        self.has_left = False

    def look(self) -> None:
        """Call `on_left` once if the client has disconnected."""
        with self._lock:
            if self._over or self.has_left or not self._is_cancelled():
                return
            self.has_left, on_left = True, self._on_left
        on_left()

    def close(self) -> None:
        """Stop watching; call it before the last response, after which the server no longer knows the request.

        This also drops the references to the request, which refers to its watch, because a reference cycle would stay
        until a garbage collection.
        """
        with self._lock:
            self._over, self._is_cancelled, self._on_left = True, _never, _nothing
        self._end(self)


def _never() -> bool:
    return False


def _nothing() -> None:
    pass


class CancellationWatcher:
    """Watches requests until each is closed."""

    def __init__(self) -> None:
        self._watched: set[Registration] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="departures", daemon=True).start()

    def watch(self, is_cancelled: Callable[[], bool], on_left: Callable[[], None]) -> Registration:
        """Watch one request; `on_left` is called from another thread."""
        watch = Registration(is_cancelled, on_left, self._forget)
        with self._lock:
            self._watched.add(watch)
        return watch

    def close(self) -> None:
        self._closed.set()

    def _forget(self, watch: Registration) -> None:
        with self._lock:
            self._watched.discard(watch)

    def _run(self) -> None:
        while not self._closed.wait(POLL_S):
            with self._lock:
                watched = list(self._watched)
            for each in watched:
                try:
                    each.look()
                except Exception:  # an error of one request must not affect the others
                    traceback.print_exc()
                    each.close()
