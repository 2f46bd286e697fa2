# SPDX-License-Identifier: Apache-2.0
"""Connection limits that apply before authentication: their number, and the time and size of request heads.

uvicorn does not limit the time for a request head, the size of heads and trailers, or the number of connections.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any

from h11 import DONE

LOG = logging.getLogger(__name__)
HEAD_S = 10.0
MAX_CONNECTIONS = 16384
PART = 2  # half of the file descriptors stay free for the tokenizer's files, the engine and others
MAX_HEAD_BYTES = 64 << 10  # of the request line and headers, of trailers, and between two pieces of a body
MAX_LINES = 512  # headers or trailers; a short line takes far more memory than its bytes
MAX_HELD_BYTES = 32 << 20  # all unfinished heads together
SMALL_HEAD_BYTES = 8 << 10  # accepted even above MAX_HELD_BYTES
PIECE_BYTES = 16 << 10  # parsed between two checks of the counts
TOO_LARGE = b"the request head exceeds 64 KiB or 512 headers"
RESPONSE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n%s%s" % (
    len(TOO_LARGE),
    b"connection: close\r\n\r\n",
    TOO_LARGE,
)


def max_connections() -> int:
    """Return the maximum number of open connections, at most half of the process's file descriptors."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, files // PART))


class HeldBytes:
    """Total bytes of unfinished heads over all connections of a server."""

    def __init__(self) -> None:
        self.total = 0


class HeadCounter:
    """Bytes and lines received on a connection since its last complete head or body piece."""

    def __init__(self, held: HeldBytes) -> None:
        self._held = held
        self._bytes = 0
        self._lines = 0
        self._line_bytes = 0

    def set_bytes(self, count: int) -> None:
        """Set the number of bytes held but not fully parsed."""
        self._held.total += count - self._bytes
        self._bytes = count

    def add_bytes(self, count: int) -> None:
        self.set_bytes(self._bytes + count)

    def add_line(self, count: int) -> None:
        """Count a header, a trailer or a part of the request line of `count` bytes."""
        self._lines += 1
        self._line_bytes += count

    def clear(self) -> None:
        """Reset the counts at the end of a head."""
        self.set_bytes(0)
        self._lines = self._line_bytes = 0

    @property
    def is_too_large(self) -> bool:
        """Return whether a limit is exceeded."""
        largest = max(self._bytes, self._line_bytes)
        crowded = self._held.total > MAX_HELD_BYTES and self._bytes > SMALL_HEAD_BYTES
        return largest > MAX_HEAD_BYTES or self._lines > MAX_LINES or crowded


def with_limits(protocol: Any, most: int, head_s: float = HEAD_S) -> type[asyncio.Protocol]:
    """Return a subclass of a uvicorn protocol that closes connections beyond `most` or with a late or large head.

    The time limit for a head starts with the connection, or with the first byte after a response; in between, uvicorn's
    keep-alive timeout applies. A head that is too large gets a 431 response unless another response is in progress.
    """
    warned: list[float] = []
    held = HeldBytes()

    class Bounded(protocol):  # type: ignore[misc]
        late: asyncio.TimerHandle | None = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.head = HeadCounter(held)
            super().__init__(*args, **kwargs)

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if len(self.connections) > most:
                _warn(warned, self.loop.time(), most)
                transport.abort()
            else:
                self._wait_for_head()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            for begin in range(0, len(data), PIECE_BYTES):
                self.parse(data[begin : begin + PIECE_BYTES])
                if self.head.is_too_large:
                    self._refuse()
                if self.transport.is_closing():
                    return
            if self.cycle is not before:
                self._stop_waiting()
            elif self.late is None and (before is None or before.response_complete):
                self._wait_for_head()

        def parse(self, piece: bytes) -> None:
            """Pass a piece to uvicorn and count the bytes that it leaves unfinished."""
            super().data_received(piece)
            waits = self.conn.their_state is DONE  # what follows belongs to the next request
            self.head.set_bytes(0 if waits else len(self.conn.trailing_data[0]))

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            self.head.clear()
            super().connection_lost(exc)

        def _refuse(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(RESPONSE)
                self.transport.close()
            else:
                self.transport.abort()

        def _wait_for_head(self) -> None:
            self.late = self.loop.call_later(head_s, self.transport.abort)

        def _stop_waiting(self) -> None:
            if self.late is not None:
                self.late.cancel()
                self.late = None

    class BoundedCallbacks(Bounded):
        """The same for a parser that reports each part by a callback and buffers unfinished ones itself."""

        in_head = False
        progressed = False

        def parse(self, piece: bytes) -> None:
            self.progressed = False
            super(Bounded, self).data_received(piece)
            if self.progressed:
                self.head.set_bytes(0)
            else:
                self.head.add_bytes(len(piece))

        def on_message_begin(self) -> None:
            self.in_head = True
            self.head.clear()
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            self.head.add_line(len(url))
            if not self.head.is_too_large:
                super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            """Handle a header; trailers are counted and dropped, because uvicorn would add them to the headers."""
            self.head.add_line(len(name) + len(value) + 4)
            if self.in_head and not self.head.is_too_large:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            if self.head.is_too_large:  # do not start the request
                return
            self.in_head, self.progressed = False, True
            self.head.clear()
            super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self.progressed = True
            if not self.head.is_too_large:
                super().on_body(body)

        def on_message_complete(self) -> None:
            if not self.head.is_too_large:
                super().on_message_complete()

    return BoundedCallbacks if hasattr(protocol, "on_header") else Bounded


def _warn(warned: list[float], now: float, most: int) -> None:
    """Log that the limit is reached, at most once a minute so that clients cannot fill the disk."""
    if not warned or now - warned[-1] >= 60.0:
        warned[:] = [now]
        LOG.warning("more than %d connections are open; closing new ones", most)
