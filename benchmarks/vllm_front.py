# SPDX-License-Identifier: Apache-2.0
"""Serve OpenAI completions from a local vLLM as streams with `metrics.speculative_decoding`.

The vLLM environment here (tests/engines/vllm.txt) lacks a web server, so the requests go to the process that a
deployment starts. Texts and counts are vLLM's; the overhead of the pipe and this process is the same for all arms.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import web

from trtspec.backends import vllm
from trtspec.core.ports import LOOPBACK

MODEL = "vllm"
WORKER = str(Path(vllm.__file__).with_name("worker.py"))
LOADING_S, ENDING_S = 900.0, 30.0
LINE_BYTES = 16 << 20
VARIABLES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}


@contextmanager
def serving(arguments: Path) -> Iterator[str]:
    """Serve the model of a model.json in a thread; yield the address once vLLM has loaded."""
    loop, ready = asyncio.new_event_loop(), Future[str]()
    ended = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(_serve(arguments, ready, ended)), daemon=True)
    thread.start()
    try:
        yield ready.result(LOADING_S)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(ENDING_S)


async def _serve(arguments: Path, ready: Future[str], ended: asyncio.Event) -> None:
    process = await asyncio.create_subprocess_exec(
        str(vllm.find_vllm()), WORKER, str(arguments), limit=LINE_BYTES, env={**os.environ, **VARIABLES},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    front = Front(process)
    try:
        if not await process.stdout.readline():  # type: ignore[union-attr]
            raise RuntimeError(f"vLLM exited while loading {arguments}")
        reading = asyncio.ensure_future(front.read())
        runner = web.AppRunner(front.app(), access_log=None)
        await runner.setup()
        await web.TCPSite(runner, LOOPBACK, 0).start()
        ready.set_result(f"http://{LOOPBACK}:{runner.addresses[0][1]}")
        await ended.wait()  # unbounded: ends with the serving block
        reading.cancel()
        await runner.cleanup()
    except Exception as error:
        ready.set_exception(error)
    finally:
        process.stdin.close()  # type: ignore[union-attr]
        await asyncio.wait_for(process.wait(), ENDING_S)  # unbounded: wait_for has the timeout


class Front:
    """The pending requests of one vLLM."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self._numbers = process, count()
        self._waiting: dict[str, asyncio.Queue[dict[str, Any]]] = {}

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/completions", self._complete)
        return app

    async def read(self) -> None:
        """Deliver each response to its request."""
        while line := await self._process.stdout.readline():  # type: ignore[union-attr]
            said = json.loads(line)
            if "id" in said:
                self._waiting[said["id"]].put_nowait(said)

    async def _models(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL}]})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body, name = await request.json(), str(next(self._numbers))
        sampling = {key: body[key] for key in ("max_tokens", "temperature", "ignore_eos") if key in body}
        said = self._waiting[name] = asyncio.Queue()
        command = {"id": name, "prompt": body["prompt"], "sampling": sampling, "stream": True}
        self._process.stdin.write(json.dumps(command).encode() + b"\n")  # type: ignore[union-attr]
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        made, last = 0, False
        while not last:
            part = await said.get()  # unbounded: the client has a timeout
            made, last = made + part.get("tokens", 0), part.get("done", True)
            await answer.write(_event(part, made))
        del self._waiting[name]
        await answer.write(b"data: [DONE]\n\n")
        return answer


def _event(part: dict[str, Any], made: int) -> bytes:
    """Return vLLM's output as an event of a stream; the last event has the total counts."""
    if "error" in part:
        return b"data: " + json.dumps({"error": {"message": part["error"]}}).encode() + b"\n\n"
    document: dict[str, Any] = {"choices": [{"index": 0, "text": part["text"], "finish_reason": part["reason"]}]}
    if part["done"]:
        document["usage"] = {"prompt_tokens": part["prompt_tokens"], "completion_tokens": made}
        if by_length := part["by_length"]:
            drafts = {"num_draft_tokens": part["drafted"], "num_accepted_draft_tokens": part["accepted"]}
            drafts |= {"num_spec_steps": sum(by_length), "acceptance_histogram": by_length}
            document["metrics"] = {"speculative_decoding": drafts}
    return b"data: " + json.dumps(document).encode() + b"\n\n"
