# SPDX-License-Identifier: Apache-2.0
"""One HTTP request and its response, with time and size limits.

The work for a request is cancelled if the client disconnects, if it stops reading, or if the model stalls. An error
before the response starts sets the HTTP status. A later error is sent as an event of the stream.

Python's JSON parser holds the global interpreter lock for the whole parse, so parsing in a thread would block the event
loop too. The number of values is therefore checked before parsing, and large bodies are parsed one at a time. After
each large body, the parser yields to the event loop for as long as the parse took.
"""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Coroutine
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from trtspec.serving.gateway.config import GatewayLimits
from trtspec.serving.gateway.connections import CHUNKS, ChunkWriter
from trtspec.serving.gateway.errors import (
    SHUTTING_DOWN,
    ApiError,
    internal_error,
    invalid_request,
    overloaded,
    shutting_down,
)
from trtspec.serving.gateway.generation import DONE

LARGE_BYTES = 64 << 10
BODIES = 16  # number of maximum-size bodies that may be in memory at once
MARKS = (b",", b"[", b"{")  # every JSON value except the first follows one of these


class RequestBodies:
    """Limits the memory and parse time of concurrent request bodies; create it inside the running event loop."""

    def __init__(self, max_body_bytes: int) -> None:
        self._most = BODIES * max_body_bytes
        self._bytes = 0
        self._turn = asyncio.Lock()

    def grow(self, had: int, more: int) -> None:
        """Count `more` bytes of a body of `had` bytes; raises ApiError for a large body if memory is exhausted."""
        if had + more > LARGE_BYTES and self._bytes + more > self._most:
            raise overloaded("too many large request bodies are being read")
        self._bytes += more

    def release(self, count: int) -> None:
        self._bytes -= count

    async def parse(self, raw: bytes, most_values: int) -> dict[str, Any]:
        """Parse a request body as a JSON object.

        Raises ApiError if it is not one, or if it is larger than LARGE_BYTES and has more than `most_values` values.
        """
        if len(raw) <= LARGE_BYTES:
            return parse_object(raw)
        async with self._turn:
            began = time.monotonic()
            try:
                check_values(raw, most_values)
                return parse_object(raw)
            finally:
                await asyncio.sleep(time.monotonic() - began)


def check_values(raw: bytes, most: int) -> None:
    """Raise ApiError if a JSON text has more than `most` values; the text is scanned instead of parsed."""
    if sum(map(raw.count, MARKS)) <= most:
        return
    raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    quotes = raw.count(b'"')
    if quotes <= 4 * most:  # an object member has a key and possibly a string value, two quotes each
        outside = raw.split(b'"')[::2]
        if sum(part.count(mark) for part in outside for mark in MARKS) <= most:
            return
    raise ApiError(413, f"the body has more than {most:,} JSON values", code="body_too_large")


