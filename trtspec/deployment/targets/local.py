# SPDX-License-Identifier: Apache-2.0
"""Local target: serve an artifact with a tritonserver under a supervisor on this machine.

    staged       the server's process runs           restarting   a dead, stopped or hanging server is restarted
    loaded       the server reports ready            stopped      the deployment was stopped by command
    smoke        a first request was answered        failed       the start failed, or restarts did not help
    live         the gates passed

The supervisor starts the server. The deploying command follows the record, evaluates the gates and sets the state to
live. Only an answered request counts, because a server with a dead Python stub still reports ready.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from trtspec.core.errors import DeployError, SmokeTestFailed, StepTimeout, TrtspecError
from trtspec.core.files import private_file
from trtspec.core.http import http_status
from trtspec.core.processes import (
    die_with_parent,
    sigterm_as_interrupt,
    start_time,
    stop_session,
    wait_until,
)
from trtspec.deployment.gateway import gateway_process, is_gateway_ready, wait_for_first_response
from trtspec.deployment.health import request_text
from trtspec.deployment.journal import (
    STARTING,
    SUPERVISOR,
    DeploymentJournal,
    DeploymentRecord,
    RunningDeployment,
    deploy_document,
    status_document,
)
from trtspec.deployment.log import cause_of_death, rotate, tail, tail_hint
from trtspec.deployment.options import PORTS, DeployOptions
from trtspec.deployment.ports import PortInUse, as_port_in_use, former_ports, reserved_ports
from trtspec.deployment.process_group import read_process_specs, write_process_specs
from trtspec.deployment.revision import new_token, next_revision, remove_old_revisions, stage_revision
from trtspec.deployment.target import DeployTarget
from trtspec.serving.triton.hardening import without_secrets
from trtspec.serving.triton.server import EXIT_TIMEOUT_S, remove_shared_memory
from trtspec.store.artifact import Artifact

PROBE_TIMEOUT_S = 10.0
STOP_MARGIN_S = 10.0  # time after the drain time
NOTE_TIMEOUT_S = 2.0  # time limit for recording the end of a server
POLL_S = 0.05
PORT_TRIES = 4  # maximum number of starts, each avoiding ports taken by other processes


def deploy_local(journal: DeploymentJournal, artifact: Artifact, options: DeployOptions) -> LocalDeployment:
    """Serve an artifact; return after the first answered request. On failure, all started processes are ended.

    Raises StepTimeout on a timeout, SmokeTestFailed if the first request fails, DeployError for other failures, and any
    error of `before_live`.
    """
    deadline = time.monotonic() + options.timeout_s
    _check_not_running(journal)
    for tries_left in reversed(range(PORT_TRIES)):
        try:
            return _served(journal, artifact, options, deadline)
        except PortInUse as error:
            if error.which in options.ports or not tries_left:
                raise
            options.on_event("ports", f"{error.message}; retrying with another port")
    raise AssertionError("PORT_TRIES is at least 1")


def _served(journal: DeploymentJournal, artifact: Artifact, options: DeployOptions, deadline: float) -> LocalDeployment:
    """Start a server and wait for its first answer; raises PortInUse if another process took one of its ports."""
    names = PORTS if artifact.recipe.serving.openai else PORTS[:3]
    with reserved_ports(journal, options, names, former_ports(journal.read(), "local", options)) as ports:
        server = _start(journal, artifact, ports, options)
        try:
            with sigterm_as_interrupt():
                journal.write(server.record)
                pid = server.record.pid
                options.on_event("staged", f"tritonserver runs under supervisor process {pid}; log: {journal.log}")
                server.await_start("loaded", deadline, "the server was not ready in time")
                options.on_event("loaded", "the models are loaded")
                unanswered = f"the first request: no answer within {max(0.0, deadline - time.monotonic()):.3g} s"
                server.await_start("smoke", deadline, unanswered)
                server.await_entry(deadline)
                if options.wait_warm:
                    began, record = time.monotonic(), server.record
                    entries = wait_for_first_response(record, journal.root, deadline, lambda: tail_hint(journal))
                    seconds = time.monotonic() - began
                    options.on_event("warm", f"first text from {' and '.join(entries)} after {seconds:.2f} s")
                if options.before_live:
                    options.before_live(server.record.endpoints["http"])
                server.record = journal.move(server.record, "live")
                options.on_event("live", f"a request was answered at {server.record.endpoints['http']}")
        except BaseException as error:
            reason = error.message if isinstance(error, TrtspecError) else type(error).__name__
            _end(journal, journal.read() or server.record, "failed", EXIT_TIMEOUT_S, reason)
            raise
    return server


@dataclass
class LocalDeployment(RunningDeployment):
    process: subprocess.Popen[bytes]

    def wait(self) -> None:
        try:
            with sigterm_as_interrupt():
                code = self.process.wait()  # unbounded: runs in the foreground until stopped
        except KeyboardInterrupt:
            record = self.journal.read_existing()
            _end(self.journal, record, "stopped", self.record.drain_s + STOP_MARGIN_S)
            raise
        if wait_until(lambda: self.journal.read_existing().state == "stopped", NOTE_TIMEOUT_S):
            return
        record = self.journal.read_existing()
        what = f"failed: {record.reason}" if record.state == "failed" else f"exited with status {code}"
        raise DeployError(f"the server {what}", hint=tail_hint(self.journal))

    def await_start(self, state: str, deadline: float, late: str) -> None:
        """Wait until the start has reached a state; after `deadline`, raise StepTimeout with the message `late`."""
        while not self.has_reached(state):
            if time.monotonic() >= deadline:
                raise StepTimeout(late, hint=tail_hint(self.journal))
            time.sleep(POLL_S)

    def has_reached(self, state: str) -> bool:
        """Return True if the start has reached a state; raises the supervisor's error if the start failed."""
        code = self.process.poll()  # before the record, which the supervisor writes before it ends
        self.record = self.journal.read_existing()
        if self.record.state == "failed":
            reason = self.record.reason
            if taken := as_port_in_use(reason):
                raise taken
            code = self.process.wait(EXIT_TIMEOUT_S + STOP_MARGIN_S)
            kind = {each.exit_code: each for each in (StepTimeout, SmokeTestFailed)}.get(code, DeployError)
            raise kind(reason, hint=tail_hint(self.journal))
        if self.record.state not in STARTING:  # another command stopped it
            code = self.process.wait(EXIT_TIMEOUT_S + STOP_MARGIN_S)
        if code is not None:
            raise DeployError(f"the server exited with status {code} during startup", hint=tail_hint(self.journal))
        return STARTING.index(self.record.state) >= STARTING.index(state)

    def await_entry(self, deadline: float) -> None:
        """Wait until the OpenAI gateway, if any, answers; raises StepTimeout after `deadline`."""
        urls = [child.url for child in read_process_specs(self.journal.children)]

        def answer() -> bool:
            return self.has_reached("smoke") and all(map(is_gateway_ready, urls))

        if not wait_until(answer, max(0.1, deadline - time.monotonic())):
            raise StepTimeout("the OpenAI gateway was not ready in time", hint=tail_hint(self.journal))


