# SPDX-License-Identifier: Apache-2.0
"""A small HTTP client for Triton: readiness, statistics and `generate`.

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
from trtspec.serving.triton.names import ADD_SPECIAL_TOKENS

MAX_ANSWER_BYTES = 64 << 20
HEADER = "trtspec-token"  # required by our servers for CONTROLS
CONTROLS = "/v2/repository/"


def with_special_tokens_flag(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a request with add_special_tokens=False if its text is a rendered chat, which JSON does not show."""
    is_rendered = isinstance(request.get("text_input"), RenderedText)
    return {**request, ADD_SPECIAL_TOKENS: False} if is_rendered else request


@dataclass(frozen=True)
class Client:
    """One server's HTTP endpoint; `timeout_s` limits each whole request.

    `where` is its address, such as http://127.0.0.1:8000, or unix: and the path of a socket. `token` authorizes the
    server's control APIs (`trtspec.deployment.revision`).
    """

    where: str
    timeout_s: float = 60.0
    token: str = ""

    @classmethod
    def at(cls, url: str, timeout_s: float = 60.0, token: str = "") -> Client:
        """Return the client for an address such as http://127.0.0.1:8000 or unix:/run/user/1000/http.sock."""
        if url.startswith(UNIX):
            return cls(url, timeout_s, token)
        parts = urlsplit(url)
        try:
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if parts.scheme != "http" or not host or not port:
            raise DeployError(f"{url!r} is not a server's address", hint="for example http://127.0.0.1:8000")
        return cls(f"http://{f'[{host}]' if ':' in host else host}:{port}", timeout_s, token)

    def is_ready(self, model: str | None = None) -> bool:
        """Return whether the server, or one of its models, reports that it is ready; the report may be wrong."""
        return self._succeeds("GET", f"/v2/models/{model}/ready" if model else "/v2/health/ready")

    def controls(self) -> bool:
        """Return whether this client may use the server's control APIs."""
        return self._succeeds("POST", f"{CONTROLS}index", {})

    def statistics(self) -> dict[str, Any]:
        return self._document("GET", "/v2/models/stats")

    def generate(self, request: Mapping[str, Any], model: str = "ensemble") -> dict[str, Any]:
        """Return the response of a request; raises DeployError with the server's message if it fails."""
        return self._document("POST", f"/v2/models/{model}/generate", with_special_tokens_flag(request))

    def _succeeds(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bool:
        try:
            with self._request(method, path, body) as answer:
                return answer.status == 200
        except (DeployError, StepTimeout):
            return False

    def _document(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON object of a response."""
        with self._request(method, path, body) as answer:
            content = answer.read()
        if answer.status != 200:
            try:
                message = json.loads(content)["error"]
            except (ValueError, KeyError, TypeError):
                message = content[:200].decode(errors="replace") or "nothing"
            raise DeployError(f"the server answered {answer.status}: {message}", where=self.where)
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise DeployError(f"the server's response is not a JSON object: {content[:80]!r}", where=self.where)
        return document

    @contextmanager
    def _request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Iterator[HttpAnswer]:
        """Send one request on a new connection; errors name the server."""
        try:
            with http_request(
                self.where,
                path,
                timeout_s=self.timeout_s,
                method=method,
                body=None if body is None else json.dumps(body).encode(),
                headers={HEADER: self.token} if self.token and path.startswith(CONTROLS) else {},
                max_bytes=MAX_ANSWER_BYTES,
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
