# SPDX-License-Identifier: Apache-2.0
"""Local target: serve an artifact with a tritonserver under a supervisor on this machine.

    staged   its process runs        smoke   a first request was sent            stopped   stopped by command
    loaded   it reports ready        live    that request was answered           failed    failed before it was live
    restarting   it was dead, stopped or hanging, and is being restarted         failed    or restarts did not help

An artifact that is deployed over a live one replaces it as a new revision (`trtspec.deployment.rollout.commands`).

Reported readiness is not sufficient (a dead Python stub leaves it unchanged): only an answered request counts.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.core.errors import DeployError, SmokeTestFailed, StepTimeout, TrtspecError
from trtspec.core.files import private_file
from trtspec.core.processes import (
    die_with_parent,
    process_family,
    sigterm_as_interrupt,
    start_time,
    stop_session,
    tail,
    wait_until,
)
from trtspec.deployment.base import DeployTarget, RunningDeployment
from trtspec.deployment.gateway import gateway_process, returns_ok, wait_for_first_response
from trtspec.deployment.health import SMOKE_REQUEST
from trtspec.deployment.journal import RUNNING, DeploymentJournal, DeploymentRecord, deploy_document, status_document
from trtspec.deployment.log import cause_of_death, rotate
from trtspec.deployment.options import PORTS, DeployOptions
from trtspec.deployment.ports import PortInUse, foreign_port, former_ports, reserved_ports
from trtspec.deployment.process_group import read_process_specs, write_process_specs
from trtspec.deployment.revision import (
    front_url,
    make_record,
    new_token,
    next_revision,
    prepare_revision,
    read_token,
    remove_old_revisions,
    revision_dir,
    server_url,
)
from trtspec.deployment.rollout.commands import promote, rollback, start_rollout
from trtspec.deployment.rollout.state import read_rollout
from trtspec.deployment.server_process import responds
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.hardening import GUESSABLE_TOKEN, accepts_placeholder_token, without_secrets
from trtspec.serving.triton.server import EXIT_TIMEOUT_S, ServerPorts, close_shared_memory, remove_shared_memory
from trtspec.store.artifact import load_manifest

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 10.0
READY_TIMEOUT_S = 2.0
STOP_MARGIN_S = 10.0  # beyond the drain time
NOTE_TIMEOUT_S = 2.0  # until the end of a server is recorded
POLL_S = 0.05
PORTS_EVERY_S = 0.5  # interval of port checks during startup
PORT_TRIES = 4  # starts, each avoiding ports taken by other processes
TARGET_NAME = "local"
DEFAULTS = DeployOptions()


def deploy_local(artifact: Path, options: DeployOptions = DEFAULTS) -> RunningDeployment:
    """Serve an artifact; return after the first answered request. On failure, all processes started are ended.

    If another artifact is live under this name, a rollout replaces it; RolledBack if that fails. Raises StepTimeout on
    a timeout, SmokeTestFailed if the first request fails, DeployError for other failures, and any error of
    `before_live`.
    """
    deadline = time.monotonic() + options.timeout_s
    journal = DeploymentJournal(options.name or load_manifest(artifact).recipe.name)
    with journal.lock():
        record = journal.read()
        if record and record.state_now in RUNNING:
            return start_rollout(journal, record, artifact, options)
        _check_not_running(journal)
        for tries_left in reversed(range(PORT_TRIES)):
            try:
                return _served(journal, artifact, options, deadline)
            except PortInUse as error:
                if error.which in options.ports or not tries_left:
                    raise
                options.on_event("ports", f"{error.message}; retrying with another port")
    raise AssertionError("PORT_TRIES is at least 1")


def _served(journal: DeploymentJournal, artifact: Path, options: DeployOptions, deadline: float) -> LocalDeployment:
    """Start a server and wait for its first answer; raise PortTaken if another process took one of its ports."""
    names = PORTS if load_manifest(artifact).recipe.serving.openai else PORTS[:3]
    former = former_ports(journal.read(), TARGET_NAME, options)

    def on_moved(sentence: str) -> None:
        options.on_event("ports", sentence)

    with reserved_ports(journal, options, names, former, on_moved) as (ports, openai_port):
        server = _start(journal, artifact, ports, openai_port, options)
        with server.stopped_on_failure():
            journal.write(server.record)
            options.on_event(
                "staged", f"tritonserver runs under supervisor process {server.record.pid}; log: {journal.log}"
            )
            server.await_ready(deadline)
            options.on_event("loaded", "the models are loaded")
            server.smoke_test(deadline)
            server.await_entry(deadline)
            if options.wait_warm:
                options.on_event("warm", server.await_warm(deadline))
            if options.before_live:
                options.before_live(server.record.endpoints["http"])
            server.go_live()
            options.on_event("live", f"a request was answered at {server.record.endpoints['http']}")
    return server


@dataclass
class LocalDeployment:
    """A server started by this process."""

    journal: DeploymentJournal
    record: DeploymentRecord
    process: subprocess.Popen[bytes]
    _ports_due: float = 0.0  # time of the next port check

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `deploy --json`."""
        return deploy_document(self.record, self.record.state)

    def wait(self) -> None:
        """Block until the server ends; SIGINT and SIGTERM stop it. Raise DeployError if it ends on its own."""
        try:
            with sigterm_as_interrupt():
                code = self.process.wait()  # unbounded: runs in the foreground until stopped
        except KeyboardInterrupt:
            self.stop()
            raise
        if wait_until(lambda: self.journal.known().state == "stopped", NOTE_TIMEOUT_S):
            return
        record = self.journal.known()
        what = f"failed: {record.reason}" if record.state == "failed" else f"exited with status {code}"
        raise DeployError(f"the server {what}", hint=_log_hint(self.journal))

    def stop(self) -> None:
        """Stop the server."""
        _end(self.journal, self.journal.known(), "stopped", self.record.drain_s + STOP_MARGIN_S)

    def await_ready(self, deadline: float) -> None:
        """Wait until the server reports its models as loaded."""
        url = server_url(self.journal, self.record.revision)
        client = Client.at(url, READY_TIMEOUT_S)
        front = front_url(self.journal, self.record.revision)
        while True:
            is_ready = client.is_ready() and responds(front, READY_TIMEOUT_S)
            self.check_ports(at_once=is_ready)
            if is_ready:
                break
            if (code := self.process.poll()) is not None:
                raise DeployError(f"the server exited with status {code} during startup", hint=_log_hint(self.journal))
            if time.monotonic() >= deadline:
                raise StepTimeout("the server was not ready in time", hint=_log_hint(self.journal))
            time.sleep(POLL_S)
        close_shared_memory(self.record.shm_prefix)
        if accepts_placeholder_token(url, read_token(self.journal.root)):
            raise DeployError(GUESSABLE_TOKEN, hint="deploy it again")
        self.record = self.journal.move(self.record, "loaded")

    def check_ports(self, *, at_once: bool = False) -> None:
        """Raise PortTaken if another process has a port of this deployment; checks every PORTS_EVERY_S."""
        now, ended = time.monotonic(), self.process.poll() is not None
        if not at_once and not ended and now < self._ports_due:
            return
        self._ports_due = now + PORTS_EVERY_S
        place = revision_dir(self.journal, self.record.revision)
        children = [*read_process_specs(place / "server.json"), *read_process_specs(self.journal.children)]
        if taken := foreign_port(children, process_family(self.record.pid), ended=ended):
            raise taken

    def smoke_test(self, deadline: float) -> None:
        """Wait until the server has answered a request for one token."""
        self.record = self.journal.move(self.record, "smoke")
        try:
            _probe(self.record, max(0.1, deadline - time.monotonic()))
        except StepTimeout as error:
            raise StepTimeout(f"the first request: {error.message}", hint=_log_hint(self.journal)) from None
        except DeployError as error:
            raise SmokeTestFailed(f"the first request failed: {error.message}", hint=_log_hint(self.journal)) from None

    def await_entry(self, deadline: float) -> None:
        """Wait until the OpenAI gateway, if there is one, answers."""
        urls = [child.url for child in read_process_specs(self.journal.children)]

        def answer() -> bool:
            self.check_ports()
            return all(map(returns_ok, urls))

        if not wait_until(answer, max(0.1, deadline - time.monotonic())):
            raise StepTimeout("the OpenAI gateway was not ready in time", hint=_log_hint(self.journal))

    def await_warm(self, deadline: float) -> str:
        """Wait until each endpoint has served a first text; return a description."""
        began = time.monotonic()
        entries = wait_for_first_response(self.record, self.journal.root, deadline, lambda: _log_hint(self.journal))
        return f"first text from {' and '.join(entries)} after {time.monotonic() - began:.2f} s"

    def go_live(self) -> None:
        """Record the deployment as live."""
        self.record = self.journal.move(self.record, "live")

    @contextmanager
    def stopped_on_failure(self) -> Iterator[None]:
        """End the server if the block raises any exception."""
        try:
            with sigterm_as_interrupt():
                yield
        except BaseException as error:
            reason = error.message if isinstance(error, TrtspecError) else type(error).__name__
            _end(self.journal, self.record, "failed", EXIT_TIMEOUT_S, reason)
            raise