def status(name: str) -> dict[str, Any]:
    """Return the status document of a deployment.

    `state` is live (the server just answered a request), unhealthy (it runs but did not answer; `probe` has the error),
    dead (its process is gone unexpectedly; `log` has the last lines), starting, restarting, stopped or failed.
    """
    journal = DeploymentJournal(name)
    record = journal.read_existing()
    document = status_document(journal, record, record.state_now)
    if document["state"] == "live":
        document["probe"] = _probe_result(record)
        document["state"] = "live" if document["probe"]["ok"] else "unhealthy"
    elif document["state"] == "dead":
        document |= {"cause": cause_of_death(journal, record), "log": tail(journal.log)}
    elif document["state"] == "failed" and (entries := journal.entries()):
        document["cause"] = str(entries[-1].get("detail", ""))
    return document | {"restarts": record.restarts, "reason": record.reason, "beside": record.beside}


def stop(name: str, timeout_s: float | None = None) -> dict[str, Any]:
    """Stop a deployment, or clean up after a dead one; return its document, where `was_running` distinguishes both."""
    journal = DeploymentJournal(name)
    record = journal.read_existing()
    timeout_s = record.drain_s + STOP_MARGIN_S if timeout_s is None else timeout_s
    was_running = record.is_running
    why = cause_of_death(journal, record) if record.state_now == "dead" else "by trtspec stop"
    record = _end(journal, record, "failed" if record.state == "failed" else "stopped", timeout_s, why)
    return deploy_document(record) | {"was_running": was_running}


