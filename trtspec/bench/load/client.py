# SPDX-License-Identifier: Apache-2.0
"""Send streaming requests and record when each chunk arrives; responses are untrusted and limited in size.

Connections use aiohttp with its parser in C, because the processor time per chunk limits the client. A stream consists
of server-sent events: lines `data: ...`.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import aiohttp

from trtspec.bench.load.api import Api, BadAnswer, LoadSampling, ParsedResponse
from trtspec.bench.load.sample import RequestSample
from trtspec.engine.prompts.prompt import Prompt

MAX_ANSWER_BYTES = 64 << 20
MAX_EVENT_BYTES = 4 << 20
DONE = b"[DONE]"
MAX_WORDS = 300  # characters of a server's error message
REFUSALS = (400, 413, 422)  # the request is rejected; other statuses are server errors
CONNECT_TIMEOUT_S = 10.0
KEPT_S = 2.0  # below servers' keep-alive of 5 s, to avoid sending on a closing connection
TIMEOUT_S = 600.0  # of a complete response
clock = time.perf_counter
T = TypeVar("T")


class Events:
    """Split a stream into events; `done` is set after the final `[DONE]`."""

    def __init__(self) -> None:
        self.done = False
        self._rest = b""
        self._received = 0

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the events that are complete; raise BadAnswer for malformed or oversized data."""
        self._received += len(data)
        if self._received > MAX_ANSWER_BYTES:
            raise BadAnswer(f"the response exceeds {MAX_ANSWER_BYTES:,} bytes")
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BadAnswer(f"an event exceeds {MAX_EVENT_BYTES:,} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                content = line[5:].strip()
                if content == DONE:
                    self.done = True
                else:
                    yield document(content)


def document(content: bytes) -> dict[str, Any]:
    """Return a JSON object; raise BadAnswer for anything else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadAnswer(f"the server's response is not a JSON object: {content[:80]!r}")
    return found


class ServerRejected(BadAnswer):
    """The server rejects the request, for example because the prompt is too long."""


@dataclass(frozen=True)
class Endpoint:
    """A server's address without path, its API, and the model to use.

    `extra` is added to every request; `headers` contain its key and are never printed.
    """

    url: str
    api_name: str
    api: Api
    model: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def request(self, prompt: Prompt, wanted: LoadSampling) -> bytes:
        """Return the request body for a prompt."""
        return json.dumps({**self.api.body(self.model, prompt, wanted), **self.extra}).encode()


class LoadClient:
    """Connections to the servers of one run; the session's timeout limits each complete response."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, endpoint: Endpoint, prompt: Prompt, body: bytes, began: float, due: float) -> RequestSample:
        """Send a request and read the complete stream; failures are recorded in the sample's error."""
        reply, chunks, error, is_refused = ParsedResponse(), list[float](), "", False
        sent = clock()
        try:
            await self._read(endpoint, body, reply, chunks)
        except BadAnswer as bad:
            error, is_refused = str(bad), isinstance(bad, ServerRejected)
        except aiohttp.ClientError as failed:
            error = f"the connection failed: {str(failed)[:MAX_WORDS] or type(failed).__name__}"
        except asyncio.TimeoutError:
            error = f"no complete response within {self._session.timeout.total:g} s"
        except (OSError, ValueError) as failed:
            error = f"the connection failed: {str(failed)[:MAX_WORDS] or type(failed).__name__}"
        sample = RequestSample(prompt.name, prompt.kind, due - began, sent - began, error=error, is_refused=is_refused)
        return sample if error else _answered(sample, reply, tuple(chunk - due for chunk in chunks))

    async def _read(self, endpoint: Endpoint, body: bytes, reply: ParsedResponse, chunks: list[float]) -> None:
        events, read = Events(), endpoint.api.read
        headers = {"Content-Type": "application/json", **endpoint.headers}
        url = endpoint.url + endpoint.api.path
        async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
            if answer.status != 200:
                kind = ServerRejected if answer.status in REFUSALS else BadAnswer
                raise kind(f"the server returned {answer.status}: {await _error_text(answer)}")
            async for data in answer.content.iter_any():
                now = clock()
                for event in events.feed(data):
                    if _brings_text(event, reply, read):
                        chunks.append(now)
        if endpoint.api.ends and not events.done:
            raise BadAnswer("the stream ended early")
        if not chunks:
            raise BadAnswer("the response does not contain text")

    async def get(self, url: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return the status and the truncated content of a URL."""
        async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
            return answer.status, await _content(answer)


@asynccontextmanager
async def load_client(timeout_s: float) -> AsyncIterator[LoadClient]:
    """Open a client without a limit on concurrent connections."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S)
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
    headers = {"Accept-Encoding": "identity"}  # no decompression of untrusted data
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, auto_decompress=False
    ) as session:
        yield LoadClient(session)


def _answered(sample: RequestSample, reply: ParsedResponse, chunks_s: tuple[float, ...]) -> RequestSample:
    is_counted = reply.output_tokens is not None
    return replace(
        sample,
        chunks_s=chunks_s,
        prompt_tokens=reply.prompt_tokens,
        output_tokens=reply.output_tokens if reply.output_tokens is not None else len(chunks_s),
        is_counted=is_counted,
        drafted=reply.drafted,
        accepted=reply.accepted,
        steps=reply.steps,
        histogram=reply.histogram,
        finish_reason=reply.finish_reason[:40],
        text_sha256=hashlib.sha256("".join(reply.text).encode(errors="replace")).hexdigest(),
    )


def _brings_text(event: dict[str, Any], reply: ParsedResponse, read: Any) -> bool:
    try:
        return bool(read(event, reply))
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise BadAnswer(f"unexpected event for this API: {str(event)[:MAX_WORDS]}") from error


async def _error_text(answer: aiohttp.ClientResponse) -> str:
    """Return the error message of a response, or the beginning of its content."""
    content = (await _content(answer)).strip().removeprefix(b"data:")  # Triton adds it to errors as well
    try:
        error = document(content).get("error")
    except BadAnswer:
        error = None
    said = error.get("message") if isinstance(error, dict) else error
    return str(said or content[:MAX_WORDS].decode(errors="replace") or "nothing")[:MAX_WORDS]


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    """Return the content of a response, truncated to the maximum event size."""
    found = b""
    async for data in answer.content.iter_any():
        found += data
        if len(found) > MAX_EVENT_BYTES:
            break
    return found[:MAX_EVENT_BYTES]


def runner() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Return the function that runs the event loop; uvloop's, if installed, uses less processor time."""
    try:
        from uvloop import run
    except ModuleNotFoundError:
        from asyncio import run  # type: ignore[assignment]
    return run
