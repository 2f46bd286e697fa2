# SPDX-License-Identifier: Apache-2.0
"""A small HTTP client for Triton: readiness, statistics and `generate`.

Every response has a deadline and a size limit, because Triton never answers a request whose Python stub has died.
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
HEADER = "trtspec-token"  # servers started by trtspec require it for CONTROLS
CONTROLS = "/v2/repository/"


def with_special_tokens_flag(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add `add_special_tokens: false` to a request whose text is a rendered chat template (`RenderedText`)."""
    is_rendered = isinstance(request.get("text_input"), RenderedText)
    return {**request, ADD_SPECIAL_TOKENS: False} if is_rendered else request


@dataclass(frozen=True)
class Client:
    """The HTTP endpoint of one server.

    Attributes:
        where: address such as http://127.0.0.1:8000, or unix: and the path of a socket.
        timeout_s: time limit for each whole request.
        token: authorizes the server's control APIs (see `trtspec.deployment.revision`).
    """

    where: str
    timeout_s: float = 60.0
    token: str = ""

    @classmethod
    def at(cls, url: str, timeout_s: float = 60.0, token: str = "") -> Client:
        """Return a client for an address such as http://127.0.0.1:8000 or unix:/run/user/1000/http.sock.

        Raises DeployError if the address is invalid.
        """
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
        """Return True if the server, or one of its models, reports that it is ready, which may be wrong."""
        return self._succeeds("GET", f"/v2/models/{model}/ready" if model else "/v2/health/ready")

    def controls(self) -> bool:
        """Return True if the server accepts this client's token for its control APIs."""
        return self._succeeds("POST", f"{CONTROLS}index", {})

    def statistics(self) -> dict[str, Any]:
        return self._document("GET", "/v2/models/stats")

    def generate(self, request: Mapping[str, Any], model: str = "ensemble") -> dict[str, Any]:
        """Send a `generate` request and return the response; raises DeployError, or StepTimeout after `timeout_s`."""
        return self._document("POST", f"/v2/models/{model}/generate", with_special_tokens_flag(request))

    def _succeeds(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> bool:
        try:
            with self._request(method, path, body) as answer:
                return answer.status == 200
        except (DeployError, StepTimeout):
            return False

    def _document(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the JSON object of its response; raises DeployError for other responses."""
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
        """Send one request on a new connection; raises DeployError or StepTimeout with the server's address."""
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
