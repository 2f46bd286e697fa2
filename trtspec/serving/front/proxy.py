# SPDX-License-Identifier: Apache-2.0
"""The proxy's connections: protocols for the client and the server side, and their shared limits.

A request is read completely before the proxy connects to the server, so a slow client uses no server resources. A
response is forwarded as it arrives, with back-pressure from the client. If the client disconnects, the connection to
the server is closed.
"""

from __future__ import annotations

import asyncio
import enum
import json
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from trtspec.core.http_hosts import HostRules
from trtspec.serving.front import UNAVAILABLE_MESSAGE
from trtspec.serving.front.http_messages import (
    END,
    MAX_BODY_BYTES,
    MAX_HEAD_BYTES,
    ChunkedBody,
    MalformedResponse,
    ProxyRequest,
    RequestRejected,
    UpstreamResponse,
    check_body,
    check_incomplete_head,
    parse_head,
)
from trtspec.serving.triton.python_models.interruptions import add_client_token, clear_disconnected, mark_disconnected

LOG = logging.getLogger(__name__)

HEAD_S = 10.0  # time limit for a request head
IDLE_S = 75.0  # time limit between two requests on a connection
BODY_S = 30.0  # time limit for a body, plus the time that its bytes take at LOWEST_RATE
LOWEST_RATE = 16 << 10  # bytes per second of a body
STALLED_S = 60.0  # time limit for a client that does not read its response
LINGER_S = 5.0  # time limit for reading the rest of a rejected request
LINGER_BYTES = 2 * MAX_BODY_BYTES
CHECK_EVERY_S = 1.0
AHEAD_BYTES = 16 << 10  # pipelined requests that are buffered during a response
HIGH_WATER = 64 << 10  # response bytes not yet sent to the client
MAX_HELD_BYTES = 256 << 20  # all bodies together
SMALL_BODY = 64 << 10  # sent in one buffer with its head
LATE = RequestRejected(408, "the request did not arrive in time")
DEPARTED_S = 30.0  # maximum wait for the models to cancel a disconnected client's request


class State(enum.Enum):
    HEAD = 1
    BODY = 2
    RESPONSE = 3
    CLOSING = 4


@dataclass
class ProxyState:
    """State and limits shared by all connections; at most `most` client connections are open."""

    rules: HostRules
    most: int
    clients: dict[ClientConnection, None] = field(default_factory=dict)  # in the order in which they became idle
    held: int = 0  # bytes of request bodies
    departures: Path | None = None  # directory that records disconnected clients for the models
    departed: dict[ServerConnection, float] = field(default_factory=dict)  # disconnected clients and when they left
    served: int = 0
    refused: int = 0

    def admit(self) -> bool:
        """Return True if one more connection fits; may close an idle connection to make room."""
        if len(self.clients) < self.most:
            return True
        waiting = next((each for each in self.clients if each.state in (State.HEAD, State.CLOSING)), None)
        if waiting is None:
            return False
        waiting.abort()
        return True

    async def check(self) -> None:
        """Check the time limits of all connections every CHECK_EVERY_S; runs until the process exits."""
        loop = asyncio.get_running_loop()
        while True:  # runs until the process exits
            await asyncio.sleep(CHECK_EVERY_S)
            now = loop.time()
            for client in [*self.clients]:
                client.check(now)
            for server, since in [*self.departed.items()]:
                if now - since > DEPARTED_S:
                    server.close()


