# SPDX-License-Identifier: Apache-2.0
"""A deployment from start to end, on a real tritonserver with an echo model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests._support.deployed import deploy_local
from tests.serving.triton.artifact import make_echo_artifact
from trtspec.core.errors import DeployError, GateNotMet, SmokeTestFailed, StepTimeout, TrtspecError
from trtspec.core.ports import LOOPBACK
from trtspec.core.processes import is_alive, session_processes, wait_until
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.ports import choose_ports
from trtspec.deployment.target import find_target
from trtspec.deployment.targets import local
from trtspec.deployment.targets.local import status, stop
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.server import SHARED_MEMORY, find_server

STARTER = """
import sys
from pathlib import Path
from trtspec.deployment.base import serve
from trtspec.deployment.options import DeployOptions
from trtspec.store.artifact import load_artifact
options = DeployOptions(detach=sys.argv[2] == "detach", timeout_s=20)
server = serve(load_artifact(Path(sys.argv[1])), "local", options)
print(server.record.pid, flush=True)
if sys.argv[2] == "wait":
    server.wait()
elif sys.argv[2] == "hang":
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@pytest.fixture(scope="module")
def tritonserver():
    try:
        return find_server()
    except DeployError as error:
        pytest.skip(str(error))


@pytest.fixture
def deploy(tritonserver, tmp_path: Path):
    """Return a function that deploys echo models with different lines; running ones are stopped in the end."""
    names: list[str] = []

    def start(name: str = "echo", before: str = "pass", first: str = "pass", timeout_s: float = 20, **options):
        names.append(name)
        root = tmp_path / name
        if not root.exists():
            make_echo_artifact(root, name, before, first)
        return deploy_local(root, DeployOptions(timeout_s=timeout_s, **options))

    yield start
    for name in {*names}:
        if DeploymentJournal(name).read():
            stop(name, timeout_s=0)


