# SPDX-License-Identifier: Apache-2.0
"""A small HTTP client for Triton: readiness, model loading, `generate` and `generate_stream`.

Every response has a deadline and a size limit, because a dead Python stub leaves its requests open forever.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from trtspec.checkpoints.tokenizer import RenderedText
from trtspec.core.errors import DeployError, StepTimeout
from trtspec.core.http import UNIX, HttpAnswer, http_request
from trtspec.core.ports import LOOPBACK
from trtspec.serving.triton.names import ADD_SPECIAL_TOKENS, DRAFT, TARGET

MAX_ANSWER_BYTES = 64 << 20
MAX_EVENT_BYTES = 4 << 20
HEADER = "trtspec-token"  # required by our servers for CONTROLS
CONTROLS = "/v2/repository/"


def with_special_tokens_flag(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request with add_special_tokens=False if its text is a rendered chat, which JSON does not show."""
    is_rendered = isinstance(request.get("text_input"), RenderedText)
    return {**request, ADD_SPECIAL_TOKENS: False} if is_rendered else request


@dataclass(frozen=True)
class Client:
    """One server's HTTP endpoint; `timeout_s` limits each whole request, including streams.

    `token` authorizes the server's control APIs (`trtspec.deployment.revision`). `path` is the path of a Unix socket,
    or "" for a server at `host` and `port`.
    """

    port: int
    host: str = LOOPBACK
    timeout_s: float = 60.0
    token: str = ""
    path: str = ""

    @classmethod
    def at(cls, url: str, timeout_s: float = 60.0, token: str = "") -> Client:
        """Return the client for an address such as http://127.0.0.1:8000 or unix:/run/user/1000/http.sock."""
        if url.startswith(UNIX):
            return cls(0, "localhost", timeout_s, token, url.removeprefix(UNIX))
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme != "http" or not host or not port:
            raise DeployError(f"{url!r} is not a server's address", hint="for example http://127.0.0.1:8000")
        return cls(port, host, timeout_s, token)

    def is_ready(self, model: str | None = None) -> bool:
        """Return whether the server, or one of its models, reports that it is ready; the report may be wrong."""
        path = f"/v2/models/{model}/ready" if model else "/v2/health/ready"
        try:
            with self._request("GET", path) as answer:
                return answer.status == 200
        except (DeployError, StepTimeout):
            return False

    def controls(self) -> bool:
        """Return whether this client may use the server's control APIs."""
        try:
            with self._request("POST", f"{CONTROLS}index", {}) as answer:
                return answer.status == 200
        except (DeployError, StepTimeout):
            return False

    def load(self, model: str) -> None:
        """Load a model of the server's repository."""
        self._read_all("POST", f"/v2/repository/models/{model}/load", {})

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of the server's models."""
        return _document(self._read_all("GET", "/v2/models/stats"), self.where)

    def generate(self, request: Mapping[str, Any], model: str = "ensemble") -> dict[str, Any]:
        """Return the response of a request; raises DeployError with the server's message if it fails."""
        return _document(
            self._read_all("POST", f"/v2/models/{model}/generate", with_special_tokens_flag(request)), self.where
        )

    def generate_stream(self, request: Mapping[str, Any], model: str = "ensemble") -> Iterator[dict[str, Any]]:
        """Yield the responses of a streamed request as they arrive."""
        streams = "streaming" if model in (TARGET, DRAFT) else "stream"
        with self._request(
            "POST", f"/v2/models/{model}/generate_stream", {streams: True, **with_special_tokens_flag(request)}
        ) as answer:
            if answer.status != 200:
                raise self._refused(answer.status, answer.read())
            for event in _events(answer.chunks(), self.where):
                if set(event) == {"error"}:  # the HTTP status is 200 once the stream has started
                    raise DeployError(f"the server answered: {event['error']}", where=self.where)
                yield event

    def _headers(self, path: str) -> dict[str, str]:
        """Return the token header for control APIs only."""
        return {HEADER: self.token} if self.token and path.startswith(CONTROLS) else {}

    @property
    def where(self) -> str:
        """Return the server's address, such as http://127.0.0.1:8000."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{UNIX}{self.path}" if self.path else f"http://{host}:{self.port}"

    def _read_all(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bytes:
        with self._request(method, path, body) as answer:
            content = answer.read()
            if answer.status != 200:
                raise self._refused(answer.status, content)
            return content

    @contextmanager
    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Iterator[HttpAnswer]:
        """Send one request on a new connection; errors name the server."""
        data = None if body is None else json.dumps(body).encode()
        limits: dict[str, Any] = {"timeout_s": self.timeout_s, "max_bytes": MAX_ANSWER_BYTES}
        try:
            with http_request(
                self.where, path, method=method, body=data, headers=self._headers(path), **limits
            ) as answer:
                yield answer
        except TimeoutError:
            raise StepTimeout(f"no answer within {self.timeout_s:.3g} s", where=self.where) from None
        except OSError as error:
            raise DeployError(
                f"the server cannot be reached: {error or type(error).__name__}",
                where=self.where,
                hint="check its state with: trtspec status NAME",
            ) from None

    def _refused(self, status: int, content: bytes) -> DeployError:
        try:
            message = json.loads(content)["error"]
        except (ValueError, KeyError, TypeError):
            message = content[:200].decode(errors="replace") or "nothing"
        return DeployError(f"the server answered {status}: {message}", where=self.where)


def _events(chunks: Iterator[bytes], where: str) -> Iterator[dict[str, Any]]:
    """Yield the documents of server-sent events: `data: {...}` lines; others are ignored."""
    buffer = b""
    for chunk in chunks:
        *lines, buffer = (buffer + chunk).split(b"\n")
        if len(buffer) > MAX_EVENT_BYTES:
            raise DeployError(f"an event exceeds {MAX_EVENT_BYTES:,} bytes", where=where)
        yield from (_document(line[5:], where) for line in lines if line.startswith(b"data:"))


def _document(content: bytes, where: str) -> dict[str, Any]:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise DeployError(f"the server's response is not a JSON object: {content[:80]!r}", where=where)
    return document
