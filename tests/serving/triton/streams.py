# SPDX-License-Identifier: Apache-2.0
"""Triton's `generate_stream`, by a client of the tests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from trtspec.core.errors import DeployError
from trtspec.core.http import http_request
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.names import DRAFT, TARGET

MAX_BYTES = 64 << 20


def generate_stream(client: Client, request: Mapping[str, Any], model: str = "ensemble") -> Iterator[dict[str, Any]]:
    """Yield the responses of a streamed request as they arrive; raise DeployError with the server's message."""
    streams = "streaming" if model in (TARGET, DRAFT) else "stream"
    body, path = json.dumps({streams: True, **request}).encode(), f"/v2/models/{model}/generate_stream"
    limits: dict[str, Any] = {"timeout_s": client.timeout_s, "max_bytes": MAX_BYTES}
    with http_request(client.where, path, method="POST", body=body, **limits) as answer:
        if answer.status != 200:
            content = answer.read()
            message = json.loads(content)["error"] if content.startswith(b"{") else content.decode()
            raise DeployError(f"the server answered {answer.status}: {message}")
        buffer = b""
        for chunk in answer.chunks():
            *lines, buffer = (buffer + chunk).split(b"\n")
            for event in (json.loads(line[5:]) for line in lines if line.startswith(b"data:")):
                if set(event) == {"error"}:  # the HTTP status is 200 once the stream has started
                    raise DeployError(f"the server answered: {event['error']}")
                yield event
