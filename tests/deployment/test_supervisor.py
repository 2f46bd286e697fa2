# SPDX-License-Identifier: Apache-2.0
"""A live deployment whose processes die, stop and hang, on a real tritonserver with an echo model."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests._support.deployed import deploy_local
from tests._support.processes import words_of
from tests.serving.triton.artifact import make_echo_artifact
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.core.ports import free_ports
from trtspec.core.processes import group_processes, process_state, session_processes, start_time, wait_until
from trtspec.deployment.health import count_progress, process_model
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.process_group import ProcessSpec, read_process_specs, write_process_specs
from trtspec.deployment.revision import new_token, revision_dir
from trtspec.deployment.server_process import ManagedServer
from trtspec.deployment.supervisor import Supervisor
from trtspec.deployment.targets.local import status, stop
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.server import find_server

SEEN_S = 5.0  # from a fault to its record
SLACK_S = 15.0  # on a busy machine
BACK_S = 60.0
# One prompt blocks the model forever, another is slow; the log shows when a slow one begins.
FIRST = """
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().item().decode()
            import time
            print(f"asked: {text!a}", flush=True)
            time.sleep({"hang": 3600, "slow": 60, "brief": 2}.get(text, 0))
"""


@pytest.fixture(scope="module")
def live(tmp_path_factory) -> Iterator[Callable[[], DeploymentRecord]]:
    """Return the deployment's record; every test leaves the deployment live."""
    root = tmp_path_factory.mktemp("supervised")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_STATE", str(root / "state"))
        try:
            find_server()
        except DeployError as error:
            pytest.skip(str(error))
        deploy_local(make_echo_artifact(root / "echo", first=FIRST.strip()), DeployOptions(detach=True, timeout_s=60))
        yield DeploymentJournal("echo").read_existing
        stop("echo", timeout_s=0)


def of(record: DeploymentRecord, wanted: str) -> int:
    """Return the process of the server or of a model."""
    pids = session_processes(record.pid, record.started)
    named = {process_model(pid) or words_of(pid).split("\0")[0].rpartition("/")[2]: pid for pid in pids}
    return named[wanted]


def log_of(name: str) -> str:
    return DeploymentJournal(name).log.read_text()


def slow_ones(name: str) -> int:
    """Return the number of slow requests that have begun."""
    return log_of(name).count("asked: 'slow'\n")


@pytest.mark.triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "fault", "reason"),
    [
        ("a dead stub", ("ensemble", signal.SIGKILL), "the process of ensemble died|.* is not healthy.*"),
        ("a stopped stub", ("ensemble", signal.SIGSTOP), "the process of ensemble is stopped"),
        ("a hanging stub", None, "a request for one token has been unanswered for .* s, and no thread is running"),
        ("a stopped server", ("tritonserver", signal.SIGSTOP), "the process of tritonserver is stopped"),
        ("a dead server", ("tritonserver", signal.SIGKILL), "the server exited with status -9"),
    ],
)
def test_fault_is_detected_and_open_requests_end_and_server_recovers(live, what: str, fault, reason: str) -> None:
    record = live()
    before, client = record.restarts, Client.at(record.endpoints["http"], timeout_s=BACK_S)
    with ThreadPoolExecutor(2) as threads:
        if fault:
            asked = slow_ones("echo")
            open_request = threads.submit(client.generate, {"text_input": "slow", "max_tokens": 1})
            assert wait_until(lambda: slow_ones("echo") > asked, BACK_S)
            os.kill(of(record, fault[0]), fault[1])
        else:
            open_request = threads.submit(client.generate, {"text_input": "hang", "max_tokens": 1})
        begun = time.monotonic()
        assert wait_until(lambda: live().restarts == before + 1, SEEN_S + SLACK_S)
        with pytest.raises(TrtspecError, match=r"is not accepting requests|is not healthy"):
            open_request.result(SLACK_S)
        seen_s = time.monotonic() - begun
    assert seen_s < SEEN_S + SLACK_S
    assert re.fullmatch(reason, live().reason), what
    found = status("echo")
    assert (found["restarts"], found["reason"]) == (before + 1, live().reason)
    assert found["state"] in {"restarting", "live"}
    assert wait_until(lambda: live().state == "live", BACK_S)
    assert client.generate({"text_input": "hé", "max_tokens": 1})["text_output"] == "hé"
    entries = DeploymentJournal("echo").entries()[-2:]
    assert [entry["state"] for entry in entries] == ["restarting", "live"]
    assert entries[0]["detail"] == live().reason


