# SPDX-License-Identifier: Apache-2.0
"""Fetch a URL of an untrusted server with a total timeout and a size limit, without redirects."""

from __future__ import annotations

import re
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import socket
from urllib.parse import SplitResult, urlsplit

from trtspec.core.errors import DeployError, StepTimeout

TIMEOUT_S = 10.0
MAX_BYTES = 8 << 20
CHUNK_BYTES = 64 << 10
HINT = "check the URL and that the server is running"
CONNECTIONS = {"http": HTTPConnection, "https": HTTPSConnection}


def fetch(url: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """Return the body of a GET request; raise DeployError, or StepTimeout after `timeout_s`."""
    parts, deadline = split(url), time.monotonic() + timeout_s
    connection = CONNECTIONS[parts.scheme](parts.hostname or "", parts.port, timeout=timeout_s)
    where = f"{parts.scheme}://{parts.netloc}{parts.path}"
    try:
        connection.request("GET", f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/")
        open_socket = connection.sock  # http.client drops it if the server closes the connection
        answer = connection.getresponse()
        body = _read(answer, open_socket, deadline, where)
    except TimeoutError:
        raise StepTimeout(f"no response within {timeout_s:.3g} s", where=where) from None
    except (OSError, HTTPException) as error:
        raise DeployError(f"cannot be reached: {error or type(error).__name__}", where=where, hint=HINT) from None
    finally:
        connection.close()
    if answer.status != 200:
        raise DeployError(
            f"returned status {answer.status}: {body[:200].decode(errors='replace')!r}", where=where, hint=HINT
        )
    return body


def split(url: str) -> SplitResult:
    """Parse an http(s) URL; raise DeployError if it is invalid or contains credentials."""
    try:
        parts = urlsplit(url)
        is_ours = parts.scheme in CONNECTIONS and parts.hostname and parts.port != 0
    except ValueError:
        is_ours = False
    if not is_ours or not re.fullmatch("[!-~]+", url):
        raise DeployError(f"{url!r} is not an http(s) URL", hint="e.g. http://127.0.0.1:8002/metrics")
    if parts.username is not None:
        raise DeployError("credentials in a URL are not supported, since URLs are shown", hint="remove them")
    return parts


def _read(answer: HTTPResponse, open_socket: socket, deadline: float, where: str) -> bytes:
    """Return the body; raise TimeoutError if it is incomplete at the deadline."""
    body = b""
    while chunk := answer.read1(CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_BYTES:
            raise DeployError(f"the response exceeds {MAX_BYTES:,} bytes", where=where, hint=HINT)
        if (remaining := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        open_socket.settimeout(remaining)
    return body
