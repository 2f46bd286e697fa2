# SPDX-License-Identifier: Apache-2.0
"""`deploy --name` and `--host`: one artifact served several times, at given addresses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests._support.deployed import deploy_local
from tests.conftest import Run
from tests.deployment.manifests import artifact_of, manifest
from tests.serving.triton.artifact import make_echo_artifact
from trtspec.backends.serving import Launch
from trtspec.core.errors import DeployError
from trtspec.core.ports import bind_error
from trtspec.deployment.base import deployments, stop
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.ports import choose_ports
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.server import ServerPorts, TritonServer, find_server
from trtspec.store.artifact import Artifact

WARNING = (
    "warning: the server has no authentication: any client that can reach {} can send requests and read /metrics; "
    "put a proxy in front of it\n"
)
ELSEWHERE = "127.0.0.2"


class Target:
    """Deployment target that only records its calls."""

    render, rollouts = None, False

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}

    def deploy(self, journal: DeploymentJournal, artifact: Artifact, options: DeployOptions) -> Target:
        self.asked = vars(options)
        return self

    def as_dict(self) -> dict[str, Any]:
        return {"format_version": 1, "name": self.asked["name"], "state": "live", "endpoints": {}, "pid": 7}


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    """A deployment target that ignores gates."""
    found = Target()
    monkeypatch.setattr("trtspec.cli.deploy.os.geteuid", lambda: 1000)
    monkeypatch.setattr("trtspec.deployment.base.find_target", lambda name: found)
    monkeypatch.setattr("trtspec.deployment.base.ensure_gates", lambda *_, **__: True)
    monkeypatch.setattr("trtspec.deployment.base.load_artifact", lambda root, expected: artifact_of(manifest(), root))
    return found


def test_non_loopback_host_causes_a_warning(target: Target, workplace: Path, trtspec: Run) -> None:
    for host, warned in (("0.0.0.0", True), ("10.1.2.3", True), ("127.0.0.2", False), ("127.0.0.1", False)):
        done = trtspec("deploy", "build/tiny", "--name", "one", "--host", host, "--detach", "--json")
        assert (done.code, done.document["name"]) == (0, "one")
        assert (target.asked["name"], target.asked["host"]) == ("one", host)
        assert done.err == (WARNING.format(host) if warned else "")


def test_public_openai_host_leaves_triton_on_loopback(target: Target, workplace: Path, trtspec: Run) -> None:
    done = trtspec("deploy", "build/tiny", "--name", "one", "--openai-host", "0.0.0.0", "--detach", "--json")
    assert (target.asked["host"], target.asked["openai_host"]) == ("127.0.0.1", "0.0.0.0")
    assert "the OpenAI gateway is open to any client that can reach 0.0.0.0: it has no keys" in done.err
    assert "the server has no authentication" not in done.err
    record = DeploymentRecord("x", "live", "/a", 1, 1, 2, 3, 4, "p", True, openai=5, openai_host="10.1.2.3")
    assert (record.endpoints["http"], record.endpoints["openai"]) == ("http://127.0.0.1:2", "http://10.1.2.3:5/v1")


def test_public_host_with_openai_keys_recommends_loopback_for_triton(
    target: Target, workplace: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_OPENAI_KEYS", "secret")
    done = trtspec("deploy", "build/tiny", "--name", "one", "--host", "0.0.0.0", "--detach", "--json")
    assert "--host 127.0.0.1 --openai-host 0.0.0.0 keeps them on loopback" in done.err
    assert "secret" not in done.err


def test_openai_host_is_rejected_for_docker(workplace: Path, trtspec: Run) -> None:
    refused = trtspec("deploy", "build/tiny", "--target", "docker", "--openai-host", "0.0.0.0")
    assert (refused.code, "target docker does not support --openai-host" in refused.err) == (1, True)


@pytest.mark.parametrize(
    "host", ["", "localhost", "::1", "1.2.3", "1.2.3.4:80", "127.0.0.1 ", "224.0.0.1", "255.255.255.255"]
)
def test_invalid_host_is_rejected_before_deployment(host: str, target: Target, trtspec: Run) -> None:
    refused = trtspec("deploy", "build/tiny", "--host", host)
    assert refused.code == 1
    assert "address" in refused.err
    assert "hint: use an IPv4 address of this machine: 127.0.0.1 for local clients only, 0.0.0.0 for all" in refused.err
    assert target.asked == {}


@pytest.mark.parametrize("name", ["", "../x", "A b"])
def test_invalid_deployment_name_is_rejected(name: str, target: Target, trtspec: Run) -> None:
    refused = trtspec("deploy", "build/tiny", "--name", name)
    assert (refused.code, target.asked) == (1, {})
    assert f"{name!r} is not a valid deployment name" in refused.err


def test_address_of_another_machine_is_rejected() -> None:
    with pytest.raises(DeployError, match=r"cannot bind 192\.0\.2\.1: Cannot assign requested address"):
        choose_ports(DeployOptions(host="192.0.2.1"))


def test_port_availability_is_checked_at_the_chosen_address() -> None:
    with socket.create_server((ELSEWHERE, 0)) as taken:
        port = taken.getsockname()[1]
        assert bind_error(port) is None
        assert choose_ports(DeployOptions(ports={"http": port}))["http"] == port
        with pytest.raises(DeployError, match="is in use"):
            choose_ports(DeployOptions(ports={"http": port}, host=ELSEWHERE))


def test_endpoints_replace_the_wildcard_host_with_loopback() -> None:
    record = DeploymentRecord("x", "live", "/a", 1, 1, 2, 3, 4, "p", True, host="10.1.2.3")
    assert record.endpoints == {
        "http": "http://10.1.2.3:2",
        "grpc": "10.1.2.3:3",
        "metrics": "http://10.1.2.3:4/metrics",
    }
    assert replace(record, host="0.0.0.0").endpoints["http"] == "http://127.0.0.1:2"


def test_only_the_first_rank_listens_on_the_requested_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mpirun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    launch = Launch(world_size=2, engines=("tensorrt_llm",))
    command = launch.command(TritonServer(Path("/s"), "PATH"), tmp_path, ServerPorts(1, 2, 3, "0.0.0.0"), "p_")
    middle = command.index(":")
    first, second = ([word for word in part if "-address=" in word] for part in (command[:middle], command[middle:]))
    assert first == [f"--{name}-address=0.0.0.0" for name in ("http", "grpc", "metrics")]
    assert second == [f"--{name}-address=127.0.0.1" for name in ("http", "grpc", "metrics")]


@pytest.fixture
def echo(workplace: Path) -> Iterator[Path]:
    """An echo artifact; its deployments are stopped at the end."""
    try:
        find_server()
    except DeployError as error:
        pytest.skip(str(error))
    yield make_echo_artifact(workplace / "echo")
    for each in deployments():
        stop(each["name"])


@pytest.mark.triton
def test_artifact_is_served_at_two_addresses_at_once(echo: Path, trtspec: Run) -> None:
    for name, host in (("one", "127.0.0.1"), ("two", ELSEWHERE)):
        deploy_local(echo, DeployOptions(name=name, host=host, timeout_s=60))
    found = {each["name"]: each for each in trtspec("ps", "--json").document["deployments"]}
    assert {name: (each["state"], each["host"]) for name, each in found.items()} == {
        "one": ("live", "127.0.0.1"),
        "two": ("live", ELSEWHERE),
    }
    for each in found.values():
        answer = Client.at(each["endpoints"]["http"]).generate({"text_input": "hé", "max_tokens": 1})
        assert answer["text_output"] == "hé"
    assert bind_error(DeploymentJournal("two").read_existing().http) is None, "it listens only at the other address"
    status = trtspec("status", "two", "--json")
    assert (status.code, status.document["probe"]["ok"], status.document["host"]) == (0, True, ELSEWHERE)
    assert "echo starts" in trtspec("logs", "two").out
    assert trtspec("stop", "one").out == "one is stopped\n"
    assert trtspec("status", "two").code == 0
    with pytest.raises(DeployError, match=f"'two' is already deployed at {ELSEWHERE}") as caught:
        deploy_local(echo, DeployOptions(name="two"))
    assert caught.value.hint == f"use --host {ELSEWHERE}, or trtspec stop two first"
