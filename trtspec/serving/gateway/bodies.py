# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests: how much memory all of them take together, and how they are parsed while others are served.

Python's JSON parser holds the interpreter's lock from the first byte to the last, so that a thread would stop the event
loop as long as the loop itself does. Therefore the number of values is bounded before anything is parsed, large bodies
are parsed one at a time, and the loop serves others for as long as the last one took.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from trtspec.serving.gateway.errors import ApiError, overloaded, wrong

LARGE_BYTES = 64 << 10
BODIES = 16  # of the largest size, that are read at once
MARKS = (b",", b"[", b"{")  # of each JSON value there is one at most, but for the first


class Bodies:
    """The bodies that are being read or parsed; to be made in the running loop."""

    def __init__(self, max_body_bytes: int) -> None:
        self._most = BODIES * max_body_bytes
        self._bytes = 0
        self._turn = asyncio.Lock()

    def grow(self, had: int, more: int) -> None:
        """Count further bytes of a body; raises ApiError where all bodies take too much and this one is large."""
        if had + more > LARGE_BYTES and self._bytes + more > self._most:
            raise overloaded("other requests with large bodies are being read")
        self._bytes += more

    def release(self, count: int) -> None:
        """Let go of a body's bytes."""
        self._bytes -= count

    async def parse(self, raw: bytes, most_values: int) -> dict[str, Any]:
        """Return the JSON object of a body; raises ApiError for another body, or more values than any request has."""
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
    """Raise ApiError for JSON of more than `most` values, without parsing it."""
    if sum(map(raw.count, MARKS)) <= most:
        return
    raw = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    quotes = raw.count(b'"')
    if quotes <= 4 * most:  # a member has a key and perhaps a string, each of them two quotes
        outside = raw.split(b'"')[::2]
        if sum(part.count(mark) for part in outside for mark in MARKS) <= most:
            return
    raise ApiError(413, f"the body has more than {most:,} JSON values", code="body_too_large")


def parse_object(raw: bytes) -> dict[str, Any]:
    """Return a JSON object; raises ApiError for anything else, NaN and infinity included."""
    try:
        value = json.loads(raw.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise wrong("the body is not JSON", code="invalid_json") from None
    if not isinstance(value, dict):
        raise wrong("the body is not a JSON object", code="invalid_json")
    return value


def _no_number(name: str) -> float:
    raise ValueError(name)
