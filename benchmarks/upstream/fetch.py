# SPDX-License-Identifier: Apache-2.0
"""HTTP requests with bounded sizes and waits; every failure is a FetchError."""

from __future__ import annotations

import base64
import http.client
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from ssl import SSLContext
from urllib.parse import unquote, urlsplit, urlunsplit

PIECE = 1 << 16


class FetchError(Exception):
    """A server did not send what was requested: the message has the URL without credentials, and the reason."""


@dataclass(frozen=True)
class Response:
    """A complete response: status, headers (names in lower case) and body."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Fetcher:
    """Send GET requests. `wait_s` bounds the wait for each piece of a response and `total_s` a whole response.

    `credentials` are Authorization headers by host; they are never sent to another host, not even after a redirect.
    """

    wait_s: float = 20.0
    total_s: float = 120.0
    tls: SSLContext | None = None
    credentials: dict[str, str] = field(default_factory=dict)

    def get(self, url: str, limit: int, headers: dict[str, str] | None = None) -> Response:
        """Return the response; raise FetchError for an error status, a body over `limit` bytes, or a slow server.

        The body of a request with a Range header is read only if the status is 206.
        """
        deadline = time.monotonic() + self.total_s
        request = urllib.request.Request(url, headers=headers or {})
        if authorization := self.credentials.get(request.host):
            request.add_unredirected_header("Authorization", authorization)
        try:
            with urllib.request.urlopen(request, timeout=self.wait_s, context=self.tls) as answer:
                found = {name.lower(): value for name, value in answer.headers.items()}
                ranged = any(name.lower() == "range" for name in headers or {})
                body = b"" if ranged and answer.status != 206 else _read(answer, limit, deadline)
                return Response(answer.status, found, body)
        except (OSError, http.client.HTTPException, ValueError, EOFError) as error:
            raise FetchError(f"{public_url(url)}: {type(error).__name__}: {error}") from error


def _read(answer: http.client.HTTPResponse, limit: int, deadline: float) -> bytes:
    pieces: list[bytes] = []
    size = 0
    while piece := answer.read1(PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            raise ValueError(f"the response exceeds {limit} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the response took too long")
    told = answer.headers.get("Content-Length")
    if told is not None and int(told) != size:
        raise EOFError(f"the response ended after {size} of {told} bytes")
    return b"".join(pieces)


def split_credentials(url: str) -> tuple[str, str, str]:
    """Return a URL without credentials, its host with the port, and its Authorization header ("" without one)."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    bare = urlunsplit(parts._replace(netloc=host))
    return bare, host, "Basic " + base64.b64encode(unquote(user).encode()).decode() if at else ""


def public_url(url: str) -> str:
    """Return a URL without credentials."""
    return split_credentials(url)[0]
