# SPDX-License-Identifier: Apache-2.0
"""One server of a deployment and its sidecars: start, supervision, restart and shutdown.

A sidecar, such as the server's HTTP front, is restarted with back-off when it exits, is stopped or does not answer.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtspec.core.errors import DeployError, SmokeTestFailed, StepTimeout
from trtspec.core.files import private_directory
from trtspec.core.http import http_request, http_status, split_url
from trtspec.core.processes import is_computing, process_family, process_state
from trtspec.deployment.health import (
    READY_TIMEOUT_S,
    REFUSALS,
    STOPPED_S,
    FailureDetector,
    LivenessProbe,
    RequestProbe,
    RestartPolicy,
    StartupProbe,
)
from trtspec.deployment.options import client_host
from trtspec.deployment.ports import conflicting_port
from trtspec.deployment.process_group import ProcessGroup, ProcessSpec, read_process_specs
from trtspec.deployment.revision import SOCKETS, TOKEN_PLACEHOLDER, read_token
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.hardening import GUESSABLE_TOKEN, accepts_placeholder_token, scrub_token
from trtspec.serving.triton.names import DISCONNECTS
from trtspec.serving.triton.names import SOCKETS as SOCKET_NAMES
from trtspec.serving.triton.python_models.interruptions import ending_file
from trtspec.serving.triton.server import close_shared_memory, remove_shared_memory
from trtspec.store.artifact_paths import REPOSITORY

LOOK_EVERY_S, POLL_S = 0.25, 0.05
ASK_EVERY_S = 1.0
SILENT_S = 5.0  # time limit without a response while no thread computes
BLOCKED_S = 15.0  # time limit without a response while a thread computes: a blocked event loop, or a busy machine
FLUSH_S = 6.0  # time for the front to end; a second more than its own limit


class HealthProbe:
    """Requests a process's health URL repeatedly in a thread.

    Attributes:
        silent_since: time of the first unanswered request, or None. Any response counts, even one that reports the
            server as not ready. A closed connection counts too, because the event loop is running.
        closed_since: time since which the address refuses connections, or None.
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
                with http_request(*split_url(self._url), timeout_s=BLOCKED_S):
                    pass
            except TimeoutError:
                continue
            except (ConnectionRefusedError, FileNotFoundError):
                self.closed_since = self.closed_since or now
            except OSError:
                self.closed_since = None
            else:
                self.closed_since = None
            self.silent_since = None


