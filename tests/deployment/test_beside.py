# SPDX-License-Identifier: Apache-2.0
"""Sidecars are restarted with back-off; the test controls the clock."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from dataclasses import replace

import pytest

from trtspec.core.ports import free_ports
from trtspec.core.processes import process_state, wait_until
from trtspec.deployment.journal import DeploymentRecord
from trtspec.deployment.process_group import ProcessGroup, ProcessSpec
from trtspec.deployment.server_process import Sidecar
from trtspec.deployment.targets import local

STAYS = "import time; time.sleep(600)"
WAIT_S = 30


def started(program: str) -> Sidecar:
    return Sidecar(
        ProcessGroup.start(ProcessSpec("entry", (sys.executable, "-S", "-c", program), "http://127.0.0.1:1"))
    )


@pytest.mark.slow
def test_exiting_sidecar_is_restarted_with_capped_exponential_backoff() -> None:
    beside = started("import sys; sys.exit(3)")
    now, waits, pids = 1000.0, [], set()
    for _ in range(7):
        assert beside.running.process.wait(WAIT_S) == 3
        pids.add(beside.running.process.pid)
        said = beside.check(now)
        waits.append(said.removeprefix("entry exited with status 3; restarting "))
        assert beside.check(now) == "", "reported once"
        wait_s = 0.0 if waits[-1] == "now" else float(waits[-1].split()[1])
        if wait_s:
            assert beside.check(now + wait_s - 0.1) == ""
            assert beside.running.process.pid in pids, "not due yet"
            assert beside.check(now + wait_s) == ""
        now += wait_s
        assert beside.running.process.pid not in pids
    beside.running.end(0.0)
    assert waits == ["now", "in 1 s", "in 2 s", "in 4 s", "in 8 s", "in 16 s", "in 30 s"]


@pytest.mark.slow
def test_suspended_sidecar_is_killed_and_restarted() -> None:
    beside = started(STAYS)
    stopped = beside.running.process
    try:
        assert beside.check(1.0) == ""
        os.kill(stopped.pid, signal.SIGSTOP)
        assert wait_until(lambda: process_state(stopped.pid) == "T", WAIT_S)
        assert beside.check(2.0) == "entry is stopped; restarting now"
        assert stopped.poll() is not None
        assert beside.check(2.0) == ""
        assert beside.running.process.poll() is None
        assert beside.check(3.0) == ""
    finally:
        beside.running.end(0.0)


def test_status_is_unhealthy_while_the_gateway_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "PROBE_TIMEOUT_S", 0.5)
    monkeypatch.setattr(local, "request_text", lambda url, timeout_s: None)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        record = DeploymentRecord("x", "live", "x", 1, None, 1, 2, 3, "x_", True, openai=port)
        found = local._probe_result(record)
        assert found["error"] == f"the OpenAI gateway did not answer at http://127.0.0.1:{port}/health"
        assert not found["ok"]
        assert local._probe_result(replace(record, openai=0))["ok"]


ANSWERS = """
import sys, threading, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(int(sys.argv[2])); self.end_headers()
    def log_message(self, *_): pass
server = HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
deadline = time.monotonic() + float(sys.argv[3])
server.timeout = 0.1
while time.monotonic() < deadline: server.handle_request()
while True: EXEC
"""


def answering(status: int, seconds: float, then: str) -> Sidecar:
    """Return a process that answers with a status for some seconds and then executes `then` forever."""
    [port] = free_ports(1)
    program = ANSWERS.replace("EXEC", then)
    argv = (sys.executable, "-S", "-c", program, str(port), str(status), str(seconds))
    return Sidecar.start(ProcessSpec("entry", argv, f"http://127.0.0.1:{port}/health"))


@pytest.mark.slow
@pytest.mark.parametrize("then", ["time.sleep(1)", "pass"])
def test_unresponsive_sidecar_is_restarted(then: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process waits, the other computes like a blocked event loop."""
    monkeypatch.setattr("trtspec.deployment.server_process.SILENT_S", 2.0)
    monkeypatch.setattr("trtspec.deployment.server_process.BLOCKED_S", 4.0)
    beside = answering(200, 3.0, then)
    hung = beside.running.process
    try:
        said = []
        assert wait_until(lambda: bool(said.append(beside.check(time.monotonic())) or said[-1]), WAIT_S)
        assert re.fullmatch(r"entry has not answered for \d+ s; restarting now", said[-1])
        assert hung.poll() is not None
        assert beside.check(time.monotonic()) == ""
        assert beside.running.process.pid != hung.pid
    finally:
        beside.end(0.0)


@pytest.mark.slow
def test_sidecar_that_answers_with_an_error_is_not_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway whose server is restarting is healthy."""
    monkeypatch.setattr("trtspec.deployment.server_process.SILENT_S", 1.0)
    monkeypatch.setattr("trtspec.deployment.server_process.BLOCKED_S", 2.0)
    beside = answering(503, 600.0, "pass")
    try:
        assert not wait_until(lambda: bool(beside.check(time.monotonic())), 6.0)
    finally:
        beside.end(0.0)
