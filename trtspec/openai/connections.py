# SPDX-License-Identifier: Apache-2.0
"""Connections that ask nothing: how long one may take for the head of a request, and how many may be open.

uvicorn waits for ever for a head that does not come, and takes as many connections as there are file descriptors;
neither needs a key.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any

LOG = logging.getLogger(__name__)
HEAD_S = 10.0
MOST = 16384
PART = 2  # of the file descriptors half is left for the tokenizer's files, the engine and what else a process opens


def most_connections() -> int:
    """Return how many connections may be open, well below what this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, files // PART))


def bounded(protocol: Any, most: int, head_s: float = HEAD_S) -> type[asyncio.Protocol]:
    """Return one of uvicorn's protocols that ends connections whose head is late, and those beyond `most`.

    The time for a head begins with the connection, or with the first byte after an answer: until that comes, a
    connection is kept for uvicorn's own time.
    """
    warned: list[float] = []

    class Bounded(protocol):  # type: ignore[misc]
        late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                _warn(warned, self.loop.time(), most)
                transport.abort()
            else:
                self._wait_for_head()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:
                self._stop_waiting()
            elif self.late is None and (before is None or before.response_complete):
                self._wait_for_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def _wait_for_head(self) -> None:
            self.late = self.loop.call_later(head_s, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

    return Bounded


def _warn(warned: list[float], now: float, most: int) -> None:
    """Log that there are too many, once a minute at most: whoever opens them is not to fill the disk."""
    if not warned or now - warned[-1] >= 60.0:
        warned[:] = [now]
        LOG.warning("%d connections are open, and no more are taken", most)
