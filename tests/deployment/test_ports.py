# SPDX-License-Identifier: Apache-2.0
"""Ports of deployments: defaults, next free ports, former ports, and ports taken by other processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests._support.deployed import deploy_local
from tests.conftest import Run
from tests.deployment.test_local import STARTER
from tests.serving.triton.artifact import make_echo_artifact
from trtspec.core.errors import DeployError
from trtspec.core.ports import LOOPBACK, bind_refusal
from trtspec.core.processes import group_processes, start_time, wait_until
from trtspec.deployment.base import deployments, stop
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.options import DEFAULT_PORTS, PORTS, DeployOptions
from trtspec.deployment.ports import (
    PortInUse,
    choose_ports,
    conflicting_port,
    former_ports,
    reserved_elsewhere,
    reserved_ports,
)
from trtspec.deployment.process_group import ProcessSpec, read_process_specs
from trtspec.deployment.revision import revision_dir
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.server import find_server

SELF = f"in use by .* \\(process {os.getpid()}\\)"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def taken(port: int) -> socket.socket:
    """Take a port; skip the test if another program of this machine has it."""
    if refused := bind_refusal(port):
        pytest.skip(f"port {port} {refused}")
    return socket.create_server((LOOPBACK, port))


def record(name: str, **fields: object) -> DeploymentRecord:
    base = DeploymentRecord(
        name, "live", "/a", os.getpid(), start_time(os.getpid()), 8000, 8001, 8002, "x", True, openai=9000
    )
    return replace(base, **fields)


def recorded(name: str, **fields: object) -> DeploymentRecord:
    journal = DeploymentJournal(name)
    journal.root.mkdir(parents=True)
    return journal.write(record(name, **fields))


def test_default_ports_match_the_documentation() -> None:
    for port in DEFAULT_PORTS.values():
        taken(port).close()
    ports = choose_ports(DeployOptions())
    assert tuple(ports.values()) == (8000, 8001, 8002, 9000)


def test_occupied_default_port_is_replaced_by_the_next_free_one_and_reported() -> None:
    sentences: list[str] = []
    with taken(8000):
        ports = choose_ports(DeployOptions(on_event=lambda state, what: sentences.append(what)))
    assert tuple(ports.values()) == (8003, 8001, 8002, 9000)
    [sentence] = sentences
    assert sentence.startswith("8000 is in use by ")
    assert sentence.endswith(f"(process {os.getpid()}), using 8003 for http")


def test_occupied_default_ports_are_replaced_deterministically() -> None:
    sockets = [taken(port) for port in DEFAULT_PORTS.values()]
    found = [choose_ports(DeployOptions()) for _ in range(2)]
    for each in sockets:
        each.close()
    assert found[0] == found[1]
    ports = found[0]
    assert tuple(ports.values()) == (8003, 8004, 8005, 9001)


def test_occupied_requested_port_is_an_error_with_its_owner() -> None:
    with socket.create_server((LOOPBACK, 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(DeployError, match=f"grpc port {port} is {SELF}") as caught:
            choose_ports(DeployOptions(ports={"grpc": port}))
    assert caught.value.hint == "choose another with --grpc-port, or omit the option to use the next free port"


def test_port_without_permission_is_not_reported_as_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.core.ports.bind_error", lambda *_: PermissionError(13, "Permission denied"))
    with pytest.raises(DeployError, match="http port 80 cannot be used: Permission denied"):
        choose_ports(DeployOptions(ports={"http": 80}))


def test_former_ports_are_reused_for_the_same_target_and_host() -> None:
    before = record("x", http=18100, grpc=18101, metrics=18102, openai=18103)
    former = former_ports(before, "local", DeployOptions())
    ports = choose_ports(DeployOptions(), former=former)
    assert tuple(ports.values()) == (18100, 18101, 18102, 18103)
    assert former_ports(before, "docker", DeployOptions()) == {}
    assert former_ports(before, "local", DeployOptions(host="127.0.0.2")) == {}


def test_ports_reserved_by_another_deployment_are_not_chosen() -> None:
    recorded("one", state="staged")
    recorded("ended", state="stopped", http=8003)
    assert set(reserved_elsewhere()) == {8000, 8001, 8002, 9000}
    sentences: list[str] = []
    options = DeployOptions(on_event=lambda state, what: sentences.append(what))
    with reserved_ports(DeploymentJournal("two"), options) as ports:
        assert {8000, 8001, 8002, 9000}.isdisjoint(ports.values())
        with reserved_ports(DeploymentJournal("three"), DeployOptions()) as others:
            mine = {*ports.values()}
            assert mine.isdisjoint(others.values())
    assert sentences[0] == f"8000 is reserved for the deployment 'one', using {ports['http']} for http"
    with pytest.raises(DeployError, match="http port 8000 is reserved for the deployment 'one'"):
        choose_ports(DeployOptions(ports={"http": 8000}), reserved=reserved_elsewhere())
    assert set(reserved_elsewhere()) == {8000, 8001, 8002, 9000}, "a reservation ends with its block"


@pytest.fixture(autouse=True)
def directories(state: Path) -> None:
    for name in ("two", "three"):
        (state / "deployments" / name).mkdir(parents=True)


def test_foreign_port_detects_only_listeners_of_other_processes() -> None:
    with socket.create_server((LOOPBACK, 0)) as holder:
        child = ProcessSpec("server", (), "", listens={"metrics": holder.getsockname()[1]})
        found = conflicting_port(child, ())
        assert found is not None
        assert (found.which, f"process {os.getpid()}" in found.message) == ("metrics", True)
        assert conflicting_port(child, [os.getpid()]) is None
    assert conflicting_port(child, (), ended=True) is None


def test_bound_port_without_listener_counts_only_after_the_server_ended() -> None:
    with socket.socket() as bound:
        bound.bind((LOOPBACK, 0))
        child = ProcessSpec("server", (), "", listens={"http": bound.getsockname()[1]})
        assert conflicting_port(child, ()) is None
        assert conflicting_port(child, (), ended=True) is not None


@pytest.fixture
def echo(workplace: Path, monkeypatch: pytest.MonkeyPatch, state: Path):
    """An echo artifact; its deployment is stopped in the end."""
    try:
        find_server()
    except DeployError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("TRTSPEC_STATE", str(state))
    yield make_echo_artifact(workplace / "echo")
    for each in deployments():
        stop(each["name"])


class Thief:
    """Takes a port of a deployment once, as soon as its server runs."""

    def __init__(self, which: str) -> None:
        self.which, self.held, self.told = which, None, []

    def __call__(self, state: str, what: str) -> None:
        self.told.append((state, what))
        if state == "staged" and self.held is None:
            port = getattr(DeploymentJournal("echo").read_existing(), self.which)
            self.held = socket.create_server((LOOPBACK, port))


@pytest.mark.triton
@pytest.mark.parametrize("which", ["http", "grpc", "metrics"])
def test_port_occupied_during_model_load_is_replaced(which: str, echo: Path) -> None:
    thief = Thief(which)
    server = deploy_local(echo, DeployOptions(timeout_s=60, on_event=thief))
    assert thief.held is not None
    port = thief.held.getsockname()[1]
    thief.held.close()
    assert getattr(server.record, which) != port
    client = Client.at(server.record.endpoints["http"])
    assert client.generate({"text_input": "x", "max_tokens": 1})["text_output"] == "x"
    [said] = [what for state, what in thief.told if state == "ports" and "retrying" in what]
    assert said.startswith(f"{which} port {port} is in use by ")


@pytest.mark.triton
def test_requested_port_occupied_during_model_load_fails_the_deployment(echo: Path) -> None:
    port = choose_ports(DeployOptions())["http"]
    thief = Thief("http")
    with pytest.raises(PortInUse, match=f"http port {port} is in use by"):
        deploy_local(echo, DeployOptions(timeout_s=60, on_event=thief, ports={"http": port}))
    assert thief.held is not None
    thief.held.close()
    assert DeploymentJournal("echo").read_existing().state == "failed"


@pytest.mark.triton
def test_concurrent_deployments_get_different_ports(echo: Path, workplace: Path) -> None:
    other = make_echo_artifact(workplace / "second", "second")
    processes = [
        subprocess.Popen([sys.executable, "-c", STARTER, str(each), "detach"], stdout=subprocess.PIPE)
        for each in (echo, other)
    ]
    assert [process.wait(90) for process in processes] == [0, 0]
    records = [DeploymentJournal(name).read_existing() for name in ("echo", "second")]
    assert [each.state for each in records] == ["live", "live"]
    assert len({port for each in records for port in (each.http, each.grpc, each.metrics)}) == 6


@pytest.mark.triton
def test_redeployed_name_reuses_its_ports(echo: Path) -> None:
    port = next(port for port in range(18200, 18300) if not bind_refusal(port))
    first = deploy_local(echo, DeployOptions(timeout_s=60, ports={"http": port})).record
    stop("echo")
    again = deploy_local(echo, DeployOptions(timeout_s=60)).record
    assert (again.http, again.grpc, again.metrics) == (port, first.grpc, first.metrics)


@pytest.mark.triton
def test_restarting_deployment_reports_the_occupied_port_and_deploy_fails(echo: Path, trtspec: Run) -> None:
    served = deploy_local(echo, DeployOptions(timeout_s=60, detach=True)).record
    journal = DeploymentJournal("echo")
    [server] = [
        pid for pid in group_of_server(served) if b"tritonserver\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    os.kill(server, signal.SIGSTOP)  # the supervisor restarts it 2 s later
    os.killpg(os.getpgid(server), signal.SIGKILL)
    stolen = None

    def steal() -> bool:
        nonlocal stolen
        if not bind_refusal(served.grpc):
            stolen = socket.create_server((LOOPBACK, served.grpc))
        return stolen is not None

    assert wait_until(steal, 5, 0.001)
    assert wait_until(lambda: "in use" in journal.read_existing().reason, 15)
    assert f"grpc port {served.grpc} is in use by " in journal.read_existing().reason
    done = trtspec("deploy", echo, "--skip-gate", "lossless", "--json")
    assert done.code == 1
    assert f"'echo' is restarting and does not answer: grpc port {served.grpc} is in use by" in done.err + done.out
    assert stolen is not None
    stolen.close()
    assert wait_until(lambda: journal.read_existing().state == "live", 60)


def group_of_server(served: DeploymentRecord) -> list[int]:
    children = read_process_specs(revision_dir(DeploymentJournal(served.name), served.revision) / "server.json")
    assert {name for child in children for name in child.listens} == {*PORTS[:3]}
    from trtspec.core.processes import session_processes

    return [pid for pid in session_processes(served.pid, served.started) if group_processes(pid)]


@pytest.mark.triton
def test_second_deploy_fails_if_the_live_deployment_does_not_answer(
    echo: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    deploy_local(echo, DeployOptions(timeout_s=60, detach=True))

    def refuse(self: Client, request: object) -> dict[str, object]:
        raise DeployError("the server answered 500: no")

    monkeypatch.setattr(Client, "generate", refuse)
    with pytest.raises(DeployError, match="'echo' is already deployed but does not answer: the server answered 500"):
        deploy_local(echo, DeployOptions(timeout_s=60))
