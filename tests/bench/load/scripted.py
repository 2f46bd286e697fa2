# SPDX-License-Identifier: Apache-2.0
"""A test server with scripted responses and timings, which records when it sent each chunk."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

MODEL = "scripted"


@dataclass(frozen=True)
class Script:
    """A response: (delay in seconds, tokens) of each chunk; drafts as (drafted, accepted, steps).

    `histogram` counts the steps by accepted tokens. `raw` replaces the events of the body; `status` with `refusal` is
    an error response.
    """

    chunks: Sequence[tuple[float, int]] = ((0.0, 1),)
    drafts: tuple[int, int, int] | None = None
    histogram: Sequence[int] = ()
    raw: Sequence[bytes] | None = None
    status: int = 200
    refusal: str = ""
    text: str = "x"

    @property
    def tokens(self) -> int:
        return sum(tokens for _, tokens in self.chunks)


def steady(ttft_s: float, gap_s: float, tokens: int, drafts: tuple[int, int, int] | None = None) -> Script:
    """Return a response with one token per chunk."""
    return Script([(ttft_s, 1), *[(gap_s, 1)] * (tokens - 1)], drafts)


@dataclass
class Server:
    """A running test server; with `ours` it supports `num_draft_tokens`, like trtspec's servers."""

    script: Callable[[dict[str, Any]], Script]
    ours: bool = True
    models: Sequence[str] = (MODEL,)
    key: str = ""
    at_once: int = 0  # maximum concurrency; 0 for unlimited
    metrics: Callable[[], str] | None = None
    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    sent: list[list[float]] = field(default_factory=list)  # for each request: its arrival, then its chunks
    most_at_once: int = 0
    open: int = 0
    runner: Any = None

    def of_load(self) -> list[int]:
        """Return the indices of the requests that are not probes."""
        return [number for number, body in enumerate(self.asked) if "Hello" not in json.dumps(body)]


@contextmanager
def scripted(script: Callable[[dict[str, Any]], Script], **options: Any) -> Iterator[Server]:
    """Serve in a thread for the duration of the block."""
    server, ready, loop = Server(script, **options), threading.Event(), asyncio.new_event_loop()
    thread = threading.Thread(target=_serve, args=(server, ready, loop), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.runner.cleanup(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)


def _serve(server: Server, ready: threading.Event, loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_until_complete(_start(server))
    ready.set()
    loop.run_forever()
    loop.close()


async def _start(server: Server) -> None:
    places = asyncio.Semaphore(server.at_once or 10_000)
    app = web.Application(client_max_size=16 << 20)

    async def texts(request: web.Request) -> web.StreamResponse:
        came, body = time.perf_counter(), await request.json()
        times = [came]
        server.asked.append(body)
        server.sent.append(times)
        if server.key and request.headers.get("Authorization") != f"Bearer {server.key}":
            return web.json_response({"error": {"message": "no such key"}}, status=401)
        if server.ours and not isinstance(body.get("num_draft_tokens", 0), int):
            return web.json_response({"error": {"message": "num_draft_tokens is no integer"}}, status=400)
        async with places:
            server.open += 1
            server.most_at_once = max(server.most_at_once, server.open)
            try:
                return await _answer(request, body, server.script(body), times)
            finally:
                server.open -= 1

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": name} for name in server.models]})

    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text=server.metrics() if server.metrics else "")

    for path in ("/v1/completions", "/v1/chat/completions", "/v2/models/ensemble/generate_stream"):
        app.router.add_post(path, texts)
    if server.models:
        app.router.add_get("/v1/models", models)
    app.router.add_get("/metrics", metrics)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
    server.runner = runner
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"


async def _answer(request: web.Request, body: dict[str, Any], script: Script, times: list[float]) -> web.StreamResponse:
    if script.status != 200:
        return web.json_response({"error": {"message": script.refusal}}, status=script.status)
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await answer.prepare(request)
    if script.raw is not None:
        for piece in script.raw:
            await answer.write(piece)
        return answer
    made, due = 0, time.perf_counter()
    for wait_s, tokens in script.chunks:
        due += wait_s
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        made += tokens
        times.append(time.perf_counter())
        await answer.write(_event(request.path, script, made, tokens))
    await answer.write(_end(request.path, script, made))
    return answer


def _event(path: str, script: Script, made: int, new: int) -> bytes:
    text = script.text * new
    if "ensemble" in path:
        drafted, accepted, _ = script.drafts or (0, 0, 0)
        counts = {"total_draft_tokens": drafted, "total_accepted_draft_tokens": accepted}
        document = {"text_output": text, "num_output_tokens": made, "num_input_tokens": 3, **counts}
    else:
        choice = {"delta": {"content": text}} if "chat" in path else {"text": text}
        document = {"object": _kind(path), "choices": [{"index": 0, "finish_reason": None, **choice}]}
    return f"data: {json.dumps(document)}\n\n".encode()


def _kind(path: str) -> str:
    return "chat.completion.chunk" if "chat" in path else "text_completion"


def _end(path: str, script: Script, made: int) -> bytes:
    if "ensemble" in path:
        return b""
    document: dict[str, Any] = {
        "object": _kind(path),
        "choices": [],
        "usage": {"prompt_tokens": 3, "completion_tokens": made},
    }
    if script.drafts:
        drafted, accepted, steps = script.drafts
        histogram = script.histogram or [1, steps - 1]
        told = {"num_draft_tokens": drafted, "num_accepted_draft_tokens": accepted, "num_spec_steps": steps}
        document["metrics"] = {"speculative_decoding": {**told, "acceptance_histogram": histogram}}
    return f"data: {json.dumps(document)}\n\ndata: [DONE]\n\n".encode()
