# SPDX-License-Identifier: Apache-2.0
"""Client of load tests: detects a server's API, model and draft control, streams responses and records chunk times.

Connections use aiohttp with its parser in C, because the processor time per chunk limits the client. A stream consists
of server-sent events, lines of the form `data: ...`. Responses are untrusted and limited in size.

Prometheus counters are read from servers that do not report draft statistics per response. The counters include all
traffic of a server, so they are correct only without other clients.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

import aiohttp

from trtspec.bench.load.api import Api, BadAnswer, LoadSampling, ParsedResponse, find_api
from trtspec.bench.load.sample import RequestSample
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.core.prometheus_text import parse_metrics
from trtspec.engine.prompts.prompt import Prompt

MAX_ANSWER_BYTES = 64 << 20
MAX_EVENT_BYTES = 4 << 20
DONE = b"[DONE]"
MAX_WORDS = 300  # maximum characters of a server's error message
REFUSALS = (400, 413, 422)  # status codes of rejected requests; other codes are server errors
CONNECT_TIMEOUT_S = 10.0
KEPT_S = 2.0  # less than servers' keep-alive of 5 s, to avoid sending on a closing connection
TIMEOUT_S = 600.0  # limit for a complete response
clock = time.perf_counter
T = TypeVar("T")
# Draft steps, drafted tokens and accepted tokens; names have the prefix ENGINE and a colon. Source:
# vllm-project/vllm:vllm/v1/spec_decode/metrics.py@def9ce85.
COUNTER_NAMES = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
)
AUTO, TRITON, COMPLETIONS = "auto", "triton", "completions"
PROBE = Prompt("Hello", "probe", "")
KEY_VARIABLE = "TRTSPEC_OPENAI_KEY"
SERVED, BASELINE = "served", "baseline"  # arms: the server with speculation, and the target alone


class Events:
    """Parser of a stream of server-sent events; `done` is set after the final `[DONE]`."""

    def __init__(self) -> None:
        self.done = False
        self._rest = b""
        self._received = 0

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the events that are complete after `data`; raises BadAnswer for malformed or oversized data."""
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
    """Parse a JSON object; raises BadAnswer for anything else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadAnswer(f"the server's response is not a JSON object: {content[:80]!r}")
    return found


class ServerRejected(BadAnswer):
    """The server rejected the request, for example because the prompt is too long."""


@dataclass(frozen=True)
class Endpoint:
    """A server's address with the API and the model to use."""

    url: str  # without the API's path
    api_name: str
    api: Api
    model: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)  # fields added to every request
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # contain the API key and are never printed

    def request(self, prompt: Prompt, wanted: LoadSampling) -> bytes:
        return json.dumps({**self.api.body(self.model, prompt, wanted), **self.extra}).encode()


class LoadClient:
    """Connections to the servers of one load test; the session's timeout limits each complete response."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, endpoint: Endpoint, prompt: Prompt, body: bytes, began: float, due: float) -> RequestSample:
        """Send a request and read the whole stream; failures are recorded in the sample's `error`.

        `began` and `due` are the start of the round and the scheduled time of the request, in seconds of `clock`.
        """
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
                    try:
                        has_text = read(event, reply)
                    except (TypeError, AttributeError, KeyError, IndexError) as error:
                        raise BadAnswer(f"unexpected event for this API: {str(event)[:MAX_WORDS]}") from error
                    if has_text:
                        chunks.append(now)
        if endpoint.api.ends and not events.done:
            raise BadAnswer("the stream ended early")
        if not chunks:
            raise BadAnswer("the response does not contain text")

    async def get(self, url: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return the status code and the truncated content of a URL."""
        async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
            return answer.status, await _content(answer)


@asynccontextmanager
async def load_client(timeout_s: float) -> AsyncIterator[LoadClient]:
    """Open a client without a limit on the number of connections; `timeout_s` limits each response."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_S)
    timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
    headers = {"Accept-Encoding": "identity"}  # no decompression of untrusted data
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=headers, auto_decompress=False
    ) as session:
        yield LoadClient(session)


def _answered(sample: RequestSample, reply: ParsedResponse, chunks_s: tuple[float, ...]) -> RequestSample:
    return replace(
        sample,
        chunks_s=chunks_s,
        prompt_tokens=reply.prompt_tokens,
        output_tokens=len(chunks_s) if reply.output_tokens is None else reply.output_tokens,
        is_counted=reply.output_tokens is not None,
        drafted=reply.drafted,
        accepted=reply.accepted,
        steps=reply.steps,
        histogram=reply.histogram,
        finish_reason=reply.finish_reason[:40],
        text_sha256=hashlib.sha256("".join(reply.text).encode(errors="replace")).hexdigest(),
    )


async def _error_text(answer: aiohttp.ClientResponse) -> str:
    """Return the error message in a response, or the beginning of its content."""
    content = (await _content(answer)).strip().removeprefix(b"data:")  # Triton adds this prefix to errors too
    try:
        error = document(content).get("error")
    except BadAnswer:
        error = None
    said = error.get("message") if isinstance(error, dict) else error
    return str(said or content[:MAX_WORDS].decode(errors="replace") or "nothing")[:MAX_WORDS]


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    """Return the content of a response, truncated to MAX_EVENT_BYTES."""
    found = b""
    async for data in answer.content.iter_any():
        found += data
        if len(found) > MAX_EVENT_BYTES:
            break
    return found[:MAX_EVENT_BYTES]


def runner() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Return asyncio's `run`, or uvloop's if it is installed, because that uses less processor time."""
    try:
        from uvloop import run
    except ModuleNotFoundError:
        from asyncio import run  # type: ignore[assignment]
    return run


