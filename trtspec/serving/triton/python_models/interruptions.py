# SPDX-License-Identifier: Apache-2.0
"""Detection of requests that must end early because the client disconnects or the server shuts down.

Triton stops reading a connection while it produces the single response of `generate`, so it does not notice when the
connection closes (libevhtp pauses the request; tritonserver 2.51 and 2.73). It does notice for gRPC, and for
`generate_stream` because writing fails. `generate` also ignores header forwarding, but unknown keys of its JSON object
become parameters of the request. Therefore the proxy adds a random token to the object, and creates a file of that name
when the client disconnects. One thread of the model checks for these files for all requests. The thread of a request
cannot do so, because it waits for the next token, which may never arrive.

At shutdown, Triton lets open requests finish and then exits, without notifying a Python model. The process that stops a
server therefore creates a file next to the repository shortly before, and each model then answers its open requests
with an error.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

CLIENT_PARAMETER = "trtspec_client"
DISCONNECTS_VARIABLE = "TRTSPEC_DEPARTURES"  # in tritonserver's environment: a directory writable only by its user
ENDING_FILE = "ending"  # in the parent directory of the repository
DISCONNECT_POLL_S, DRAIN_POLL_S = 0.2, 0.1  # each check for a disconnection is a message to the server
REPORTED_S = 5.0  # interval of these checks if the client reports itself that it leaves
TOKEN = re.compile(r"[0-9a-f]{32}")
OBJECT = re.compile(rb"[ \t\r\n]*\{[ \t\r\n]*(\}?)")


def add_client_token(body: bytes) -> tuple[str, bytes]:
    """Return a new random token and the body of a `generate` request with the token added.

    A body that is not a JSON object is returned unchanged, for Triton to reject.
    """
    token = secrets.token_hex(16)
    match = OBJECT.match(body)
    if match is None:
        return token, body
    comma = b"" if match[1] else b","
    return token, b'{"%s":"%s"%s' % (CLIENT_PARAMETER.encode(), token.encode(), comma) + body[match.start(1) :]


def mark_disconnected(directory: Path, token: str) -> None:
    flags = os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    os.close(os.open(directory / token, flags, 0o600))


def clear_disconnected(directory: Path, token: str) -> None:
    """Remove the record of a disconnected client, after its request has ended or the wait has timed out."""
    with suppress(FileNotFoundError):
        (directory / token).unlink()


def has_disconnected(directory: str, token: object) -> bool:
    """Return True if the client of a token has disconnected; False for a request without a valid token."""
    return bool(directory and isinstance(token, str) and TOKEN.fullmatch(token)) and os.path.exists(
        f"{directory}/{token}"
    )


class DisconnectCheck:
    """Calls return True if the client of a request has disconnected.

    `is_cancelled` is a message to the server and its reply, at the cost of several events of a stream. It is called at
    most every `period_s` seconds, and every REPORTED_S if `has_left` returns False.

    Attributes:
        has_left: reports whether the client has left a stream of a token channel; None if that is unknown.
    """

    def __init__(self, is_cancelled: Callable[[], bool], period_s: float = 0.0) -> None:
        self.has_left: Callable[[], bool | None] = lambda: None
        self._is_cancelled, self._period_s = is_cancelled, period_s
        self._asked_at = float("-inf")

    def __call__(self) -> bool:
        reported, now = self.has_left(), time.monotonic()
        if reported or now - self._asked_at < (self._period_s if reported is None else REPORTED_S):
            return bool(reported)
        self._asked_at = now
        return self._is_cancelled()


class PollingThread:
    """A daemon thread that calls `poll` every `period_s` seconds until it is closed."""

    def __init__(self, name: str, period_s: float) -> None:
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._run, args=(period_s,), name=name, daemon=True).start()

    def poll(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._closed.set()

    def _run(self, period_s: float) -> None:
        while not self._closed.wait(period_s):
            self.poll()


class Registration:
    def __init__(
        self, is_cancelled: Callable[[], bool], on_left: Callable[[], None], end: Callable[[Registration], None]
    ):
        self._callbacks: tuple[Callable[[], bool], Callable[[], None]] | None = (is_cancelled, on_left)
        self._end = end
        self._lock = threading.Lock()
        self.has_left = False

    def poll(self) -> None:
        """Call `on_left` if the client has disconnected, at most once."""
        with self._lock:
            if self._callbacks is None or self.has_left:
                return
            is_cancelled, on_left = self._callbacks
            self.has_left = is_cancelled()
        if self.has_left:
            on_left()

    def close(self) -> None:
        """Stop watching the request; call it before its last response, because Triton must not be queried later.

        Closing drops the references to the request. They would form a reference cycle, which only a garbage collection
        frees.
        """
        with self._lock:
            self._callbacks = None
        self._end(self)


class CancellationWatcher(PollingThread):
    """Polls open requests for disconnected clients until each registration is closed."""

    def __init__(self) -> None:
        self._watched: set[Registration] = set()
        super().__init__("departures", DISCONNECT_POLL_S)

    def watch(self, is_cancelled: Callable[[], bool], on_left: Callable[[], None]) -> Registration:
        """Watch one request; the polling thread calls `on_left` if `is_cancelled` returns True."""
        watch = Registration(is_cancelled, on_left, self._forget)
        with self._lock:
            self._watched.add(watch)
        return watch

    def poll(self) -> None:
        with self._lock:
            watched = list(self._watched)
        for each in watched:
            try:
                each.poll()
            except Exception:  # an error of one request must not affect the others
                traceback.print_exc()
                each.close()

    def _forget(self, watch: Registration) -> None:
        with self._lock:
            self._watched.discard(watch)


def ending_file(repository: Path) -> Path:
    """Return the path of the file that makes the models of a repository's server end their open requests."""
    return repository.parent / ENDING_FILE


class DrainWatcher(PollingThread):
    """Calls the `end` callback of each open request when the server's ending file appears."""

    def __init__(self, model: str) -> None:
        """Watch the ending file of the server whose model is in the directory `model`."""
        self._file = ending_file(Path(model).parent)
        self._open: dict[object, Callable[[], None]] = {}
        super().__init__("shutdown", DRAIN_POLL_S)

    def add(self, request: object, end: Callable[[], None]) -> None:
        with self._lock:
            self._open[request] = end

    def discard(self, request: object) -> None:
        with self._lock:
            self._open.pop(request, None)

    def poll(self) -> None:
        if self._file.exists():
            with self._lock:
                ends, self._open = [*self._open.values()], {}
            for end in ends:
                end()
