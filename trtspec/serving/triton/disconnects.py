# SPDX-License-Identifier: Apache-2.0
"""Client disconnections during Triton's `generate`: detected by the proxy and polled by the models.

Triton stops reading a connection while it produces the single response of `generate`, so it does not notice when the
connection closes (libevhtp pauses the request; tritonserver 2.51 and 2.73). It does notice for gRPC, and for
`generate_stream` because writing fails. `generate` also ignores header forwarding, but unknown keys of its JSON object
become parameters of the request. Therefore the proxy adds a random token to the object, and creates a file of that name
when the client disconnects. The model checks for the file while it generates.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

PARAMETER = "trtspec_client"
VARIABLE = "TRTSPEC_DEPARTURES"  # in tritonserver's environment: a directory writable only by its user
TOKEN = re.compile(r"[0-9a-f]{32}")
OBJECT = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*(\}?)")


def add_client_token(body: bytes) -> tuple[str, bytes]:
    """Return a new token and the body of a `generate` request with the token added.

    A body that is not a JSON object is returned unchanged, for Triton to reject.
    """
    token = secrets.token_hex(16)
    match = OBJECT.match(body)
    if match is None:
        return token, body
    comma = b"" if match[1] else b","
    return token, b'{"%s":"%s"%s' % (PARAMETER.encode(), token.encode(), comma) + body[match.start(1) :]


def mark_disconnected(directory: Path, token: str) -> None:
    """Record that the client of a token has disconnected."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(directory / token, flags, 0o600))


def clear_disconnected(directory: Path, token: str) -> None:
    """Remove the record, once Triton has finished the request or the wait for it has timed out."""
    with suppress(FileNotFoundError):
        (directory / token).unlink()


def has_disconnected(directory: str, token: object) -> bool:
    """Return whether the client of a token has disconnected; False for a request without a token."""
    return bool(directory and isinstance(token, str) and TOKEN.fullmatch(token)) and os.path.exists(
        f"{directory}/{token}"
    )
