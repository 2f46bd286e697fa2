# SPDX-License-Identifier: Apache-2.0
"""HTTP client for one registry: connections of each thread, authorization, redirects, deadlines, retries and limits.

Credentials and tokens are sent only to the registry and to its token server. A redirect to another host is followed
without them, and only over TLS unless the registry itself is on this machine. Log records and messages contain neither
headers nor queries of URLs, because upload addresses and redirects may contain signatures.
"""

from __future__ import annotations

import base64
import json
import logging
import random
import re
import socket
import ssl
import string
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Protocol
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

from trtspec.core.diagnostics import escape_unprintable
from trtspec.core.errors import TrtspecError
from trtspec.core.hashing import new_buffers
from trtspec.core.http_hosts import is_loopback

log = logging.getLogger(__name__)

MAX_REPLY_BYTES = 64 << 10
MAX_REDIRECTS = 5
MAX_AUTHORIZATIONS = 3  # per request: another thread's token may have expired as well
PIECE_BYTES = 128 << 10
TRANSIENT = {408, 425, 429, 500, 502, 503, 504}
REDIRECTS = {301, 302, 303, 307, 308}
UNAUTHORIZED = 401
PARTIAL = 206

Body = Callable[[], Iterable[bytes | memoryview]]  # starts the body of a request


class RegistryError(TrtspecError):
    """A registry rejects a request, violates the protocol or cannot be reached."""