class Counters(NamedTuple):
    """Cumulative draft counters of a server, or their increase; 0 if the server does not export them."""

    steps: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0

    def since(self, before: Counters | None) -> Counters:
        """Return the increase since `before`, or zeros if the server restarted or did not export counters then."""
        if before is None or self.steps < before.steps:
            return Counters()
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))


async def read_counters(client: LoadClient, endpoint: Endpoint) -> Counters | None:
    """Fetch a server's draft counters, or None if the server does not export them."""
    try:
        status, content = await client.get(f"{endpoint.url}/metrics", endpoint.headers)
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError):  # distinct classes before Python 3.11
        return None
    return parse_counters(content) if status == 200 else None


def parse_counters(text: bytes) -> Counters | None:
    """Return the draft counters in a Prometheus text, summed over labels, or None if one is missing."""
    found = {name.rpartition(":")[2]: samples for name, samples in parse_metrics(text).items()}
    if not all(name in found for name in COUNTER_NAMES):
        return None
    return Counters(*(sum(sample.value for sample in found[name]) for name in COUNTER_NAMES))


@dataclass(frozen=True)
class ServerAddress:
    """A server's address and API; without a `model`, the first model that the server lists is used."""

    url: str
    api: str = AUTO
    model: str = ""
    key_variable: str = KEY_VARIABLE


async def find_arms(client: LoadClient, served: ServerAddress, baseline: ServerAddress | None) -> dict[str, Endpoint]:
    """Return the endpoints by arm: the server with speculation and, if possible, the target alone.

    The target alone is `baseline`, or the same server with drafting disabled.
    """
    arms = {SERVED: await find_endpoint(client, served)}
    alone = await find_endpoint(client, baseline) if baseline else await target_alone(client, arms[SERVED])
    return arms | ({BASELINE: alone} if alone else {})


async def find_endpoint(client: LoadClient, server: ServerAddress) -> Endpoint:
    """Return the endpoint at an address; raises DeployError if no API responds or a probe request fails.

    With the API "auto", a server that lists OpenAI models is used through completions, and any other server through
    Triton. The API key is read from an environment variable and sent only to this address.
    """
    asked = None if server.api == AUTO else find_api(server.api)
    url, headers = _address(server.url), _key(server.key_variable)
    models = await _models(client, url, headers) if server.api != TRITON else []
    name = server.api if asked else COMPLETIONS if models else TRITON
    model = server.model or (models[0] if models else "")
    if name != TRITON and not model:
        raise DeployError("the server does not list its models", where=url, hint="give one with --model")
    endpoint = Endpoint(url, name, asked or find_api(name), model, headers=headers)
    if error := await _probe_error(client, endpoint):
        raise DeployError(error, where=endpoint.url, hint="check its state with: trtspec status NAME")
    return endpoint


async def target_alone(client: LoadClient, endpoint: Endpoint) -> Endpoint | None:
    """Return the same server with drafting disabled, or None if the server does not support that.

    A server that accepts an invalid value of the request field ignores the field, so it would still draft.
    """
    alone = replace(endpoint, extra=endpoint.api.without_drafts)
    nonsense = replace(endpoint, extra=dict.fromkeys(endpoint.api.without_drafts, "none"))
    if await _probe_error(client, alone) or not await _probe_error(client, nonsense):
        return None
    return alone


async def _probe_error(client: LoadClient, endpoint: Endpoint) -> str:
    now = clock()
    return (await client.ask(endpoint, PROBE, endpoint.request(PROBE, LoadSampling(2)), now, now)).error


async def _models(client: LoadClient, url: str, headers: Mapping[str, str]) -> list[str]:
    try:
        status, content = await client.get(f"{url}/v1/models", headers)
        if status in (401, 403):
            hint = "give the environment variable that holds the key with --key-env"
            raise DeployError(f"the server returned {status}: it requires a key", where=url, hint=hint)
        data = document(content).get("data") if status == 200 else None
    except BadAnswer:
        return []
    except (aiohttp.ClientError, OSError, TimeoutError, asyncio.TimeoutError, ValueError) as error:
        reason = getattr(error, "os_error", None) or error
        raise DeployError(f"the server cannot be reached: {reason or type(error).__name__}", where=url) from None
    entries = data if isinstance(data, list) else []
    return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _address(url: str) -> str:
    """Return a server's URL without the API's path; raises DeployError if it is invalid."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1")
    try:
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        known = False
    if not known or parts.username or parts.query or parts.fragment:
        raise DeployError(f"{url!r} is not a server's address", hint="use a form like http://127.0.0.1:8000")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _key(variable: str) -> dict[str, str]:
    """Return the authorization header; raises TrtspecError if a variable other than the default is unset."""
    key = os.environ.get(variable, "")
    if not key and variable != KEY_VARIABLE:
        raise TrtspecError(f"the environment variable {variable} is not set", hint="set it to the server's key")
    if not key.isascii() or not key.isprintable():
        raise TrtspecError(f"{variable} contains characters that are invalid in an HTTP header")
    return {"Authorization": f"Bearer {key}"} if key else {}
