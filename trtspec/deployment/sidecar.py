# SPDX-License-Identifier: Apache-2.0
"""Sidecars of a deployment's server: restarted with back-off when they exit, are stopped or do not answer."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from trtspec.core.processes import is_computing, process_state
from trtspec.deployment.health.policy import RestartPolicy
from trtspec.deployment.ports import foreign_port
from trtspec.deployment.process_group import ProcessGroup
from trtspec.deployment.process_specs import ProcessSpec
from trtspec.serving.triton.client import UNIX, UnixConnection

ASK_EVERY_S = 1.0
SILENT_S = 5.0  # without a response, while no thread computes
BLOCKED_S = 15.0  # without a response, while a thread computes: a blocked event loop, or a busy machine
CHUNK_BYTES = 4096


class HealthProbe:
    """Requests a process's health repeatedly in a thread.

    `silent_since` is the time of the first unanswered request, if any. Any response counts, even one that reports the
    server as not ready, and so does a closed connection, because the event loop is running. `closed_since` is the time
    since which the address refuses connections.
    """

    def __init__(self, url: str) -> None:
        self.silent_since: float | None = None
        self.closed_since: float | None = None
        self._url = url
        self._over = threading.Event()
        threading.Thread(target=self._run, name="health", daemon=True).start()

    def close(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(ASK_EVERY_S):
            now = time.monotonic()
            self.silent_since = self.silent_since or now
            try:
                _ask(self._url, BLOCKED_S)
            except TimeoutError:
                continue
            except (ConnectionRefusedError, FileNotFoundError):
                self.closed_since = self.closed_since or now
            except (OSError, HTTPException):
                self.closed_since = None
            else:
                self.closed_since = None
            self.silent_since = None


def responds(url: str, timeout_s: float) -> bool:
    """Return whether a process sends any response, even an error, within `timeout_s`."""
    try:
        _ask(url, timeout_s)
    except (OSError, HTTPException):
        return False
    return True


def _ask(url: str, timeout_s: float) -> None:
    """Wait for a response; raise OSError or HTTPException."""
    if url.startswith(UNIX):
        connection: HTTPConnection = UnixConnection(url.removeprefix(UNIX), timeout_s)
        path = "/"
    else:
        parts = urlsplit(url)
        connection, path = HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s), parts.path
    try:
        connection.request("GET", path)
        connection.getresponse().read(CHUNK_BYTES)
    finally:
        with suppress(OSError):
            if connection.sock:
                connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()


@dataclass
class Sidecar:
    """One sidecar; the server does not depend on it, so it is restarted indefinitely."""

    running: ProcessGroup
    restarts: RestartPolicy = field(default_factory=lambda: RestartPolicy(came_up=True))
    _due: float | None = None  # time of the pending restart
    _probe: HealthProbe = field(init=False)

    def __post_init__(self) -> None:
        self._probe = HealthProbe(self.running.child.url)

    @classmethod
    def start(cls, child: ProcessSpec) -> Sidecar:
        """Start a process and its health probe."""
        return cls(ProcessGroup.start(child))

    @property
    def ended(self) -> int | None:
        """Return the exit status, None while the process runs."""
        return self.running.process.poll()

    def end(self, drain_s: float) -> None:
        """End the process; it gets `drain_s` seconds for open requests."""
        self._probe.close()
        self.running.end(drain_s)

    def look(self, now: float) -> str:
        """Restart the process if due; return the failure since the last call, "" for none."""
        if self._due is None:
            return self._fault(now)
        if now >= self._due:
            self._due, self.running = None, ProcessGroup.start(self.running.child)
            self._probe = HealthProbe(self.running.child.url)
        return ""

    def _fault(self, now: float) -> str:
        if not (what := self.wrong()):
            return ""
        self._probe.close()
        self.running.end(0.0)
        delay = self.restarts.delay(now) or 0.0
        self._due = now + delay
        if taken := foreign_port([self.running.child], (), ended=True):
            what += f" ({taken.message})"
        return f"{self.running.child.name} {what}; restarting {f'in {delay:g} s' if delay else 'now'}"

    def wrong(self) -> str:
        """Return the current failure of the process, "" for none."""
        pid, now = self.running.process.pid, time.monotonic()
        if (status := self.ended) is not None:
            return f"exited with status {status}"
        if process_state(pid) == "T":
            return "is stopped"
        silent_s = now - (self._probe.silent_since or now)
        if silent_s >= BLOCKED_S or (silent_s >= SILENT_S and not is_computing(pid)):
            return f"has not answered for {silent_s:.0f} s"
        if (since := self._probe.closed_since) is not None and now - since >= self.running.child.start_s:
            return f"has not listened for {now - since:.0f} s"
        return ""
