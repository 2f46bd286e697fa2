# SPDX-License-Identifier: Apache-2.0
"""Connection limits that apply before authentication: their number, and the time and size of request heads.

uvicorn does not limit the time for a request head, the size of heads and trailers, or the number of connections. This
module adds these limits to uvicorn's httptools protocol, the only protocol that the gateway uses.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

LOG = logging.getLogger(__name__)
HEAD_S = 10.0
READ_S = 10.0  # time in which a client must read a part of its response
MAX_CONNECTIONS = 16384
PART = 2  # the other half of the file descriptors is for files and connections to the server
MAX_HEAD_BYTES = 64 << 10  # for a request line with headers, for trailers, and between two pieces of a body
MAX_LINES = 512  # headers or trailers; a short line takes far more memory than its length
MAX_HELD_BYTES = 32 << 20  # limit for all incomplete heads together
SMALL_HEAD_BYTES = 8 << 10  # accepted even above MAX_HELD_BYTES
PIECE_BYTES = 16 << 10  # parsed between two checks of the counts
WARN_EVERY_S = 60.0  # so that clients cannot fill the disk with warnings
TOO_LARGE = b"the request head exceeds 64 KiB or 512 headers"
RESPONSE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: text/plain\r\ncontent-length: %d\r\n"
    b"connection: close\r\n\r\n%s" % (len(TOO_LARGE), TOO_LARGE)
)


def max_connections() -> int:
    """Return the maximum number of open connections, at most half of the process's file descriptors."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files == resource.RLIM_INFINITY else max(1, min(MAX_CONNECTIONS, files // PART))


class ConnectionLimits:
    """Limits and counters shared by a server's connections.

    `most` is the maximum number of open connections, `head_s` the time limit for a request head, and `read_s` the time
    in which a client must read a part of the responses that it has not read.
    """

    def __init__(self, most: int, head_s: float = HEAD_S, read_s: float = READ_S) -> None:
        self.most, self.head_s, self.read_s = most, head_s, read_s
        self.held_bytes = 0  # of all incomplete heads
        self._warned_at = float("-inf")

    def warn(self, now: float) -> None:
        """Log, at most once per WARN_EVERY_S, that too many connections are open; `now` is in seconds."""
        if now - self._warned_at >= WARN_EVERY_S:
            self._warned_at = now
            LOG.warning("more than %d connections are open; closing new ones", self.most)


class RepeatedWarnings(logging.Filter):
    """Drops warnings that were logged within the last WARN_EVERY_S, such as uvicorn's of each malformed request."""

    def __init__(self) -> None:
        super().__init__()
        self._logged_at: dict[str, float] = {}  # by the message's format

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING:
            return True
        if record.created - self._logged_at.get(record.msg, float("-inf")) < WARN_EVERY_S:
            return False
        self._logged_at[record.msg] = record.created
        return True


CHUNKS = "trtspec.chunks"  # the extension in an ASGI scope that has a `ChunkWriter`


class ChunkWriter:
    """Writes chunks of a response's body without waiting, in addition to ASGI's `send`, which may wait.

    uvloop sends what is written at the end of its turn, after the events of all other streams are made. A chunk is
    therefore written to the connection's socket, unless the transport still has earlier bytes.
    """

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._flow = cycle, cycle.flow
        self._transport = cycle.transport
        self._is_closing, self._buffered_bytes = self._transport.is_closing, self._transport.get_write_buffer_size
        self._file: int = cycle.transport.get_extra_info("socket").fileno()

    def is_ready(self) -> bool:
        """Return True if the response is a stream that has begun and whose client reads it."""
        cycle = self._cycle
        if not cycle.chunked_encoding or self._flow.write_paused:
            return False
        return not (cycle.response_complete or cycle.disconnected or self._is_closing())

    def write(self, body: bytes) -> None:
        """Write a chunk that is not empty; `is_ready` must be True."""
        chunk = b"%x\r\n%b\r\n" % (len(body), body)
        if not self._buffered_bytes():
            try:
                sent = os.write(self._file, chunk)
            except OSError:  # the transport waits for a full socket and reports others
                sent = 0
            chunk = chunk[sent:]
        if chunk:
            self._transport.write(chunk)

    def abort(self) -> None:
        """Close the connection at once; what the client has not read is lost."""
        self._transport.abort()