@pytest.mark.triton
@pytest.mark.slow
def test_orphaned_lock_crashes_the_next_process_and_the_server_restarts(live, tmp_path: Path) -> None:
    """Triton's behavior: the next process that takes the lock gets boost's lock_exception, which is not caught.

    The fixture `live` is requested only to have a tritonserver.
    """
    deploy_local(make_echo_artifact(tmp_path / "locked", "locked"), DeployOptions(detach=True, timeout_s=BACK_S))
    known = DeploymentJournal("locked").read_existing
    record = known()
    command = [sys.executable, "-m", "tests.serving.triton.orphaned", record.shm_prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BACK_S, check=True)
    assert int(done.stdout) > 0
    assert wait_until(lambda: known().restarts == 1, SEEN_S + SLACK_S)
    assert known().reason in {"the process of ensemble died", "the server exited with status -6"}
    assert "boost::interprocess::lock_exception" in log_of("locked")
    assert wait_until(lambda: known().state == "live", BACK_S)
    client = Client.at(record.endpoints["http"], timeout_s=BACK_S)
    assert client.generate({"text_input": "x", "max_tokens": 1})["text_output"] == "x"
    stop("locked", timeout_s=0)


@pytest.mark.triton
@pytest.mark.slow
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_front_that_ends_or_is_stopped_is_restarted_without_the_server(live, fault: signal.Signals) -> None:
    record = live()
    server, pids = of(record, "tritonserver"), session_processes(record.pid, record.started)
    [front] = [pid for pid in pids if "trtspec.serving.front" in words_of(pid)]
    os.kill(front, fault)
    client = Client.at(record.endpoints["http"], timeout_s=2.0)
    assert wait_until(lambda: process_state(front) in {"", "Z"}, SEEN_S + SLACK_S)
    assert wait_until(client.is_ready, BACK_S)
    assert of(record, "tritonserver") == server
    assert live().restarts == record.restarts
    assert live().beside.startswith("HTTP front ")


@pytest.mark.triton
@pytest.mark.slow
def test_server_progress_count_increases_after_a_request(live) -> None:
    client = Client.at(live().endpoints["http"], timeout_s=BACK_S)
    before = count_progress(client.statistics())
    client.generate({"text_input": "x", "max_tokens": 1})
    assert before is not None
    assert wait_until(lambda: (count_progress(client.statistics()) or 0) > before, SLACK_S)


def is_refused(client: Client) -> bool:
    try:
        client.generate({"text_input": "x", "max_tokens": 1})
    except DeployError as error:
        return "cannot be reached" in error.message or "is not accepting requests" in error.message
    return False


@pytest.mark.triton
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "drain_s", "ends"), [("brief", 30, "brief"), ("slow", 1, "is not accepting requests")]
)
def test_drain_serves_open_requests_until_its_deadline_and_rejects_new_ones(
    live, tmp_path: Path, text: str, drain_s: int, ends: str
) -> None:
    """The fixture `live` is requested only to have a tritonserver."""
    deploy_local(
        make_echo_artifact(tmp_path / "drained", "drained", first=FIRST.strip()),
        DeployOptions(detach=True, drain_s=drain_s),
    )
    record = DeploymentJournal("drained").read_existing()
    client = Client.at(record.endpoints["http"], timeout_s=30)

    def ask() -> str:
        try:
            return str(client.generate({"text_input": text, "max_tokens": 1})["text_output"])
        except DeployError as error:
            return error.message

    with ThreadPoolExecutor(2) as threads:
        asked = threads.submit(ask)
        assert wait_until(lambda: f"asked: {text!a}\n" in log_of("drained"), BACK_S)
        begun = time.monotonic()
        stopping = threads.submit(stop, "drained")
        assert wait_until(lambda: is_refused(client), 20)
        assert ends in asked.result(20)
        assert stopping.result(30)["state"] == "stopped"
    assert time.monotonic() - begun < 45
    assert not session_processes(record.pid, record.started)


