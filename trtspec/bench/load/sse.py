# SPDX-License-Identifier: Apache-2.0
"""Parse server-sent events from untrusted bytes: lines `data: ...`, with size limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from trtspec.bench.load.api import BadAnswer

MAX_ANSWER_BYTES = 64 << 20
MAX_EVENT_BYTES = 4 << 20
DONE = b"[DONE]"


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