class ClientConnection(asyncio.Protocol):
    """A client's connection; its requests are handled one after another."""

    def __init__(self, front: ProxyState, server: str, methods: tuple[bytes, ...]) -> None:
        self.state = State.HEAD
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._front, self._server, self._methods = front, server, methods
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._request: ProxyRequest | None = None
        self._chunks: ChunkedBody | None = None
        self._upstream: ServerConnection | None = None
        # keeps a reference so that the task is not garbage-collected
        self._connecting: asyncio.Task[None] | None = None
        self._since = self._loop.time()  # start of the current state
        self._is_first = True
        self._checked = 0  # bytes of the buffer known not to contain the end of a head
        self._held = self._discarded = 0
        self._pending, self._pending_since = 0, 0.0  # unsent bytes, and when their number last changed
        self._is_reading = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(HIGH_WATER)
        if self._front.admit():
            self._front.clients[self] = None
            return
        self._front.refused += 1
        self._enter(State.CLOSING)
        self.transport.write(RequestRejected(503, "too many connections are open").render())
        self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._front.clients.pop(self, None)
        self.state = State.CLOSING
        self.release()
        self._buffer.clear()
        if self._upstream is not None:
            self._upstream.abandon()
            self._upstream = None

    @property
    def is_responding(self) -> bool:
        """Return True if a response is in progress or not yet fully sent."""
        return self.state is State.RESPONSE or self.transport.get_write_buffer_size() > 0

    def abort(self) -> None:
        """Close the connection without sending anything."""
        self._front.clients.pop(self, None)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.state is State.CLOSING:
            self._discarded += len(data)
            if self._discarded > LINGER_BYTES:
                self.abort()
            return
        if self.state is State.HEAD and not self._buffer and not self._is_first:
            self._since = self._loop.time()  # the connection was idle
        self._buffer += data
        if self.state is State.RESPONSE:
            if len(self._buffer) > AHEAD_BYTES and self._is_reading:
                self._is_reading = False
                self.transport.pause_reading()
            return
        if self.state is State.BODY:
            self._hold(len(data))
        self._go_on()

    def pause_writing(self) -> None:
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._upstream is not None and self._upstream.transport is not None:
            self._upstream.transport.resume_reading()

    def check(self, now: float) -> None:
        """Close the connection, after an error response if possible, if it exceeds a time limit at time `now`."""
        waited, pending = now - self._since, self.transport.get_write_buffer_size()
        if self.state is State.HEAD and waited > (HEAD_S if self._buffer or self._is_first else IDLE_S):
            if self._buffer:
                self._refuse(LATE)
            else:
                self.abort()
        elif self.state is State.BODY and waited > BODY_S + self._held / LOWEST_RATE:
            self._refuse(LATE)
        elif self.state is State.CLOSING and waited > LINGER_S and not pending:
            self.abort()
        if pending != self._pending or not pending:
            self._pending, self._pending_since = pending, now
        elif now - self._pending_since > STALLED_S:
            self.abort()

    def _enter(self, state: State) -> None:
        self.state, self._since = state, self._loop.time()

    def _hold(self, count: int) -> None:
        self._held += count
        self._front.held += count

    def release(self) -> None:
        """Stop counting the bytes of the request as held, because they were sent or the request has ended."""
        self._front.held -= self._held
        self._held = 0

    def _go_on(self) -> None:
        """Parse as much of a request as has arrived, and forward the request once it is complete."""
        if self.state not in (State.HEAD, State.BODY):
            return
        try:
            if self.state is State.HEAD and not self._read_head():
                return
            if self._front.held > MAX_HELD_BYTES:
                raise RequestRejected(503, "too many large requests are in progress")
            if (body := self._read_body()) is not None:
                assert self._request is not None
                content = check_body(self._request, body)
                self._forward(self._request, content)
        except RequestRejected as refused:
            self._refuse(refused)

    def _read_head(self) -> bool:
        """Parse the request head; return False if it is incomplete, raise RequestRejected if it is invalid."""
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):  # empty lines before a request are ignored
            del buffer[:2]
        end = buffer.find(END, max(0, self._checked - len(END)), MAX_HEAD_BYTES + len(END))
        if end < 0:
            check_incomplete_head(buffer, self._checked)
            self._checked = len(buffer)
            return False
        self._checked = 0
        self._request = parse_head(bytes(buffer[:end]), self._front.rules, self._methods)
        del buffer[: end + len(END)]
        self._is_first = False
        self._chunks = ChunkedBody() if self._request.length is None else None
        self._enter(State.BODY)
        self._hold(len(buffer))
        if self._request.expects and not buffer and self._request.length != 0:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def _read_body(self) -> bytearray | None:
        """Return the body once it is complete, else None; raises RequestRejected if it is malformed."""
        if self._chunks is not None:
            return self._chunks.body if self._chunks.take(self._buffer) else None
        assert self._request is not None
        length = cast(int, self._request.length)
        if len(self._buffer) < length:
            return None
        if len(self._buffer) == length:
            body, self._buffer = self._buffer, bytearray()
        else:
            body = self._buffer[:length]
            del self._buffer[:length]
        return body

    def _forward(self, request: ProxyRequest, content: bytes | bytearray) -> None:
        self._enter(State.RESPONSE)
        self._chunks = None
        token = ""
        if request.is_generate and self._front.departures is not None:
            token, content = add_client_token(bytes(content))
        self._upstream = ServerConnection(self, self._front, request.render(content), content, token)
        self._connecting = self._loop.create_task(self._upstream.connect(self._server))

    def responded(self, closes: bool) -> None:
        self._front.served += 1
        self._upstream = None
        self.release()
        assert self._request is not None
        if closes or not self._request.keeps or self.transport.is_closing():
            self._enter(State.CLOSING)
            self.transport.close()
            return
        self._request = None
        self._enter(State.HEAD)
        del self._front.clients[self]
        self._front.clients[self] = None  # moved to the end of the idle order
        self._read_again()
        if self._buffer:
            self._loop.call_soon(self._go_on)

    def failed(self, refused: RequestRejected | None) -> None:
        """Send the error `refused`, or close the connection if part of the response was already sent (None)."""
        self._upstream = None
        if refused is None:
            self.abort()
        else:
            self._refuse(refused)

    def _read_again(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            self.transport.resume_reading()

    def _refuse(self, refused: RequestRejected) -> None:
        """Send an error and discard the rest of the request, so that the client reads the response."""
        self._front.refused += 1
        self.release()
        self._buffer.clear()
        self._request = self._chunks = None
        self._enter(State.CLOSING)
        if self.transport.is_closing():
            return
        self.transport.write(refused.render())
        self._read_again()
        if self.transport.can_write_eof():
            self.transport.write_eof()


class ServerConnection(asyncio.Protocol):
    """The connection to the server for one request."""

    def __init__(
        self, client: ClientConnection, front: ProxyState, head: bytes, content: bytes | bytearray, token: str
    ) -> None:
        self._client: ClientConnection | None = client
        self._front, self._token = front, token
        self._head, self._content = head, content
        self._response = UpstreamResponse()
        self._has_begun = False
        self.transport: asyncio.Transport | None = None

    async def connect(self, server: str) -> None:
        """Connect to the server's Unix socket and send the request; the client gets status 503 if that fails."""
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: self, server)
        except OSError:
            self._fail(RequestRejected(503, UNAVAILABLE_MESSAGE))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self._client is None:  # the client disconnected
            self.transport.abort()
            return
        self.transport.set_write_buffer_limits(0)
        if len(self._content) <= SMALL_BODY:
            self.transport.write(self._head + self._content)
        else:
            self.transport.writelines([self._head, self._content])
        self._content = b""
        if not self.transport.get_write_buffer_size():
            self._client.release()

    def resume_writing(self) -> None:
        if self._client is not None:
            self._client.release()

    def data_received(self, data: bytes) -> None:
        client = self._client
        try:
            count = self._response.follow(data)
        except MalformedResponse:
            self._fail(RequestRejected(502, "the server's response is malformed"))
            return
        if client is None:  # the client disconnected
            if self._response.is_over:
                self.close()
            return
        self._has_begun = True
        client.transport.write(data if count == len(data) else data[:count])
        if self._response.is_over:
            self._finish(client)

    def connection_lost(self, exc: Exception | None) -> None:
        if (client := self._client) is None:
            self.close()
            return
        if exc is None and self._response.ends():
            self._finish(client)
        else:
            self._fail(RequestRejected(503, UNAVAILABLE_MESSAGE))

    def abandon(self) -> None:
        """Close this connection because the client disconnected.

        During `generate`, the server does not detect a disconnection. In this case, record it for the models, and close
        the connection once they have cancelled the request.
        """
        self._client = None
        self._content = b""
        if self.transport is None or not self._token or len(self._front.departed) >= self._front.most:
            self.close()
            return
        self.transport.resume_reading()
        self._front.departed[self] = asyncio.get_running_loop().time()
        try:
            mark_disconnected(cast(Path, self._front.departures), self._token)
        except OSError as error:
            LOG.warning("cannot record a disconnected client: %s", error.strerror)

    def close(self) -> None:
        """Close the connection and remove the record of the client's disconnection."""
        if self.transport is not None:
            self.transport.abort()
        if self._front.departed.pop(self, None) is not None:
            with suppress(OSError):  # the models ignore old records
                clear_disconnected(cast(Path, self._front.departures), self._token)

    def _finish(self, client: ClientConnection) -> None:
        self._client = None
        assert self.transport is not None
        self.transport.abort()
        client.responded(self._response.closes)

    def _fail(self, refused: RequestRejected) -> None:
        client, self._client = self._client, None
        self.close()
        if client is not None:
            client.failed(None if self._has_begun else refused)


class HealthConnection(asyncio.Protocol):
    """A connection to PROXY_SOCKET, the proxy's health check; it responds with the proxy's counters as JSON."""

    def __init__(self, front: ProxyState) -> None:
        self._front = front

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        front = self._front
        counts = {"connections": len(front.clients), "held_bytes": front.held}
        body = json.dumps(counts | {"served": front.served, "refused": front.refused}).encode()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
        self._transport.write(head % len(body) + body)
        self._transport.close()