class Broken(Exception):
    """An exchange that may succeed if it is repeated; `wait_s` is the pause that the registry requests."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


@dataclass(frozen=True)
class Patience:
    """Limits of all waits: for each read, for an exchange, for a transfer of 64 MiB, and between attempts.

    After `attempts` attempts in sequence without progress, an operation fails.
    """

    attempts: int = 8
    first_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    read_s: float = 60.0
    exchange_s: float = 120.0
    transfer_s: float = 1800.0

    def pause_s(self, attempt: int, wanted_s: float) -> float:
        """Return the pause after a failed attempt: exponential with jitter, or as long as the registry requests."""
        backoff = self.first_pause_s * 2.0**attempt * random.uniform(0.5, 1.0)
        return min(self.longest_pause_s, max(backoff, wanted_s))


class Attempts:
    """Counter of failed attempts in sequence; `failed` pauses, or raises RegistryError after the last one.

    `limit` returns the number of attempts, which may change while they are made.
    """

    def __init__(self, patience: Patience, stopped: threading.Event, where: str, limit: Callable[[], int]) -> None:
        self._patience, self._stopped, self._where, self._limit = patience, stopped, where, limit
        self._count = 0

    def failed(self, error: Broken) -> None:
        self._count += 1
        if self._count >= self._limit():
            message = f"{error}; gave up after {self._count} attempts"
            raise RegistryError(message, where=self._where, hint="try again later; the transfer continues where it was")
        pause = self._patience.pause_s(self._count - 1, error.wait_s)
        log.info("%s: %s; trying again in %.1f s", self._where, error, pause)
        if self._stopped.wait(pause):
            raise TransferStopped

    def progressed(self) -> None:
        self._count = 0


class TransferStopped(Exception):
    """Raised in a transfer if another one of the same command failed or the user interrupted it."""


@dataclass(frozen=True)
class Reply:
    """A response with its whole body; the names of `headers` are in lower case."""

    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False, default=b"")


TokenRequest = Callable[[str, str, Mapping[str, str], bytes], Reply]  # method, URL, headers, body


class Authorizes(Protocol):
    """The interface of authorization.py that requests use."""

    def header(self, scope: str = "") -> str: ...
    def answer(self, challenges: Sequence[str], sent: str, scope: str, request: TokenRequest) -> bool: ...
    def refused(self, where: str) -> TrtspecError: ...


class RegistryClient:
    """Requests to one registry from any number of threads; `stopped` ends pauses and transfers."""

    def __init__(
        self,
        origin: str,
        authorization: Authorizes,
        patience: Patience,
        stopped: threading.Event,
        *,
        follows_redirects: bool = True,
    ) -> None:
        self.origin = origin
        self._follows_redirects = follows_redirects
        self.patience = patience
        self.stopped = stopped
        self.has_replied = False
        self._authorization = authorization
        self._threads = threading.local()
        self._all: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def attempts(self, where: str) -> Attempts:
        """Return a counter of attempts; a registry that has never replied gets few."""
        most = self.patience.attempts
        return Attempts(self.patience, self.stopped, where, lambda: most if self.has_replied else min(3, most))

    def interrupt(self) -> None:
        """Shut down the connections of all threads, so that no thread waits for the registry."""
        with self._lock:
            for connection in self._all:
                shut_down(connection)

    def close(self) -> None:
        """Close the connections of all threads."""
        with self._lock:
            for connection in self._all:
                connection.close()
            self._all.clear()

    def exchange(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes = b"",
        max_bytes: int = MAX_REPLY_BYTES,
        scope: str = "",
    ) -> Reply:
        """Send a request and return the reply of any final status; transient failures are repeated.

        `target` is a path or URL. Raises RegistryError if all attempts fail or the body exceeds `max_bytes`.
        """
        attempts = self.attempts(shown(urljoin(self.origin, target)))
        while True:
            try:
                reply = self.once(method, target, headers=headers, body=body, max_bytes=max_bytes, scope=scope)
                if reply.status in TRANSIENT:
                    raise Broken(reason(reply), retry_after_s(reply.headers))
                return reply
            except Broken as error:
                attempts.failed(error)

    def once(
        self,
        method: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Body = b"",
        nbytes: int = 0,
        max_bytes: int = MAX_REPLY_BYTES,
        scope: str = "",
    ) -> Reply:
        """Send a request once, and once more if the registry requires authorization; raises Broken for failures.

        A `body` that is a function starts a stream of `nbytes` bytes.
        """
        is_stream = callable(body)
        deadline_s = self.patience.transfer_s if is_stream else self.patience.exchange_s
        with (
            self._deadline(deadline_s) as ended,
            self._open(method, target, dict(headers or {}), body, nbytes, scope) as response,
        ):
            data = self._read_all(response, max_bytes, urljoin(self.origin, target), ended)
            found = {name.lower(): value for name, value in response.getheaders()}
            return Reply(urljoin(self.origin, target), response.status, found, data)

    @contextmanager
    def stream(self, target: str, headers: Mapping[str, str]) -> Iterator[tuple[HTTPResponse, Iterator[memoryview]]]:
        """Send a GET request once and provide the response with the pieces of its body; raises Broken for failures.

        A piece is valid until the next one is requested. The pieces may exceed no deadline: each 64 MiB have to arrive
        within `Patience.transfer_s`.
        """
        with ExitStack() as stack:
            with self._deadline(self.patience.exchange_s):
                response = stack.enter_context(self._open("GET", target, dict(headers), b"", 0, ""))
            yield response, self._pieces(response)

    def _pieces(self, response: HTTPResponse) -> Iterator[memoryview]:
        deadline, received = time.monotonic() + self.patience.transfer_s, 0
        buffer = next(new_buffers(1, PIECE_BYTES))
        while True:
            if self.stopped.is_set():
                raise TransferStopped
            try:
                count = _read_available(response, buffer)
            except (OSError, HTTPException, ValueError) as error:
                raise Broken(describe(error)) from None
            if not count:
                return
            received += count
            if received >= 64 << 20:
                deadline, received = time.monotonic() + self.patience.transfer_s, 0
            elif time.monotonic() > deadline:
                raise Broken(f"less than 64 MiB arrived in {self.patience.transfer_s:.0f} s")
            yield buffer[:count]

    def _read_all(self, response: HTTPResponse, max_bytes: int, url: str, ended: threading.Event) -> bytes:
        data = bytearray()
        try:
            while piece := response.read1(PIECE_BYTES):
                data += piece
                if len(data) > max_bytes:
                    self._drop(response)
                    raise RegistryError(f"the reply exceeds {max_bytes:,} bytes", where=shown(url))
        except (OSError, HTTPException, ValueError) as error:
            raise Broken(describe(error)) from None
        announced = response.getheader("Content-Length", "")
        is_short = announced.isdecimal() and response.length not in (None, 0)
        if ended.is_set() or is_short:
            raise Broken("the reply was cut off")
        return bytes(data)

    @contextmanager
    def _open(
        self, method: str, target: str, headers: dict[str, str], body: bytes | Body, nbytes: int, scope: str
    ) -> Iterator[HTTPResponse]:
        """Provide the response to a request after authorization and redirects; the block must read it."""
        url, redirects, authorized = urljoin(self.origin, target), 0, 0
        while True:
            is_own = url_origin(url) == self.origin
            sent = self._authorization.header(scope) if is_own else ""
            response = self._send(method, url, headers | ({"Authorization": sent} if sent else {}), body, nbytes)
            if response.status == UNAUTHORIZED and is_own:
                challenges = response.headers.get_all("WWW-Authenticate") or []
                self._skip(response)
                authorized += 1
                if authorized > MAX_AUTHORIZATIONS or not self._authorization.answer(
                    challenges, sent, scope, self.token_request
                ):
                    raise self._authorization.refused(shown(url))
                if callable(body):
                    raise Broken("the registry requested a new token")
            elif response.status in REDIRECTS and method in ("GET", "HEAD") and self._follows_redirects:
                redirects += 1
                url = self._redirected(url, response, redirects)
                self._skip(response)
            else:
                break
        try:
            if response.getheader("Content-Encoding", "identity") != "identity":
                raise RegistryError("the reply is compressed, which was not requested", where=shown(url))
            yield response
        except BaseException:
            self._drop(response)
            raise
        self._skip(response)

    def token_request(self, method: str, url: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Send a request to a token server: once, without redirects, over TLS or to this machine."""
        require_safe(url, self.origin)
        with self._deadline(self.patience.exchange_s) as ended:
            response = self._send(method, url, dict(headers), body, 0)
            data = self._read_all(response, MAX_REPLY_BYTES, url, ended)
            return Reply(url, response.status, {name.lower(): value for name, value in response.getheaders()}, data)

    def _redirected(self, url: str, response: HTTPResponse, redirects: int) -> str:
        location = response.getheader("Location", "")
        if not location or redirects > MAX_REDIRECTS:
            raise RegistryError("too many redirects" if location else "a redirect without Location", where=shown(url))
        target = resolve(url, location)
        require_safe(target, self.origin)
        return target

    def _send(self, method: str, url: str, headers: dict[str, str], body: bytes | Body, nbytes: int) -> HTTPResponse:
        """Send one request on this thread's connection; a closed idle connection is opened again once."""
        parts = urlsplit(url)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        complete = {"User-Agent": "trtspec", "Accept-Encoding": "identity", **headers}
        if callable(body) or body or method in ("POST", "PUT", "PATCH"):
            complete["Content-Length"] = str(nbytes if callable(body) else len(body))
        for is_last in (False, True):
            if self.stopped.is_set():
                raise TransferStopped
            connection, is_reused = self._connection(url_origin(url))
            try:
                return self._request(connection, method, target, body, complete)
            except ssl.SSLCertVerificationError as error:
                connection.close()
                hint = "SSL_CERT_FILE names a file with the certificates of your own authorities"
                raise RegistryError(describe(error), where=shown(url), hint=hint) from None
            except (OSError, HTTPException) as error:
                connection.close()
                if is_last or not is_reused or callable(body):
                    log.info("%s %s: %s", method, shown(url), describe(error))
                    raise Broken(describe(error)) from None
        raise AssertionError("unreachable")

    def _request(
        self, connection: HTTPConnection, method: str, target: str, body: bytes | Body, headers: Mapping[str, str]
    ) -> HTTPResponse:
        try:
            connection.request(method, target, body() if callable(body) else body or None, headers=dict(headers))
        except (BrokenPipeError, ConnectionResetError):
            if not callable(body):
                raise
        # After a broken upload, the registry may have replied before it closed the connection.
        response = connection.getresponse()
        self.has_replied = True
        return response

    def _connection(self, origin: str) -> tuple[HTTPConnection, bool]:
        """Return this thread's connection to an origin, and whether it is already open."""
        mine: dict[str, HTTPConnection] = self._threads.__dict__.setdefault("connections", {})
        if origin not in mine:
            mine[origin] = new_connection(origin, self.patience.read_s)
            with self._lock:
                self._all.append(mine[origin])
        return mine[origin], mine[origin].sock is not None

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[threading.Event]:
        """Shut down this thread's connections at the deadline, so that no slow peer can hold the thread longer."""
        ended, mine = threading.Event(), self._threads.__dict__.setdefault("connections", {})

        def end() -> None:
            ended.set()
            for connection in list(mine.values()):
                shut_down(connection)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield ended
        finally:
            timer.cancel()

    def _skip(self, response: HTTPResponse) -> None:
        """Read the rest of a short body, so that the connection can be used again; otherwise close it."""
        with suppress(OSError, HTTPException, ValueError):
            response.read(MAX_REPLY_BYTES)
        if not response.isclosed():
            self._drop(response)

    def _drop(self, response: HTTPResponse) -> None:
        response.close()
        for connection in self._threads.__dict__.get("connections", {}).values():
            connection.close()


