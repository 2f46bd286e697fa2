# SPDX-License-Identifier: Apache-2.0
"""HTTP requests with a deadline for the whole exchange and a limit on the response size, over TCP or a Unix socket.

Uses only the standard library, so that a smoke test imports little. Ignores proxies and redirects, because the servers
run on this machine or are named by the user.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

from trtspec.core.errors import DeployError

CHUNK_BYTES = 64 << 10
UNIX = "unix:"  # address prefix of a Unix socket


class HttpError(ConnectionError):
    """The server closed the connection early or violated the protocol."""


@dataclass(frozen=True)
class HttpAnswer:
    """A response whose body must arrive before the deadline and must not exceed `max_bytes`."""

    where: str
    status: int
    max_bytes: int
    _response: HTTPResponse
    _socket: socket.socket
    _deadline: float

    def chunks(self) -> Iterator[bytes]:
        """Yield the body as it arrives; raise TimeoutError at the deadline and DeployError if the body is too large."""
        received = 0
        while True:
            _limit_wait(self._socket, self._deadline)
            if not (chunk := self._response.read1(CHUNK_BYTES)):
                return
            received += len(chunk)
            if received > self.max_bytes:
                raise DeployError(f"the response exceeds {self.max_bytes:,} bytes", where=self.where)
            yield chunk

    def read(self) -> bytes:
        """Return the whole body; raises like `chunks`."""
        return b"".join(self.chunks())


@contextmanager
def http_request(
    address: str,
    path: str,
    *,
    timeout_s: float,
    method: str = "GET",
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    max_bytes: int = CHUNK_BYTES,
) -> Iterator[HttpAnswer]:
    """Send one request on a new connection and provide the response, of any status, within the `with` block.

    `address` is http(s)://HOST:PORT or unix:PATH. Raises TimeoutError if the whole exchange takes longer than
    `timeout_s`, and OSError for all other connection failures, also within the block.
    """
    deadline = time.monotonic() + timeout_s
    connection = _connection(address, timeout_s)
    try:
        connection.request(method, path, body, dict(headers or {}))
        open_socket = connection.sock  # http.client drops it if the server will close the connection
        _limit_wait(open_socket, deadline)
        with connection.getresponse() as response:
            yield HttpAnswer(address, response.status, max_bytes, response, open_socket, deadline)
    except HTTPException as error:
        raise HttpError(str(error) or type(error).__name__) from error
    finally:
        connection.close()


def http_status(url: str, timeout_s: float) -> int:
    """Return the status code of a GET request, or 0 if the request fails."""
    try:
        with http_request(*split_url(url), timeout_s=timeout_s) as answer:
            return answer.status
    except OSError:
        return 0


def split_url(url: str) -> tuple[str, str]:
    """Split a URL into the address and the path with its query; for a Unix socket, the path is "/"."""
    if url.startswith(UNIX):
        return url, "/"
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{parts.netloc}", (parts.path or "/") + query


def _connection(address: str, timeout_s: float) -> HTTPConnection:
    if address.startswith(UNIX):
        return UnixConnection(address.removeprefix(UNIX), timeout_s)
    parts = urlsplit(address)
    connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    return connect(parts.hostname or "", parts.port, timeout=timeout_s)


def _limit_wait(open_socket: socket.socket, deadline: float) -> None:
    """Limit a socket's next operation to the time left until the deadline; raise TimeoutError if it has passed."""
    if (remaining := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    open_socket.settimeout(remaining)


class UnixConnection(HTTPConnection):
    """An HTTP connection to a Unix socket whose path may exceed the 108-byte limit of socket addresses."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self.path = path

    def connect(self) -> None:
        """Connect through a short path in /proc/self/fd that refers to the socket's directory."""
        place = Path(self.path)
        directory = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(self.timeout)
            self.sock.connect(f"/proc/self/fd/{directory}/{place.name}")
        finally:
            os.close(directory)
