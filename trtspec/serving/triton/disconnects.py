# SPDX-License-Identifier: Apache-2.0
"""Clients of Triton's `generate` that left: the proxy before Triton notices, and the served models look.

Triton stops reading a connection while it makes the one response of `generate`, so that it does not notice when the
connection closes (libevhtp pauses the request; tritonserver 2.51 and 2.73). It notices for `generate_stream`, where
writing fails, and for gRPC. Header forwarding does not reach `generate` either, but unknown keys of its JSON object
become parameters of the request. So the proxy puts a random token into the object, and creates a file of that name once
the client has left; a model looks for the file while it makes the text.
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from pathlib import Path

PARAMETER = "trtspec_client"
VARIABLE = "TRTSPEC_DEPARTURES"  # in tritonserver's environment: a directory that only its user can write
TOKEN = re.compile(r"[0-9a-f]{32}")
OBJECT = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*(\}?)")


def tagged(body: bytes) -> tuple[str, bytes]:
    """Return a new token, and the body of a `generate` request with the token in it.

    A body that is not a JSON object is returned as it is, for Triton to refuse.
    """
    token = secrets.token_hex(16)
    match = OBJECT.match(body)
    if match is None:
        return token, body
    comma = b"" if match[1] else b","
    return token, b'{"%s":"%s"%s' % (PARAMETER.encode(), token.encode(), comma) + body[match.start(1) :]


def mark_departed(directory: Path, token: str) -> None:
    """Note that the client of a token has left."""
    flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(directory / token, flags, 0o600))


def forget_departed(directory: Path, token: str) -> None:
    """Remove the note; to be called when Triton has answered the request, or is not waited for any more."""
    with suppress(FileNotFoundError):
        (directory / token).unlink()


def has_departed(directory: str, token: object) -> bool:
    """Return whether the client of a token has left; False for a request without a token."""
    return bool(directory and isinstance(token, str) and TOKEN.fullmatch(token)) and os.path.exists(
        f"{directory}/{token}"
    )