def _read_available(response: HTTPResponse, buffer: memoryview) -> int:
    """Read bytes of a body with at most one system call; return their number, or 0 at the end.

    `HTTPResponse.readinto` would wait for a full buffer without a deadline, and `read1` allocates each piece.
    """
    if response.fp is None or response.chunked or response.length is None:
        data = response.read1(buffer.nbytes)
        buffer[: len(data)] = data
        return len(data)
    count = response.fp.readinto1(buffer[: response.length])
    response.length -= count
    return count


def read_explanation(response: HTTPResponse) -> bytes:
    """Return the beginning of a body that explains a rejection, or b"" if it does not arrive."""
    try:
        return response.read(4096)
    except (OSError, HTTPException, ValueError):
        return b""


def read_from(response: HTTPResponse, pieces: Iterable[memoryview], offset: int) -> Iterator[memoryview]:
    """Yield the bytes from `offset` of a reply to a request for this range; the server may have sent the whole.

    Raises Broken for another range, and if the body is shorter than announced. rclone 1.75 sends a range with the
    status of a whole body, 200.
    """
    given = re.match(r"bytes ([0-9]+)-", response.getheader("Content-Range", ""))
    if (response.status == PARTIAL and given is None) or (given is not None and int(given[1]) != offset):
        raise Broken("the server sent another range than the requested one")
    skipped, missing = 0 if given else offset, response.length or 0
    for piece in pieces:
        missing -= len(piece)
        rest = piece[skipped:]
        skipped -= len(piece) - len(rest)
        if rest:
            yield rest
    if missing > 0:
        raise Broken("the transfer was cut off")


