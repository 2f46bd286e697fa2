# SPDX-License-Identifier: Apache-2.0
"""Serve an artifact on this machine: one tritonserver, watched from its start to its end.

    staged   its process runs        smoke   a first request is under way        stopped   ended when asked to
    loaded   it says it is ready     live    that request was answered           failed    ended on the way to live

A server that says it is ready may be none (a dead Python stub leaves it so): only an answered request counts.
"""

from __future__ import annotations

import logging
import secrets
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.artifacts.manifest import load_manifest
from trtspec.backends.base import find_backend
from trtspec.deploy.address import check_own
from trtspec.deploy.base import BeforeLive, OnEvent, Target
from trtspec.deploy.journal import FORMAT_VERSION, DeploymentJournal, Record
from trtspec.deploy.stage import put_in_place, stage_repository, stand_in_for
from trtspec.errors import DeployError, SmokeTestFailed, StepTimeout, TrtspecError
from trtspec.measure.report import manifest_sha256
from trtspec.system import (
    LOOPBACK,
    free_ports,
    port_in_use,
    sigterm_as_interrupt,
    start_time,
    stop_session,
    tail,
    wait_until,
)
from trtspec.triton.client import Client
from trtspec.triton.server import EXIT_TIMEOUT_S, Ports, find_server, remove_shared_memory, start_server

log = logging.getLogger(__name__)

SMOKE_REQUEST = {"text_input": "Hello", "max_tokens": 1}
PROBE_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = EXIT_TIMEOUT_S + 10.0
NOTE_TIMEOUT_S = 2.0  # between the end of a server and the note of who ended it
POLL_S = 0.05


def deploy_local(
    artifact: Path,
    *,
    name: str | None = None,
    host: str = LOOPBACK,
    http_port: int | None = None,
    grpc_port: int | None = None,
    metrics_port: int | None = None,
    detach: bool = False,
    timeout_s: float = 300.0,
    on_event: OnEvent = lambda state, what: None,
    before_live: BeforeLive = lambda url: None,
) -> LocalDeployment:
    """Start a server for an artifact and return when it answered a request; on any failure nothing is left running.

    Raises StepTimeout after `timeout_s`, SmokeTestFailed where the first request fails, DeployError for the rest, and
    whatever `before_live` raises.
    """
    deadline = time.monotonic() + timeout_s
    journal = DeploymentJournal(name or load_manifest(artifact).recipe.name)
    with journal.lock():
        _check_not_running(journal)
        ports = _choose_ports(http_port, grpc_port, metrics_port, host)
        server = _start(journal, artifact, ports, detach)
        with server.stopped_on_failure():
            journal.write(server.record)
            on_event("staged", f"tritonserver runs as process {server.record.pid}, its log is {journal.log}")
            server.await_ready(deadline)
            on_event("loaded", "the models are loaded")
            server.smoke_test(deadline)
            before_live(server.record.endpoints["http"])
            server.go_live()
            on_event("live", f"a request was answered at {server.record.endpoints['http']}")
    return server