def status(name: str) -> dict[str, Any]:
    """Return the status of a deployment.

    `state` is live (it just answered a request), unhealthy (it runs but did not answer; `probe` has the error), dead
    (its process is gone unexpectedly; `log` has the last lines), starting, restarting, stopped or failed.
    """
    journal = DeploymentJournal(name)
    record = journal.known()
    document = status_document(journal, record, record.state_now)
    if rollout := read_rollout(journal):
        document["rollout"] = rollout.as_dict()
    if document["state"] == "live":
        document["probe"] = _probe_result(record)
        document["state"] = "live" if document["probe"]["ok"] else "unhealthy"
    elif document["state"] == "dead":
        document |= {"cause": cause_of_death(journal, record), "log": tail(journal.log)}
    elif document["state"] == "failed" and (entries := journal.entries()):
        document["cause"] = str(entries[-1].get("detail", ""))
    return document | {"restarts": record.restarts, "reason": record.reason, "beside": record.beside}


def stop(name: str, timeout_s: float | None = None) -> dict[str, Any]:
    """Stop a deployment, or clean up after one that does not run; `was_running` distinguishes the two."""
    journal = DeploymentJournal(name)
    record = journal.known()
    timeout_s = record.drain_s + STOP_MARGIN_S if timeout_s is None else timeout_s
    was_running = record.is_running
    why = cause_of_death(journal, record) if record.state_now == "dead" else "by trtspec stop"
    record = _end(journal, record, "failed" if record.state == "failed" else "stopped", timeout_s, why)
    return deploy_document(record, record.state) | {"was_running": was_running}


