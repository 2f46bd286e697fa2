# SPDX-License-Identifier: Apache-2.0
"""Bounds of connections before any key is checked: their number, and the time and size of the head of a request.

uvicorn waits without limit for the head of a request, keeps a head and trailers of any size, and takes as many
connections as there are file descriptors.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from typing import Any

from h11 import DONE

LOG = logging.getLogger(__name__)
HEAD_S = 10.0
MOST = 16384
PART = 2  # of the file descriptors half is left for the tokenizer's files, the engine and what else a process opens
MAX_HEAD_BYTES = 64 << 10  # of the request line and the headers; and of trailers, and between two pieces of a body
MAX_LINES = 512  # headers, or trailers: a short line takes far more memory than its bytes
MAX_HELD_BYTES = 32 << 20  # of all unfinished heads together
SMALL_HEAD_BYTES = 8 << 10  # taken also when those are held
PIECE_BYTES = 16 << 10  # parsed between two looks at the counts
TOO_LARGE = b"the head of a request may have 64 KiB and 512 headers"
RESPONSE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n%s%s" % (
    len(TOO_LARGE),
    b"connection: close\r\n\r\n",
    TOO_LARGE,
)


def most_connections() -> int:
    """Return how many connections may be open, well below what this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, files // PART))


class Held:
    """The bytes of unfinished heads that all connections of a server hold."""

    def __init__(self) -> None:
        self.total = 0


class Head:
    """What one connection sent since the last head, or piece of a body, was complete."""

    def __init__(self, held: Held) -> None:
        self._held = held
        self._bytes = 0
        self._lines = 0
        self._line_bytes = 0

    def set_bytes(self, count: int) -> None:
        """Set the bytes that are held and not parsed to the end."""
        self._held.total += count - self._bytes
        self._bytes = count

    def add_bytes(self, count: int) -> None:
        self.set_bytes(self._bytes + count)

    def add_line(self, count: int) -> None:
        """Count a header, a trailer or a part of the request line, of so many bytes."""
        self._lines += 1
        self._line_bytes += count

    def clear(self) -> None:
        """Begin anew, as at the end of a head."""
        self.set_bytes(0)
        self._lines = self._line_bytes = 0

    @property
    def is_too_large(self) -> bool:
        """Return whether one of the bounds is exceeded."""
        largest = max(self._bytes, self._line_bytes)
        crowded = self._held.total > MAX_HELD_BYTES and self._bytes > SMALL_HEAD_BYTES
        return largest > MAX_HEAD_BYTES or self._lines > MAX_LINES or crowded


def bounded(protocol: Any, most: int, head_s: float = HEAD_S) -> type[asyncio.Protocol]:
    """Return one of uvicorn's protocols that ends connections whose head is late or large, and those beyond `most`.

    The time for a head begins with the connection, or with the first byte after an answer: until that comes, a
    connection is kept for uvicorn's own time. A head that is too large gets a response with status 431, where no other
    response is under way.
    """
    warned: list[float] = []
    held = Held()

    class Bounded(protocol):  # type: ignore[misc]
        late: asyncio.TimerHandle | None = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.head = Head(held)
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
            """Hand a piece to uvicorn, and count what it leaves unfinished."""
            super().data_received(piece)
            waits = self.conn.their_state is DONE  # for the response: what follows is another request
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
        """The same for a parser that calls back with each part, and keeps to itself what is unfinished."""

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
            """Take a header; a trailer is counted and dropped, since uvicorn would put it among the headers."""
            self.head.add_line(len(name) + len(value) + 4)
            if self.in_head and not self.head.is_too_large:
                super().on_header(name, value)

        def on_headers_complete(self) -> None:
            if self.head.is_too_large:  # the request is not begun
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
    """Log that there are too many, once a minute at most: whoever opens them is not to fill the disk."""
    if not warned or now - warned[-1] >= 60.0:
        warned[:] = [now]
        LOG.warning("%d connections are open, and no more are taken", most)