def in_another_process(artifact: Path, how: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(artifact), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    return process, int(process.stdout.readline() or process.communicate(timeout=30)[1])


def states(name: str = "echo") -> list[str]:
    return [entry["state"] for entry in DeploymentJournal(name).entries()]


def leftovers(record) -> list[object]:
    return [*session_processes(record.pid, record.started), *SHARED_MEMORY.glob(f"{record.shm_prefix}*")]


@pytest.mark.triton
def test_local_deployment_lifecycle_from_deploy_to_stop(deploy) -> None:
    told: list[str] = []
    server = deploy(on_event=lambda state, what: told.append(state))
    assert told == ["staged", "loaded", "live"]
    document = server.as_dict()
    assert document == {
        "format_version": 1,
        "name": "echo",
        "state": "live",
        "endpoints": server.record.endpoints,
        "host": LOOPBACK,
        "pid": server.process.pid,
        "revision": 1,
    }
    client = Client.at(server.record.endpoints["http"])
    assert client.generate({"text_input": "hé", "max_tokens": 1})["text_output"] == "hé"

    found = status("echo")
    assert found["probe"] == {"ok": True, "seconds": found["probe"]["seconds"], "error": None}
    assert found | document == found
    again = deploy().as_dict()
    assert again == document, "a served artifact is left unchanged"
    with pytest.raises(DeployError, match=f"http port {server.record.http} is in use"):
        deploy("other", ports={"http": server.record.http})
    assert not (DeploymentJournal("other").log).exists(), "rejected before anything was started"

    assert leftovers(server.record)
    stopped = stop("echo")
    assert (stopped["state"], stopped["was_running"]) == ("stopped", True)
    assert leftovers(server.record) == []
    assert (stop("echo")["was_running"], status("echo")["state"]) == (False, "stopped")
    assert states() == ["staged", "loaded", "smoke", "live", "stopped"]


@pytest.mark.triton
def test_killed_supervisor_is_dead_with_its_log_and_can_be_redeployed(deploy) -> None:
    server = deploy()
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait(5)
    found = status("echo")
    assert found["state"] == "dead"
    assert "Started Metrics Service" in found["log"]
    with pytest.raises(DeployError, match="the server exited with status -9") as caught:
        server.wait()  # unbounded: the server has already ended
    assert "Started Metrics Service" in caught.value.hint
    again = deploy()
    assert leftovers(server.record) == []
    assert again.as_dict()["state"] == "live"


@pytest.mark.triton
def test_killed_supervisor_leaves_no_processes(deploy) -> None:
    server = deploy(detach=True)
    os.kill(server.process.pid, signal.SIGKILL)
    assert wait_until(lambda: not session_processes(server.record.pid, server.record.started), 15)


@pytest.mark.triton
def test_failed_load_shows_the_log_and_leaves_nothing_running(deploy) -> None:
    with pytest.raises(DeployError, match="the server exited with status 1 during startup") as caught:
        deploy(before="raise ValueError('no such weights')")
    assert "ValueError: no such weights" in caught.value.hint
    assert leftovers(DeploymentJournal("echo").read_existing()) == []
    assert states() == ["staged", "failed"]
    assert stop("echo")["state"] == "failed"


@pytest.mark.triton
@pytest.mark.parametrize(
    ("lines", "error", "message"),
    [
        ({"first": "raise ValueError('bad kernel')"}, SmokeTestFailed, "the first request failed: .*bad kernel"),
        ({"first": "os._exit(3)", "timeout_s": 10}, TrtspecError, "the first request"),
        ({"first": "import time; time.sleep(60)", "timeout_s": 10}, StepTimeout, "the first request: no answer within"),
        ({"before": "import time; time.sleep(60)", "timeout_s": 6}, StepTimeout, "the server was not ready in time"),
    ],
    ids=["error", "crash", "hangs", "loads-too-long"],
)
def test_server_that_fails_startup_or_its_first_request_is_stopped(lines, error, message, deploy, monkeypatch) -> None:
    monkeypatch.setattr(local, "EXIT_TIMEOUT_S", 0.2)
    with pytest.raises(error, match=message) as caught:
        deploy(**lines)
    assert f"last lines of {DeploymentJournal('echo').log}:\n" in caught.value.hint
    last = ("Started Metrics Service", "echo starts", "ModelInstanceInitialize: ensemble")  # up to the state it reached
    assert any(line in caught.value.hint for line in last)
    assert leftovers(DeploymentJournal("echo").read_existing()) == []
    assert states()[-1] == "failed"


@pytest.mark.triton
def test_server_with_failed_gates_is_stopped_before_it_is_live(deploy, monkeypatch) -> None:
    monkeypatch.setattr(local, "EXIT_TIMEOUT_S", 0.2)
    answered: list[str] = []

    def judge(url: str) -> None:
        answered.append(Client.at(url).generate({"text_input": "hé", "max_tokens": 1})["text_output"])
        raise GateNotMet("min_speedup: too slow")

    with pytest.raises(GateNotMet, match="too slow"):
        deploy(before_live=judge)
    assert answered == ["hé"]
    assert leftovers(DeploymentJournal("echo").read_existing()) == []
    assert states() == ["staged", "loaded", "smoke", "failed"]


@pytest.mark.triton
def test_foreground_server_ends_when_its_owner_is_killed(tritonserver, tmp_path: Path) -> None:
    owner, pid = in_another_process(make_echo_artifact(tmp_path / "echo"), "hang")
    started = DeploymentJournal("echo").read_existing().started
    assert is_alive(pid, started)
    owner.kill()
    owner.communicate(timeout=30)
    assert wait_until(lambda: not session_processes(pid, started), 10)
    assert status("echo")["state"] == "dead"


@pytest.mark.triton
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_foreground_server_stops_when_its_owner_receives_a_signal(number, tritonserver, tmp_path: Path) -> None:
    owner, _ = in_another_process(make_echo_artifact(tmp_path / "echo"), "wait")
    time.sleep(0.2)
    owner.send_signal(number)
    owner.communicate(timeout=20)
    assert status("echo")["state"] == "stopped"
    assert leftovers(DeploymentJournal("echo").read_existing()) == []


@pytest.mark.triton
def test_detached_server_outlives_its_owner_and_ends_when_stopped(tritonserver, tmp_path: Path) -> None:
    owner, pid = in_another_process(make_echo_artifact(tmp_path / "echo"), "detach")
    owner.communicate(timeout=10)
    assert status("echo")["state"] == "live"
    assert stop("echo")["was_running"]
    assert not is_alive(pid, DeploymentJournal("echo").read_existing().started)


@pytest.mark.triton
def test_external_stop_ends_the_foreground_wait_without_error(tritonserver, tmp_path: Path) -> None:
    owner, _ = in_another_process(make_echo_artifact(tmp_path / "echo"), "wait")
    stop("echo")
    _, errors = owner.communicate(timeout=10)
    assert (owner.returncode, errors) == (0, "")


def test_invalid_duplicate_or_occupied_ports_are_rejected() -> None:
    with pytest.raises(DeployError, match="grpc port 70000 cannot be used"):
        choose_ports(DeployOptions(ports={"grpc": 70000}))
    with pytest.raises(DeployError, match="http port 5000 cannot be used"):
        choose_ports(DeployOptions(ports={"http": 5000, "grpc": 5000}))
    with socket.create_server((LOOPBACK, 0)) as taken, pytest.raises(DeployError, match=r"metrics port \d+ is in use"):
        choose_ports(DeployOptions(ports={"metrics": taken.getsockname()[1]}))


def test_artifact_without_repository_or_manifest_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(TrtspecError, match="manifest"):
        deploy_local(tmp_path)
    make_echo_artifact(tmp_path / "echo")
    (tmp_path / "echo" / "model_repository").rename(tmp_path / "elsewhere")
    with pytest.raises(DeployError, match="the artifact has no model_repository"):
        deploy_local(tmp_path / "echo")


def test_concurrent_deploy_of_the_same_name_is_rejected(tmp_path: Path) -> None:
    make_echo_artifact(tmp_path / "echo")
    with DeploymentJournal("echo").lock(), pytest.raises(DeployError, match="another process is deploying 'echo'"):
        deploy_local(tmp_path / "echo")


def test_unknown_name_error_lists_existing_deployments(state: Path) -> None:
    with pytest.raises(DeployError, match="no deployment 'llama'; known: none"):
        status("llama")
    (state / "deployments" / "lama").mkdir(parents=True)
    (state / "deployments" / "lama" / "state.json").write_text("{}")
    with pytest.raises(DeployError, match="no deployment 'llama'; known: lama") as caught:
        stop("llama")
    assert caught.value.hint == "did you mean 'lama'?"
    with pytest.raises(DeployError, match="the deployment's state cannot be read"):
        status("lama")


@pytest.mark.parametrize("name", ["../x", "", "A", "a/b", "a" * 64])
def test_invalid_deployment_name_is_rejected(name: str) -> None:
    with pytest.raises(DeployError, match="is not a valid deployment name"):
        status(name)


def test_local_target_is_found_and_misspelled_target_gets_a_suggestion() -> None:
    assert find_target("local") is local.TARGET
    with pytest.raises(TrtspecError, match=r"unknown deploy target 'locl'; known: .*local") as caught:
        find_target("locl")
    assert caught.value.hint == "did you mean 'local'?"


def test_journal_truncated_by_a_crash_is_still_readable(state: Path) -> None:
    journal = DeploymentJournal("x")
    journal.root.mkdir(parents=True)
    entry = {"time": 1.0, "state": "staged", "pid": 1, "detail": "", "revision": 1, "artifact": "", "manifest": ""}
    (journal.root / "journal.jsonl").write_text(json.dumps(entry) + '\n{"state": "lo')
    assert journal.entries() == [entry]