def parse_object(raw: bytes) -> dict[str, Any]:
    """Parse a JSON object; raises ApiError for anything else, including NaN and infinity."""
    try:
        value = json.loads(raw.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise invalid_request("the body is not JSON", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid_request("the body is not a JSON object", code="invalid_json")
    return value


def _no_number(name: str) -> float:
    raise ValueError(name)


TICK_S = 0.2
CLIENT_DISCONNECTED = 499  # status counted for a client that disconnected; never sent
STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}
JSON = {"content-type": "application/json"}


class HttpExchange:
    """One HTTP request and its response over ASGI.

    Attributes:
        status: HTTP status of the response; 0 before it starts.
        error: the error sent to the client, if any.
        broken: reason code of a stream that ended early, such as `client_left`.
        ended: the error for which `check` cancelled the work.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limits: GatewayLimits, bodies: RequestBodies
    ) -> None:
        self.headers = Headers(raw=scope["headers"])
        self.status = 0
        self.error: ApiError | None = None
        self.broken: str | None = None
        self.began_at = self._since = time.monotonic()
        self.first_token_at: float | None = None
        self._receive, self._send, self._limits, self._bodies = receive, send, limits, bodies
        self._chunks: ChunkWriter | None = scope.get("extensions", {}).get(CHUNKS, {}).get("writer")
        self._writes = self._streams = False
        # the events for a client of HTTP/1.0, which knows no chunks; they are sent at the end
        self._collected: list[bytes] | None = [] if scope.get("http_version") == "1.0" else None
        self._body_read = asyncio.Event()
        self._work: asyncio.Future[None] | None = None
        self.ended: ApiError | None = None

    async def run(self, answer: Coroutine[Any, Any, None]) -> None:
        """Run `answer` until it finishes, fails, or the client disconnects."""
        self._work = asyncio.ensure_future(answer)
        gone = asyncio.ensure_future(self._departure())
        try:
            await asyncio.wait({self._work, gone}, return_when=asyncio.FIRST_COMPLETED)
            left = not self._work.done()
            await self._finish()
        except asyncio.CancelledError:  # the server shuts down, and logs what is raised with a traceback
            self._work.cancel()
            await self._fail(shutting_down())
            left = False
        finally:
            gone.cancel()
        if self.ended is not None:
            self.broken = self.ended.code
        elif left:
            self.broken, self.status = "client_left", self.status or CLIENT_DISCONNECTED

    def check(self, now: float) -> None:
        """Cancel the work if the client or the model exceeds its time limit; call it every TICK_S seconds."""
        waited = now - self._since
        if self._writes and waited > self._limits.write_timeout_s:
            self._disconnect()
        elif self._streams and waited > self._limits.stall_s:
            self._end(ApiError(504, "the model stopped sending tokens", code="stalled"))

    async def document(self, most_values: int) -> dict[str, Any]:
        """Read and parse the request body, a JSON object with at most `most_values` values.

        Raises ApiError if the body is not a JSON object, is too large, arrives too slowly, or is not sent as
        `application/json`. Web pages of other sites can send forms and plain text without a CORS preflight.
        """
        if self.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            message = "the body must be JSON, sent with Content-Type: application/json"
            raise ApiError(415, message, code="unsupported_media_type")
        parts: list[bytes] = []
        try:
            await asyncio.wait_for(self._read_body(parts), self._limits.body_timeout_s)
            return await self._bodies.parse(b"".join(parts), most_values)
        except (asyncio.TimeoutError, TimeoutError):
            raise ApiError(408, "the body did not arrive in time", code="timeout") from None
        finally:
            self._bodies.release(sum(map(len, parts)))

    async def begin_stream(self) -> None:
        self._streams = True
        if self._collected is None:
            await self._begin(200, STREAM)
        else:
            self._collected = []

    async def write(self, event: bytes) -> None:
        if self._collected is not None:
            self._collected.append(event)
            self.note_tokens()
            return
        await self._put({"type": "http.response.body", "body": event, "more_body": True})

    def takes_events(self) -> bool:
        """Return True if `write_now` can write an event: the stream has begun, and its client reads it."""
        if not self._streams or self._writes or self.error is not None or self._chunks is None:
            return False
        return self._chunks.is_ready()

    def write_now(self, event: bytes) -> None:
        """Write an event of the stream without waiting, while `takes_events` is True."""
        assert self._chunks is not None
        self._since = time.monotonic()
        self._chunks.write(event)

    def note_tokens(self) -> None:
        """Record that the model sent tokens that have no event, such as those of an incomplete tool call."""
        if not self._writes:
            self._since = time.monotonic()

    async def end_stream(self, event: bytes = DONE) -> None:
        """Send the last event; a stream that a shutdown interrupts ends with an empty event instead of `[DONE]`."""
        if self._collected is not None:
            event = b"".join([*self._collected, event])
            await self._begin(200, {**STREAM, "content-length": str(len(event))})
        await self._put({"type": "http.response.body", "body": event})

    async def respond(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send a JSON document as the complete response."""
        await self._begin(status, {**JSON, **(headers or {}), "content-length": str(len(body))})
        await self._put({"type": "http.response.body", "body": body})

    async def _finish(self) -> None:
        """Cancel the work if it is still running, and send its error, if any, to the client."""
        assert self._work is not None
        if not self._work.done():
            self._work.cancel()
        try:
            await self._work
        except asyncio.CancelledError:
            if self.ended is not None:
                await self._fail(self.ended)
        except ApiError as error:
            await self._fail(error)
        except Exception:
            await self._fail(internal_error("the request failed", traceback.format_exc()))

    async def _fail(self, error: ApiError) -> None:
        """Send an error to the client, as a response or as an event of the open stream, if still possible."""
        self.error = error
        if self.status == 0:
            await self.respond(error.status, error.body, error.headers)
        elif self._streams:
            self.broken = error.code
            if not self._writes:
                await self.write(b"data: " + error.body + b"\n\n")
                await self.end_stream(b"" if error.code == SHUTTING_DOWN else DONE)

    def _end(self, error: ApiError) -> None:
        if self.ended is None and self._work is not None:
            self.ended = error
            self._work.cancel()

    async def _begin(self, status: int, headers: dict[str, str]) -> None:
        self.status = status
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await self._put({"type": "http.response.start", "status": status, "headers": raw})

    async def _put(self, message: Message) -> None:
        """Send an ASGI message, for which a client must have read enough of what was sent before."""
        self._since, self._writes = time.monotonic(), True
        await self._send(message)
        self._writes = False

    def _disconnect(self) -> None:
        """Close the connection of a client that does not read; the work ends as for one that leaves."""
        if self.ended is None:
            self.ended = ApiError(CLIENT_DISCONNECTED, "the client does not read the response", code="slow_client")
        if self._chunks is not None:
            self._chunks.abort()

    async def _departure(self) -> None:
        """Wait until the client disconnects; listening starts after `document` has read the body."""
        await self._body_read.wait()  # unbounded: the task ends with the request
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _read_body(self, parts: list[bytes]) -> None:
        """Append the received parts to `parts`; raises ApiError if the body is too large or the client disconnects."""
        most = self._limits.max_body_bytes
        too_large = ApiError(413, f"the body is larger than {most:,} bytes", code="body_too_large")
        declared = self.headers.get("content-length", "")
        if declared.isdigit() and int(declared) > most:
            raise too_large
        size, more = 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ApiError(CLIENT_DISCONNECTED, "the client disconnected", code="client_left")
            part = message.get("body", b"")
            if size + len(part) > most:
                raise too_large
            self._bodies.grow(size, len(part))
            parts.append(part)
            size += len(part)
            more = message.get("more_body", False)
        self._body_read.set()
