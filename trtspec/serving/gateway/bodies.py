# SPDX-License-Identifier: Apache-2.0
"""Request bodies: a limit on their total memory, and JSON parsing that does not starve other requests.

Python's JSON parser holds the interpreter lock for the whole parse, so a thread would block the event loop too.
Therefore the number of values is checked before parsing, large bodies are parsed one at a time, and after each the
parser yields to the event loop for as long as the parse took.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from trtspec.serving.gateway.errors import ApiError, invalid_request, overloaded

LARGE_BYTES = 64 << 10
BODIES = 16  # maximum-size bodies read concurrently
MARKS = (b",", b"[", b"{")  # at most one mark per JSON value, except for the first


class RequestBodies:
    """The bodies being read or parsed; create it in the running event loop."""

    def __init__(self, max_body_bytes: int) -> None:
        self._most = BODIES * max_body_bytes
        self._bytes = 0
        self._turn = asyncio.Lock()

    def grow(self, had: int, more: int) -> None:
        """Count further bytes of a body; raises ApiError if all bodies use too much memory and this one is large."""
        if had + more > LARGE_BYTES and self._bytes + more > self._most:
            raise overloaded("too many large request bodies are being read")
        self._bytes += more

    def release(self, count: int) -> None:
        """Subtract the bytes of a finished body."""
        self._bytes -= count

    async def parse(self, raw: bytes, most_values: int) -> dict[str, Any]:
        """Return the JSON object of a body; raises ApiError if it is invalid or has more than `most_values` values."""
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
    """Raise ApiError if JSON has more than `most` values, without parsing it."""
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