@dataclass
class Sidecar:
    """A sidecar with its health probe; it is restarted indefinitely, because the server does not depend on it."""

    running: ProcessGroup
    restarts: RestartPolicy = field(default_factory=lambda: RestartPolicy(came_up=True))
    _due: float | None = None  # time of the pending restart
    _probe: HealthProbe = field(init=False)

    def __post_init__(self) -> None:
        self._probe = HealthProbe(self.running.child.url)

    @classmethod
    def start(cls, child: ProcessSpec) -> Sidecar:
        """Start a sidecar process and its health probe."""
        return cls(ProcessGroup.start(child))

    @property
    def ended(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        return self.running.process.poll()

    def end(self, drain_s: float) -> None:
        """End the process; it has `drain_s` seconds for open requests."""
        self._probe.close()
        self.running.end(drain_s)

    def check(self, now: float) -> str:
        """Restart the process if a restart is due; return a failure found since the last call, or ""."""
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
        if taken := conflicting_port(self.running.child, (), ended=True):
            what += f" ({taken.message})"
        return f"{self.running.child.name} {what}; restarting {f'in {delay:g} s' if delay else 'now'}"

    def wrong(self) -> str:
        """Return a description of the process's current failure, or ""."""
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


ShouldStop = Callable[[], bool]  # called on every iteration; returns True to stop waiting


@dataclass
class ManagedServer:
    """A tritonserver and its HTTP front; `place` is the directory of the revision, `root` of the deployment."""

    root: Path
    place: Path
    shm_prefix: str
    server: ProcessSpec = field(init=False)  # set by `start`
    running: ProcessGroup | None = field(default=None, init=False)
    front: Sidecar | None = field(default=None, init=False)  # keeps running while the server restarts
    _sockets: int | None = field(default=None, init=False)  # descriptor of the socket directory
    _starting: StartupProbe = field(init=False)  # observes the processes of the last start

    def start(self) -> None:
        """Start the server and, unless it is running, the front; the token is removed from the command line."""
        self._ending.unlink(missing_ok=True)
        self.server, *front = read_process_specs(self.place / "server.json")
        token, sockets = read_token(self.root), self._socket_directory()
        if front and self.front is None:
            self.front = Sidecar.start(front[0])
        argv = [word.replace(TOKEN_PLACEHOLDER, token).replace(SOCKETS, sockets) for word in self.server.argv]
        self.running = ProcessGroup.start(replace(self.server, argv=argv))
        self._starting = StartupProbe(self.running.process.pid)
        threading.Thread(target=scrub_token, args=(self.running.process, token), daemon=True).start()

    def _socket_directory(self) -> str:
        """Return a path of the socket directory that is short enough for a socket address (108 bytes).

        Removes the last server's sockets, because the server does not remove them itself.
        """
        for name in SOCKET_NAMES.values():
            (self.place / name).unlink(missing_ok=True)
        for left in private_directory(self.place / DISCONNECTS).iterdir():
            left.unlink(missing_ok=True)
        if self._sockets is None:
            self._sockets = os.open(self.place, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/{os.getpid()}/fd/{self._sockets}"

    @property
    def _ending(self) -> Path:
        return ending_file(self.place / "served" / REPOSITORY)

    def _announce_end(self) -> None:
        with suppress(OSError):  # a full disk or a deleted revision: requests end without the message
            self._ending.touch()

    @property
    def ended(self) -> int | None:
        """Return the server's exit status, or None while it runs."""
        assert self.running is not None
        return self.running.process.poll()

    def end(self, drain_s: float) -> None:
        """End the server, then its front, so that clients can read the remaining responses."""
        self.end_server(drain_s)
        if self.front is not None:
            self.front.end(min(drain_s, FLUSH_S))
        if self._sockets is not None:
            os.close(self._sockets)
            self._sockets = None

    def end_server(self, drain_s: float) -> None:
        """End the server; open requests have `drain_s` seconds, and then get an error."""
        if self.running is not None:
            self.running.end(drain_s, self._announce_end)
        remove_shared_memory(self.shm_prefix)

    def fault(self, over: ShouldStop, stopped_s: float = STOPPED_S) -> str:
        """Wait for a failure of the running server and return its description; "" if `over` returns True first.

        A process that is stopped for `stopped_s` seconds counts as a failure.
        """
        assert self.running is not None
        judge = FailureDetector(stopped_s)
        probe = LivenessProbe(self.running.process.pid, self.server.url, self._starting.stubs)
        try:
            while not over():
                if fault := judge.fault(probe.sample(self.ended)):
                    return fault
                time.sleep(LOOK_EVERY_S)
            return ""
        finally:
            probe.close()

    def until_ready(self, over: ShouldStop, stopped_s: float = STOPPED_S) -> None:
        """Wait until the server and its front answer or `over` returns True; raises TrtspecError if the start fails."""
        client, judge = Client.at(self.server.url, READY_TIMEOUT_S), FailureDetector(stopped_s)
        deadline, due = time.monotonic() + self.server.start_s, 0.0
        while not over():
            is_ready = client.is_ready() and http_status(self._client_url, READY_TIMEOUT_S) > 0
            if is_ready or time.monotonic() >= due:
                due = time.monotonic() + LOOK_EVERY_S
                if fault := self._start_fault(judge, is_ready=is_ready):
                    raise DeployError(fault)
            if is_ready:
                close_shared_memory(self.shm_prefix)
                if self.is_open():
                    raise DeployError(GUESSABLE_TOKEN)
                return
            if time.monotonic() >= deadline:
                raise StepTimeout(f"the server was not ready within {self.server.start_s:.0f} s of its start")
            time.sleep(POLL_S)

    def is_open(self) -> bool:
        """Return True if the server's control APIs accept a token that anyone can guess."""
        return accepts_placeholder_token(self.server.url, read_token(self.root))

    def until_answered(self, over: ShouldStop, stopped_s: float = STOPPED_S) -> None:
        """Wait until the ready server has sent a text through its front, or `over` returns True.

        Raises SmokeTestFailed if a request fails REFUSALS times, and other TrtspecErrors if the start fails.
        """
        limit_s, judge = self.server.start_s, FailureDetector(stopped_s)
        deadline, probe = time.monotonic() + limit_s, RequestProbe(self._client_url, limit_s, at_once=True)
        try:
            while not over() and not probe.answered.wait(LOOK_EVERY_S):
                fault = self._start_fault(judge, is_ready=True)
                if fault or probe.refusals >= REFUSALS:
                    raise SmokeTestFailed(f"the first request failed: {fault or probe.said}")
                if time.monotonic() >= deadline:
                    raise StepTimeout(f"the first request: no answer within {limit_s:.0f} s")
        finally:
            probe.close()

    @property
    def _client_url(self) -> str:
        """Return the URL by which clients reach the server through its front."""
        if self.front is None:
            return self.server.url
        child = self.front.running.child
        return f"http://{client_host(child.host)}:{child.listens['http']}"

    def _start_fault(self, judge: FailureDetector, *, is_ready: bool) -> str:
        """Return a failure of the server's processes, or ""; raises DeployError if the server exited or lost a port."""
        ours, front = process_family(os.getpid()), self.front
        taken = conflicting_port(self.server, ours, ended=self.ended is not None)
        if not taken and front is not None:
            taken = conflicting_port(front.running.child, ours, ended=front.ended is not None)
        if taken:
            raise taken
        if (status := self.ended) is not None:
            raise DeployError(f"the server exited with status {status} during startup")
        return judge.fault(self._starting.sample(is_ready=is_ready))