def _start(
    journal: DeploymentJournal, artifact: Path, ports: ServerPorts, openai_port: int, options: DeployOptions
) -> LocalDeployment:
    """Stage a first revision and start its supervisor."""
    revision, former = next_revision(journal), journal.read()
    remove_old_revisions(journal, revision, {former.revision} if former else set())
    drain_s = options.drain_s or EXIT_TIMEOUT_S
    new_token(journal.root)
    prepared = prepare_revision(journal, revision, artifact, ports, drain_s, options.timeout_s, options.manifest)
    record = make_record(journal, revision, artifact, prepared, ports, options.detach, drain_s)
    children = []
    if openai_port:
        record = replace(record, openai=openai_port, openai_host=options.openai_host)
        children = [gateway_process(journal, record)]
    write_process_specs(journal.children, children)
    rotate(journal.log)
    process = _supervise(journal, record)
    record = replace(record, pid=process.pid, started=start_time(process.pid))
    return LocalDeployment(journal, record, process)


def _supervise(journal: DeploymentJournal, record: DeploymentRecord) -> subprocess.Popen[bytes]:
    """Start the supervisor in a new session, logging its output; unless detached, it ends with this process."""
    command = str(os.getpid()), str(start_time(os.getpid())), str(journal.root)
    argv = [
        sys.executable,
        "-m",
        "trtspec.deployment.supervisor",
        journal.name,
        str(record.revision),
        record.shm_prefix,
    ]
    with private_file(journal.log) as output:
        return subprocess.Popen(
            [*argv, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=without_secrets(os.environ),
            start_new_session=True,
            preexec_fn=None if record.detached else die_with_parent(),  # noqa: PLW1509  two system calls, no lock
        )


def _check_not_running(journal: DeploymentJournal) -> None:
    """Raise DeployError if the name's server runs; clean up after a dead one."""
    record = journal.read()
    if record is None:
        return
    if record.is_running:
        raise DeployError(
            f"{record.name!r} is starting under process {record.pid}",
            hint=f"trtspec status {record.name}, or trtspec stop {record.name}",
        )
    is_dead = record.state_now == "dead"
    why = cause_of_death(journal, record) if is_dead else ""
    _end(journal, record, "stopped" if is_dead else record.state, 0.0, why)


def _end(
    journal: DeploymentJournal, record: DeploymentRecord, state: str, timeout_s: float, detail: str = ""
) -> DeploymentRecord:
    stop_session(record.pid, record.started, timeout_s)
    remove_shared_memory(record.shm_prefix)
    return record if record.state == state else journal.move(record, state, detail)


def _probe(record: DeploymentRecord, timeout_s: float) -> None:
    answer = Client.at(record.endpoints["http"], timeout_s).generate(SMOKE_REQUEST)
    if "text_output" not in answer:
        raise DeployError(f"the response lacks text_output, it has {', '.join(sorted(answer))}")


def _probe_result(record: DeploymentRecord) -> dict[str, Any]:
    start = time.monotonic()
    try:
        _probe(record, PROBE_TIMEOUT_S)
        error = None
    except TrtspecError as caught:
        error = caught.message
    if error is None and "openai" in record.endpoints:
        url = record.endpoints["openai"].removesuffix("/v1") + "/health"
        if not responds(url, PROBE_TIMEOUT_S):
            error = f"the OpenAI gateway did not answer at {url}"
    return {"ok": error is None, "seconds": time.monotonic() - start, "error": error}


def _log_hint(journal: DeploymentJournal) -> str:
    return f"last lines of {journal.log}:\n{tail(journal.log)}"


TARGET = DeployTarget(deploy=deploy_local, status=status, stop=stop, promote=promote, rollback=rollback)