@dataclass
class LocalDeployment:
    """A server that this process started."""

    journal: DeploymentJournal
    record: Record
    process: subprocess.Popen[bytes]

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `deploy --json`."""
        return _document(self.record, self.record.state)

    def wait(self) -> None:
        """Block until the server ends; SIGINT and SIGTERM stop it first, its own death is a DeployError."""
        try:
            with sigterm_as_interrupt():
                code = self.process.wait()  # unbounded: a server in the foreground, as long as its owner wants
        except KeyboardInterrupt:
            self.stop()
            raise
        if not wait_until(lambda: self.journal.known().state == "stopped", NOTE_TIMEOUT_S):
            raise DeployError(f"the server ended by itself with status {code}", hint=_log_hint(self.journal))

    def stop(self) -> None:
        """End the server."""
        _end(self.journal, self.record, "stopped", STOP_TIMEOUT_S)

    def await_ready(self, deadline: float) -> None:
        """Return when the server says that its models are loaded."""
        client = Client.at(self.record.endpoints["http"], timeout_s=2.0)
        while not client.is_ready():
            if (code := self.process.poll()) is not None:
                raise DeployError(f"the server ended with status {code} while it started", hint=_log_hint(self.journal))
            if time.monotonic() >= deadline:
                raise StepTimeout("the server was not ready in time", hint=_log_hint(self.journal))
            time.sleep(POLL_S)
        self.record = self.journal.move(self.record, "loaded")

    def smoke_test(self, deadline: float) -> None:
        """Return when the server has answered a request for one token."""
        self.record = self.journal.move(self.record, "smoke")
        try:
            _probe(self.record, max(0.1, deadline - time.monotonic()))
        except StepTimeout as error:
            raise StepTimeout(f"the first request: {error.message}", hint=_log_hint(self.journal)) from None
        except DeployError as error:
            raise SmokeTestFailed(f"the first request failed: {error.message}", hint=_log_hint(self.journal)) from None

    def go_live(self) -> None:
        """Note that the server may be used."""
        self.record = self.journal.move(self.record, "live")

    @contextmanager
    def stopped_on_failure(self) -> Iterator[None]:
        """End the server where the block does not come to its end, whatever the reason."""
        try:
            with sigterm_as_interrupt():
                yield
        except BaseException as error:
            reason = error.message if isinstance(error, TrtspecError) else type(error).__name__
            _end(self.journal, self.record, "failed", EXIT_TIMEOUT_S, reason)
            raise


def status(name: str) -> dict[str, Any]:
    """Return how a deployment fares.

    `state` is live (it just answered a request), unhealthy (it runs and did not: `probe` says why), dead (it should
    run and does not: `log` holds its last lines), starting, stopped or failed.
    """
    journal = DeploymentJournal(name)
    record = journal.known()
    document = _document(record, record.state_now)
    if document["state"] == "live":
        document["probe"] = _probe_result(record)
        document["state"] = "live" if document["probe"]["ok"] else "unhealthy"
    elif document["state"] == "dead":
        document["log"] = tail(journal.log)
    return document | {"artifact": record.artifact, "manifest": record.manifest, "log_file": str(journal.log)}


def stop(name: str, timeout_s: float = STOP_TIMEOUT_S) -> dict[str, Any]:
    """End a deployment; of one that does not run, remove what it left. `was_running` says which it was."""
    journal = DeploymentJournal(name)
    record = journal.known()
    was_running = record.is_running
    record = _end(journal, record, "failed" if record.state == "failed" else "stopped", timeout_s)
    return _document(record, record.state) | {"was_running": was_running}


def _start(journal: DeploymentJournal, artifact: Path, ports: Ports, detach: bool) -> LocalDeployment:
    shm_prefix = f"trtspec_{secrets.token_hex(8)}_"
    server, manifest = find_server(), load_manifest(artifact)
    serving = find_backend(manifest.backend.name).serving()
    stand_in = stand_in_for(server, serving)
    serving.check_machine(artifact, manifest)
    launch = serving.launch(artifact)
    repository = stage_repository(artifact.absolute(), serving, journal.root / "artifact")
    if stand_in:
        server = put_in_place(stand_in, server, serving.triton_backend, journal.root / "backends", repository)
    command = launch.command(server, repository, ports, shm_prefix)
    log.info("run %s (%s), its output goes to %s", shlex.join(command), server.source, journal.log)
    process = start_server(server, command, journal.log, detach=detach, environment=launch.environment)
    record = Record(
        name=journal.name,
        state="staged",
        artifact=str(artifact.absolute()),
        pid=process.pid,
        started=start_time(process.pid),
        http=ports.http,
        grpc=ports.grpc,
        metrics=ports.metrics,
        shm_prefix=shm_prefix,
        detached=detach,
        manifest=manifest_sha256(artifact),
        backend=manifest.backend.name,
        method=manifest.recipe.speculation.method,
        host=ports.host,
    )
    return LocalDeployment(journal, record, process)


def _check_not_running(journal: DeploymentJournal) -> None:
    """Refuse a name whose server runs; clear away what a dead one left."""
    record = journal.read()
    if record is None:
        return
    if record.is_running:
        raise DeployError(
            f"{record.name!r} is already deployed at {record.endpoints['http']} (process {record.pid})",
            hint=f"trtspec stop {record.name}, or choose another name with --name",
        )
    _end(journal, record, "stopped" if record.state == "live" else record.state, 0.0)


def _choose_ports(http: int | None, grpc: int | None, metrics: int | None, host: str = LOOPBACK) -> Ports:
    """Return the wanted ports and free ones for the rest; a wanted port that is taken is an error."""
    check_own(host)
    wanted = {"http": http, "grpc": grpc, "metrics": metrics}
    given = [port for port in wanted.values() if port is not None]
    for name, port in wanted.items():
        if port is None:
            continue
        if not 0 < port < 65536 or given.count(port) > 1:
            raise DeployError(f"{name} port {port} cannot be used", hint="three different ports from 1 to 65535")
        if port_in_use(port, host):
            raise DeployError(f"{name} port {port} is in use", hint="choose another, or none and a free one is found")
    free = [port for port in free_ports(6, host) if port not in given]
    chosen = [port or free.pop() for port in wanted.values()]
    return Ports(chosen[0], chosen[1], chosen[2], host)


def _end(journal: DeploymentJournal, record: Record, state: str, timeout_s: float, detail: str = "") -> Record:
    stop_session(record.pid, record.started, timeout_s)
    remove_shared_memory(record.shm_prefix)
    return record if record.state == state else journal.move(record, state, detail)


def _probe(record: Record, timeout_s: float) -> None:
    answer = Client.at(record.endpoints["http"], timeout_s).generate(SMOKE_REQUEST)
    if "text_output" not in answer:
        raise DeployError(f"the answer holds no text_output, only {', '.join(sorted(answer))}")


def _probe_result(record: Record) -> dict[str, Any]:
    start = time.monotonic()
    try:
        _probe(record, PROBE_TIMEOUT_S)
        error = None
    except TrtspecError as caught:
        error = caught.message
    return {"ok": error is None, "seconds": time.monotonic() - start, "error": error}


def _document(record: Record, state: str) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "name": record.name,
        "state": state,
        "endpoints": record.endpoints,
        "host": record.host,
        "pid": record.pid,
    }


def _log_hint(journal: DeploymentJournal) -> str:
    return f"the end of {journal.log}:\n{tail(journal.log)}"


TARGET = Target(deploy=deploy_local, status=status, stop=stop)
