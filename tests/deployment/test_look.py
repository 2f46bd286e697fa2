# SPDX-License-Identifier: Apache-2.0
"""Health samples of a starting server's processes and of its answers; the test controls both."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from trtspec.core.processes import wait_until
from trtspec.deployment import health
from trtspec.deployment.health import FailureDetector, RequestProbe, StartupProbe, count_progress

TARGET, DRAFT = {(2, 20): "target"}, {(3, 30): "draft"}


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> health.ModelProcesses:
    """Return the processes that run models; the test may change them."""
    found: health.ModelProcesses = {}
    monkeypatch.setattr(health, "group_processes", lambda pid: [pid, *(pid for pid, _ in found)])
    monkeypatch.setattr(health, "model_processes", lambda pids: {**found})
    monkeypatch.setattr(health, "process_state", lambda pid: "S")
    monkeypatch.setattr(health, "group_zombies", lambda pid, program: [])
    return found


def test_model_process_that_ended_during_startup_is_reported_when_ready(
    running: health.ModelProcesses,
) -> None:
    eyes = StartupProbe(1)
    running |= DRAFT
    assert not eyes.sample(is_ready=False).died
    del running[3, 30]
    running |= TARGET
    assert not eyes.sample(is_ready=False).died
    assert FailureDetector().fault(eyes.sample(is_ready=True)) == "the process of draft died"


def test_model_process_without_replacement_during_startup_is_reported_dead(
    running: health.ModelProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not report a process that was killed while loading."""
    judge, eyes = FailureDetector(), StartupProbe(1)
    running |= TARGET | DRAFT
    assert not judge.fault(eyes.sample(is_ready=False))
    del running[3, 30]
    assert not judge.fault(eyes.sample(is_ready=False)), "another process may follow"
    monkeypatch.setattr(health, "GONE_S", 0.0)
    assert judge.fault(eyes.sample(is_ready=False)) == "the process of draft died"


def test_process_that_only_read_a_configuration_is_not_reported_dead(running: health.ModelProcesses) -> None:
    eyes = StartupProbe(1)
    running |= {(9, 90): "draft"}
    eyes.sample(is_ready=False)
    del running[9, 90]
    running |= DRAFT | TARGET
    assert not eyes.sample(is_ready=True).died
    assert eyes.stubs == DRAFT | TARGET, "later probes do not miss properly unloaded models"


def test_zombie_process_not_seen_before_is_reported_after_the_grace_period(
    running: health.ModelProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge, eyes = FailureDetector(), StartupProbe(1)
    running |= TARGET
    dead = [2, 3]  # the target's process is known
    monkeypatch.setattr(health, "group_zombies", lambda pid, program: dead)
    eyes.sample(is_ready=False)
    assert not judge.fault(eyes.sample(is_ready=False)), "the server may still wait for it"
    monkeypatch.setattr(health, "GONE_S", 0.0)
    assert judge.fault(eyes.sample(is_ready=False)) == "the process of a model died"
    dead.remove(3)
    assert not judge.fault(eyes.sample(is_ready=False))


def test_process_stopped_during_startup_is_reported(
    running: health.ModelProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    running |= TARGET
    monkeypatch.setattr(health, "process_state", lambda pid: "T")
    monkeypatch.setattr(health, "process_model", lambda pid: "target" if pid == 2 else "")
    judge, eyes = FailureDetector(stopped_s=0.0), StartupProbe(1)
    assert judge.fault(eyes.sample(is_ready=False)) == "the process of target, tritonserver is stopped"


class Full(BaseHTTPRequestHandler):
    """A server with a full queue that reports its work counters."""

    status, done, questions = 503, 0, 0

    def do_POST(self) -> None:
        type(self).questions += 1
        self._say(self.status, {"text_output": "x"} if self.status == 200 else {"error": "Exceeds maximum queue size"})

    def do_GET(self) -> None:
        assert self.path == "/v2/models/stats"
        self._say(200, statistics(self.done))

    def _say(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def statistics(done: int) -> dict[str, Any]:
    """Return a part of Triton's statistics for a model with this many answers."""
    stats = {"success": {"count": done, "ns": 5}, "fail": {"count": 9, "ns": 5}}
    return {"model_stats": [{"name": "m", "inference_count": 1, "execution_count": 2, "inference_stats": stats}]}


@pytest.fixture
def full() -> Iterator[tuple[type[Full], str]]:
    class Handler(Full):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Handler, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_full_server_is_pending_until_progress_or_an_answer(
    full: tuple[type[Full], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ASK_EVERY_S", 0.01)
    server, url = full
    prober = RequestProbe(url)
    try:
        assert wait_until(lambda: server.questions > 2, 20)
        since = prober.waiting.since
        asked = server.questions
        assert wait_until(lambda: server.questions > asked + 5, 20)
        assert since is not None
        assert (prober.waiting.since, prober.waiting.is_full, prober.refusals) == (since, True, 0)
        server.done += 1
        assert wait_until(lambda: (prober.waiting.since or 0) > since, 20)
        server.status = 200
        assert wait_until(lambda: not prober.waiting.is_full, 20)
    finally:
        prober.close()


def test_progress_counts_executed_and_answered_requests() -> None:
    assert count_progress(statistics(5)) == 7
    document = statistics(5)
    sent = {"success": {"count": 4, "ns": 1}, "fail": {"count": 3, "ns": 1}}
    document["model_stats"][0]["response_stats"] = {"0": sent, "1": sent}
    assert count_progress(document) == 15
    for wrong in ({}, {"model_stats": None}, {"model_stats": [1]}, {"model_stats": [{"execution_count": "x"}]}):
        assert count_progress(wrong) is None
