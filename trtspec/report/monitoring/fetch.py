# SPDX-License-Identifier: Apache-2.0
"""Reads an address of a server that nobody vouches for: the whole answer within a time and a size, no redirects."""

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
HINT = "is it the right address, and is the server up?"
CONNECTIONS = {"http": HTTPConnection, "https": HTTPSConnection}


def fetch(url: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """Return what a server answers at an address; raises DeployError, StepTimeout where it is late."""
    parts, deadline = split(url), time.monotonic() + timeout_s
    connection = CONNECTIONS[parts.scheme](parts.hostname or "", parts.port, timeout=timeout_s)
    where = f"{parts.scheme}://{parts.netloc}{parts.path}"
    try:
        connection.request("GET", f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/")
        open_socket = connection.sock  # http.client forgets it where the server will close the connection
        answer = connection.getresponse()
        body = _read(answer, open_socket, deadline, where)
    except TimeoutError:
        raise StepTimeout(f"no answer within {timeout_s:.3g} s", where=where) from None
    except (OSError, HTTPException) as error:
        raise DeployError(f"cannot be reached: {error or type(error).__name__}", where=where, hint=HINT) from None
    finally:
        connection.close()
    if answer.status != 200:
        raise DeployError(f"answered {answer.status}: {body[:200].decode(errors='replace')!r}", where=where, hint=HINT)
    return body


def split(url: str) -> SplitResult:
    """Return the parts of an address; raises DeployError for what is none, or has a password in it."""
    try:
        parts = urlsplit(url)
        is_ours = parts.scheme in CONNECTIONS and parts.hostname and parts.port != 0
    except ValueError:
        is_ours = False
    if not is_ours or not re.fullmatch("[!-~]+", url):
        raise DeployError(f"{url!r} is not an address", hint="as http://127.0.0.1:8002/metrics")
    if parts.username is not None:
        raise DeployError("names and passwords in an address would be shown", hint="leave them out")
    return parts


def _read(answer: HTTPResponse, open_socket: socket, deadline: float, where: str) -> bytes:
    """Return the body; one that drips is as late as none."""
    body = b""
    while chunk := answer.read1(CHUNK_BYTES):
        body += chunk
        if len(body) > MAX_BYTES:
            raise DeployError(f"an answer of more than {MAX_BYTES:,} bytes", where=where, hint=HINT)
        if (remaining := deadline - time.monotonic()) <= 0:
            raise TimeoutError
        open_socket.settimeout(remaining)
    return body