class LimitedConnection(HttpToolsProtocol):
    """An HTTP connection with limits on the number of connections and on the time and size of request heads.

    The time limit for a head starts with the connection, or with the first byte after a response. Between requests,
    uvicorn's keep-alive timeout applies. A head that is too large gets a 431 response unless another response is in
    progress. The parser buffers incomplete parts internally, so received bytes count as held until a head or a piece of
    a body is complete. A connection whose client does not read complete responses is closed, because it would keep
    their bytes.
    """

    def __init__(self, limits: ConnectionLimits, **settings: Any) -> None:
        super().__init__(**settings)
        self._limits = limits
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._held_bytes = self._lines = self._line_bytes = 0  # since the last complete head or body piece
        self._in_head = self._progressed = False
        self._has_added = False  # a response may have added unsent bytes since the last check

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._limits.most:
            self._limits.warn(self.loop.time())
            transport.abort()
        else:
            self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        for begin in range(0, len(data), PIECE_BYTES):
            piece = data[begin : begin + PIECE_BYTES]
            self._progressed = False
            super().data_received(piece)
            self._hold(0 if self._progressed else self._held_bytes + len(piece))
            if self._is_too_large():
                self._refuse()
            if self.transport.is_closing():
                return
        if self.cycle is not before:
            self._stop_waiting()
        elif self._late is None and (before is None or before.response_complete):
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        if self._unread is not None:
            self._unread.cancel()
        self._hold(0)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._has_added = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self._has_added = True
        super().resume_writing()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._has_added = True
        if self._unread is None:
            self._expect_reading()

    def on_message_begin(self) -> None:
        self._in_head = True
        self._forget_head()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self._admits_line(len(url)):
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Handle a header; trailers are counted and dropped, because uvicorn would treat them as headers."""
        if self._admits_line(len(name) + len(value) + 4) and self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._is_too_large():  # do not start the request
            return
        self._in_head, self._progressed = False, True
        self._forget_head()
        super().on_headers_complete()
        if self.cycle is not None:  # None for an upgrade that uvicorn handles
            self.scope["extensions"] = {CHUNKS: {"writer": ChunkWriter(self.cycle)}}

    def on_body(self, body: bytes) -> None:
        self._progressed = True
        if not self._is_too_large():
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_too_large():
            super().on_message_complete()

    def _admits_line(self, count: int) -> bool:
        """Count a line, or part of one, of `count` bytes; return True if the head is still within its limits."""
        self._lines += 1
        self._line_bytes += count
        return not self._is_too_large()

    def _hold(self, count: int) -> None:
        """Set the number of this connection's bytes that are received but not completely parsed."""
        self._limits.held_bytes += count - self._held_bytes
        self._held_bytes = count

    def _forget_head(self) -> None:
        self._hold(0)
        self._lines = self._line_bytes = 0

    def _is_too_large(self) -> bool:
        largest = max(self._held_bytes, self._line_bytes)
        crowded = self._limits.held_bytes > MAX_HELD_BYTES and self._held_bytes > SMALL_HEAD_BYTES
        return largest > MAX_HEAD_BYTES or self._lines > MAX_LINES or crowded

    def _refuse(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(RESPONSE)
            self.transport.close()
        else:
            self.transport.abort()

    def _expect_reading(self) -> None:
        """Close the connection after `read_s`, unless its client has read a part of its responses until then."""
        unsent = self.transport.get_write_buffer_size()
        # it has not added to them yet if it waits for the client to read
        self._has_added = not (self.cycle is None or self.cycle.response_complete or self.flow.write_paused)
        self._unread = self.loop.call_later(self._limits.read_s, self._check_reading, unsent) if unsent else None

    def _check_reading(self, unsent: int) -> None:
        """Close the connection if as much is unsent as before, and no response has added to it meanwhile."""
        if self.transport.get_write_buffer_size() >= unsent and not self._has_added:
            self.transport.abort()
        else:
            self._expect_reading()

    def _wait_for_head(self) -> None:
        self._late = self.loop.call_later(self._limits.head_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
