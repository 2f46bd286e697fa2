# SPDX-License-Identifier: Apache-2.0
"""Authorization at a registry: Basic, or bearer tokens of the server that a WWW-Authenticate challenge names.

Source of the protocol: distribution's documentation of token authentication
(distribution/distribution:docs/content/spec/auth/token.md and oauth.md@v2.8.2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from urllib.parse import urlencode

from trtspec.core.errors import TrtspecError
from trtspec.store.registries.credentials import Credentials
from trtspec.store.registries.http_client import Broken, RegistryError, Reply, TokenRequest, shown

MAX_TOKEN_CHARS = 32 << 10
CLIENT_ID = "trtspec"
_PARAMETER = re.compile(r'([A-Za-z_]+)="([^"\\]*)"')


class Authorization:
    """The Authorization header of one repository's requests; shared by threads.

    `scope` is the access that tokens are requested for, such as "repository:NAME:pull,push".
    """

    def __init__(self, host: str, scope: str, find: Callable[[], Credentials | None]) -> None:
        self._host = host
        self._scope = scope
        self._find = find
        self._headers: dict[str, str] = {}  # by additional scope
        self._credentials: list[Credentials | None] = []
        self._lock = Lock()

    def header(self, scope: str = "") -> str:
        """Return the current header for requests with an additional scope; "" before the first challenge."""
        return self._headers.get(scope, "")

    def answer(self, challenges: Sequence[str], sent: str, scope: str, request: TokenRequest) -> bool:
        """Obtain the header that a 401 response requires; return False if the available one was rejected.

        `sent` is the header of the rejected request. If another thread has replaced it in the meantime, its
        header is used.
        """
        with self._lock:
            if self.header(scope) != sent:
                return True
            found = self._obtain(challenges, scope, request)
            if not found or found == sent:
                return False
            self._headers[scope] = found
            return True

    def refused(self, where: str) -> TrtspecError:
        """Return the error for a request that the registry rejects despite the available credentials."""
        has_any = bool(self._credentials and self._credentials[0])
        message = "the registry rejects these credentials" if has_any else "the registry requires credentials"
        return RegistryError(message, where=where, hint=f"docker login {self._host}")

    def _obtain(self, challenges: Sequence[str], scope: str, request: TokenRequest) -> str:
        if not self._credentials:
            self._credentials.append(self._find())
        credentials = self._credentials[0]
        for challenge in challenges:
            kind, _, parameters = challenge.partition(" ")
            if kind.lower() == "bearer":
                return self._bearer(dict(_PARAMETER.findall(parameters)), credentials, scope, request)
            if kind.lower() == "basic" and credentials and credentials.username:
                return credentials.basic
        return ""

    def _bearer(
        self, challenge: Mapping[str, str], credentials: Credentials | None, scope: str, request: TokenRequest
    ) -> str:
        realm, scopes = challenge.get("realm", ""), [self._scope, *([scope] if scope else [])]
        service = {"service": challenge["service"]} if challenge.get("service") else {}
        if credentials and credentials.identity_token:
            form = {"grant_type": "refresh_token", "refresh_token": credentials.identity_token, "client_id": CLIENT_ID}
            body = urlencode({**form, **service, "scope": " ".join(scopes)}).encode()
            headers = {"Content-Type": "application/x-www-form-urlencoded"}
            reply = request("POST", realm, headers, body)
        else:
            query = urlencode([*service.items(), *(("scope", each) for each in scopes)])
            headers = {"Authorization": credentials.basic} if credentials else {}
            url = f"{realm}{'&' if '?' in realm else '?'}{query}"
            reply = request("GET", url, headers, b"")
        return self._token(reply)

    def _token(self, reply: Reply) -> str:
        if reply.status in (401, 403):
            return ""
        if reply.status != 200:
            raise Broken(f"the token server replied with HTTP status {reply.status}")
        try:
            document = json.loads(reply.body)
            token = document.get("token") or document.get("access_token")
        except (ValueError, RecursionError, AttributeError):
            token = None
        if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token) or len(token) > MAX_TOKEN_CHARS:
            raise RegistryError("the token server returned no token", where=shown(reply.url))
        return f"Bearer {token}"