FAKE = """
import sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
    def do_POST(self): self.send_response(200); self.end_headers(); self.wfile.write(b'{"text_output": "x"}')
    def log_message(self, *_): pass
if len(sys.argv) > 2: sys.exit(int(sys.argv[2]))
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def journal(tmp_path: Path, monkeypatch) -> DeploymentJournal:
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path / "state"))
    journal = DeploymentJournal("fake")
    revision_dir(journal, 1).mkdir(parents=True)
    journal.log.touch()
    new_token(journal.root)
    journal.write(DeploymentRecord("fake", "live", "x", os.getpid(), None, 1, 2, 3, "trtspec_none_", True, drain_s=1))
    return journal


def fake(name: str = "server", *more: str) -> ProcessSpec:
    [port] = free_ports(1)
    return ProcessSpec(name, (sys.executable, "-c", FAKE, str(port), *more), f"http://127.0.0.1:{port}", start_s=20)


def kept(journal: DeploymentJournal, server: ProcessSpec) -> ManagedServer:
    write_process_specs(revision_dir(journal, 1) / "server.json", [server])
    return ManagedServer(journal.root, revision_dir(journal, 1), "trtspec_none_")


@pytest.mark.slow
def test_supervisor_gives_up_after_repeated_failures_with_the_reason(journal: DeploymentJournal) -> None:
    supervisor = Supervisor(journal, kept(journal, fake("server", "7")))
    supervisor.restarts.at_most, supervisor.restarts.first_s = 2, 0.1
    supervisor.keeper.start()
    assert supervisor._watch() == 1
    record = journal.read_existing()
    assert (record.state, record.restarts) == ("failed", 2)
    assert record.reason == "the server exited with status 7 during startup; gave up after 2 restarts"
    assert [entry["state"] for entry in journal.entries()] == ["live", "restarting", "restarting", "failed"]


@pytest.mark.slow
def test_server_hanging_with_a_full_queue_is_a_fault(journal: DeploymentJournal, monkeypatch) -> None:
    full = FAKE.replace("do_POST(self): self.send_response(200)", "do_POST(self): self.send_response(503)")
    monkeypatch.setattr(sys.modules[__name__], "FAKE", full)
    keeper, deadline = kept(journal, fake()), time.monotonic() + BACK_S
    keeper.start()
    try:
        assert not keeper.until_ready(lambda: False)
        fault = keeper.fault(lambda: time.monotonic() > deadline)
    finally:
        keeper.end(0.0)
    assert re.fullmatch(
        "a request for one token found a full queue without progress for 3 s, and no thread is running", fault
    )


@pytest.mark.slow
def test_sidecar_is_restarted_without_restarting_the_server(journal: DeploymentJournal) -> None:
    supervisor = Supervisor(journal, kept(journal, fake()), [fake("entry")])
    since = journal.read_existing().since
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(supervisor.run)
        assert wait_until(lambda: len(supervisor.running) == 1, 10)
        entry = supervisor.running[0].running.process
        time.sleep(1)
        entry.kill()
        assert wait_until(lambda: supervisor.running[0].running.process.pid != entry.pid, 10)
        assert supervisor.keeper.ended is None
        supervisor.asked.set()
        assert running.result(20) == 0
    assert supervisor.keeper.running
    pids = [supervisor.keeper.running.process.pid, *(each.running.process.pid for each in supervisor.running)]
    assert not any(group_processes(pid) for pid in pids)
    assert (journal.read_existing().restarts, journal.read_existing().since) == (0, since)
    assert journal.read_existing().beside == "entry exited with status -9; restarting now"
    assert [(entry["state"], entry["detail"]) for entry in journal.entries()][1:] == [
        ("live", journal.read_existing().beside)
    ]


def test_supervisor_gives_up_if_the_deploying_command_ended_before_live(journal: DeploymentJournal) -> None:
    """The deploying command was killed during the deployment."""
    gone = subprocess.Popen(["true"])
    started = start_time(gone.pid)
    gone.wait(10)
    journal.move(journal.read_existing(), "smoke")
    supervisor = Supervisor(journal, kept(journal, fake()), command=(gone.pid, started or 0))
    assert supervisor.run() == 1
    assert journal.read_existing().state == "failed"
    assert journal.entries()[-1]["detail"] == "the command that deployed it ended before it was live"
    assert supervisor.keeper.ended is not None


def test_process_specs_are_stored_privately_and_read_back(tmp_path: Path) -> None:
    children = [
        ProcessSpec("server", ["a", "b"], "http://x:1", {"K": "V"}, 3.0),
        ProcessSpec("entry", ["c"], "http://x:2"),
    ]
    write_process_specs(tmp_path / "children.json", children)
    assert (tmp_path / "children.json").stat().st_mode & 0o777 == 0o600
    assert read_process_specs(tmp_path / "children.json") == children