def shut_down(connection: HTTPConnection) -> None:
    """End the reads and writes of a connection, also those in other threads."""
    if open_socket := connection.sock:
        with suppress(OSError):
            open_socket.shutdown(socket.SHUT_RDWR)


def new_connection(origin: str, read_s: float) -> HTTPConnection:
    """Return an unopened connection to an origin, through the proxy of the environment if one is set for it."""
    parts = urlsplit(origin)
    host, port = parts.hostname or "", parts.port
    proxy = "" if is_loopback(host) or proxy_bypass(host) else getproxies().get(parts.scheme, "")
    via = urlsplit(proxy if "://" in proxy else f"//{proxy}") if proxy else None
    near, near_port = (via.hostname or "", via.port or 3128) if via else (host, port)
    connection: HTTPConnection
    if parts.scheme == "https":
        connection = HTTPSConnection(near, near_port, timeout=read_s, context=_tls_context())
    else:
        connection = HTTPConnection(near, near_port, timeout=read_s)
    if via:
        connection.set_tunnel(host, port, _proxy_headers(via.username, via.password))
    return connection


@cache
def _tls_context() -> ssl.SSLContext:
    return ssl.create_default_context()


def _proxy_headers(username: str | None, password: str | None) -> dict[str, str]:
    if username is None:
        return {}
    pair = f"{unquote(username)}:{unquote(password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}


def url_origin(url: str) -> str:
    """Return scheme, host and port of a URL; the default port is omitted."""
    parts = urlsplit(url)
    default = {"http": 80, "https": 443}.get(parts.scheme)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    port = "" if parts.port in (None, default) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def resolve(url: str, location: str) -> str:
    """Return the absolute URL of an address in a reply to `url`; raises RegistryError for a malformed one.

    Bytes that are not allowed in a URL are quoted. http.client decodes headers as Latin-1.
    """
    try:
        return quote(urljoin(url, location), safe=string.punctuation, encoding="latin-1", errors="replace")
    except ValueError:
        raise RegistryError("it refers to a malformed address", where=shown(url)) from None


def require_safe(url: str, registry: str) -> None:
    """Raise RegistryError for a URL that a registry may not refer to.

    It must use https. Only a registry on this machine may refer to plain HTTP, and only on this machine.
    """
    try:
        parts, own = urlsplit(url), urlsplit(registry)
        is_local = is_loopback(parts.hostname or "") and is_loopback(own.hostname or "")
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_local)
        is_safe = is_safe and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a malformed address or port
        is_safe = False
    if not is_safe:
        raise RegistryError("it refers to an address without TLS on another host", where=shown(registry))


def shown(url: str) -> str:
    """Return a URL for messages: without user, query and fragment."""
    parts = urlsplit(url)
    return escape_unprintable(f"{url_origin(url)}{parts.path}")[:300]


def describe(error: BaseException) -> str:
    """Return a description of a failed exchange."""
    if isinstance(error, TimeoutError):
        return "no data arrived in time"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return escape_unprintable(f"the connection failed: {text}")[:300]


def reason(reply: Reply) -> str:
    """Return the status of a reply and the registry's explanation, which is untrusted text."""
    try:
        first = json.loads(reply.body)["errors"][0]
        text = f"{first.get('code', '')}: {first.get('message', '')}".strip(": ")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        text = ""
    status = f"HTTP status {reply.status}"
    return f"{status}, {escape_unprintable(text[:200])}" if text else status


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds of a Retry-After header, as a number or a date; 0 without one."""
    text = headers.get("retry-after", "")
    if re.fullmatch(r"[0-9]{1,6}", text):
        return float(text)
    with suppress(ValueError, TypeError):
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    return 0.0
