# SPDX-License-Identifier: Apache-2.0
"""Server-sent events of a stranger, out of bytes as they come: lines `data: ...`, under limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trtspec.bench.load.api import BadAnswer

MAX_ANSWER_BYTES = 64 << 20
MAX_EVENT_BYTES = 4 << 20
DONE = b"[DONE]"


class Events:
    """Cuts a stream into its events; `done` once it said that it ends."""

    def __init__(self) -> None:
        self.done = False
        self._rest = b""
        self._received = 0

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the events that are whole now; raises BadAnswer for what is none, and for too much."""
        self._received += len(data)
        if self._received > MAX_ANSWER_BYTES:
            raise BadAnswer(f"an answer of more than {MAX_ANSWER_BYTES:,} bytes")
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise BadAnswer(f"an event of more than {MAX_EVENT_BYTES:,} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                content = line[5:].strip()
                if content == DONE:
                    self.done = True
                else:
                    yield document(content)


def document(content: bytes) -> dict[str, Any]:
    """Return a JSON object; raises BadAnswer for anything else."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise BadAnswer(f"the server's answer is no JSON object: {content[:80]!r}")
    return found
