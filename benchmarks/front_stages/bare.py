# SPDX-License-Identifier: Apache-2.0
"""The limit of a Python front end: uvicorn sends the null engine's steps as events whose bytes are ready.

python -m benchmarks.front_stages.bare PORT < STEPS
"""

from __future__ import annotations

import json
import sys
from typing import Any

import uvicorn

from benchmarks.front_stages.null_engine import NullEngine, Steps
from trtspec.core.ports import LOOPBACK

EVENT = b'data: {"choices": [{"index": 0, "text": " the text of a step", "finish_reason": null}]}\n\n'


class Bare:
    """The ASGI application: every request is a POST of `seed` and `max_tokens`."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._engine: NullEngine | None = None

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        body = json.loads((await receive())["body"])
        self._engine = self._engine or NullEngine(self._steps)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        async for _ in self._engine.generate(body["seed"], body["max_tokens"]):
            await send({"type": "http.response.body", "body": EVENT, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def main() -> None:
    app = Bare(Steps.parse(sys.stdin.read()))
    uvicorn.run(app, host=LOOPBACK, port=int(sys.argv[1]), lifespan="off", access_log=False, log_level="warning")


if __name__ == "__main__":
    main()