def _start(
    journal: DeploymentJournal, artifact: Artifact, ports: Mapping[str, int], options: DeployOptions
) -> LocalDeployment:
    """Stage a new first revision and start its supervisor."""
    revision, former = next_revision(journal), journal.read()
    remove_old_revisions(journal, revision, {former.revision} if former else set())
    new_token(journal.root)
    drain_s = options.drain_s or EXIT_TIMEOUT_S
    record = stage_revision(
        journal, revision, artifact, ports, options.host, drain_s, options.timeout_s, options.detach
    )
    children = []
    if record.openai:
        record = replace(record, openai_host=options.openai_host)
        children = [gateway_process(journal, record)]
    write_process_specs(journal.children, children)
    rotate(journal.log)
    process = _supervise(journal, record)
    record = replace(record, pid=process.pid, started=start_time(process.pid))
    return LocalDeployment(journal, record, process)


def _supervise(journal: DeploymentJournal, record: DeploymentRecord) -> subprocess.Popen[bytes]:
    """Start the supervisor in a new session, logging its output; unless detached, it ends with this process."""
    command = os.getpid(), start_time(os.getpid()), journal.root
    arguments = journal.name, record.revision, record.shm_prefix, *command
    with private_file(journal.log) as output:
        return subprocess.Popen(
            [sys.executable, "-m", SUPERVISOR, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=without_secrets(os.environ),
            start_new_session=True,
            preexec_fn=None if record.detached else die_with_parent(),  # noqa: PLW1509  two system calls, no lock
        )


def _check_not_running(journal: DeploymentJournal) -> None:
    """Raise DeployError if a deployment of this name runs; clean up after a dead one."""
    record = journal.read()
    if record is None:
        return
    if record.is_running:
        hint = f"trtspec status {record.name}, or trtspec stop {record.name}"
        raise DeployError(f"{record.name!r} is starting under process {record.pid}", hint=hint)
    is_dead = record.state_now == "dead"
    why = cause_of_death(journal, record) if is_dead else ""
    _end(journal, record, "stopped" if is_dead else record.state, 0.0, why)


def _end(
    journal: DeploymentJournal, record: DeploymentRecord, state: str, timeout_s: float, detail: str = ""
) -> DeploymentRecord:
    stop_session(record.pid, record.started, timeout_s)
    remove_shared_memory(record.shm_prefix)
    return record if record.state == state else journal.move(record, state, detail)


def _probe_result(record: DeploymentRecord) -> dict[str, Any]:
    start = time.monotonic()
    try:
        request_text(record.endpoints["http"], PROBE_TIMEOUT_S)
        error = None
    except TrtspecError as caught:
        error = caught.message
    if error is None and "openai" in record.endpoints:
        url = record.endpoints["openai"].removesuffix("/v1") + "/health"
        if not http_status(url, PROBE_TIMEOUT_S):
            error = f"the OpenAI gateway did not answer at {url}"
    return {"ok": error is None, "seconds": time.monotonic() - start, "error": error}


TARGET = DeployTarget(deploy=deploy_local, status=status, stop=stop, rollouts=True)
