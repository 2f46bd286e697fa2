# SPDX-License-Identifier: Apache-2.0
"""The OpenAI gateway of a deployment: it runs next to the server and requires the given keys."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests._support.deployed import deploy_local
from tests._support.processes import words_of
from tests.serving.triton.artifact import make_artifact, write_manifest
from trtspec.core.errors import DeployError
from trtspec.core.ports import free_ports
from trtspec.core.processes import session_processes, wait_until
from trtspec.deployment import gateway
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.process_group import read_process_specs
from trtspec.deployment.targets.local import LocalDeployment, stop
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.server import find_server

pytestmark = pytest.mark.triton

KEY = "sk-only-for-this-test"
BACK_S = 20.0


EVENTS: dict[str, str] = {}


def note_event(state: str, what: str) -> None:
    EVENTS[state] = what


@pytest.fixture(scope="module")
def port() -> int:
    return free_ports(1)[0]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[LocalDeployment]:
    root = tmp_path_factory.mktemp("openai")
    artifact = make_artifact(root / "tiny")
    write_manifest(artifact, "tiny", openai=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_STATE", str(root / "state"))
        patch.setenv("TRTSPEC_OPENAI_KEYS", f"{KEY},another")
        try:
            find_server()
        except DeployError as error:
            pytest.skip(str(error))
        try:
            options = DeployOptions(timeout_s=120, ports={"openai": port}, wait_warm=True, on_event=note_event)
            yield deploy_local(artifact, options)
        finally:
            stop("tiny", timeout_s=0)


def ask(deployment: LocalDeployment, path: str, body: dict[str, Any] | None = None, key: str = KEY) -> dict[str, Any]:
    url = deployment.record.endpoints["openai"] + path
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urlopen(Request(url, None if body is None else json.dumps(body).encode(), headers), timeout=30) as answer:
        return json.load(answer)


def entry_process(deployment: LocalDeployment) -> int:
    pids = session_processes(deployment.record.pid, deployment.record.started)
    return next((pid for pid in pids if "-m\0trtspec.serving.gateway\0" in words_of(pid)), 0)


def test_gateway_returns_the_same_text_as_the_server(deployment: LocalDeployment, port: int) -> None:
    assert deployment.as_dict()["endpoints"]["openai"] == f"http://127.0.0.1:{port}/v1"
    assert [model["id"] for model in ask(deployment, "/models")["data"]] == ["tiny"]
    asked = {"model": "tiny", "prompt": "abc", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    triton = Client.at(deployment.record.endpoints["http"])
    direct = triton.generate({"text_input": "abc", "max_tokens": 8, "end_id": -1})
    assert ask(deployment, "/completions", asked)["choices"][0]["text"] == direct["text_output"]


def test_warm_event_precedes_live_and_covers_triton_and_openai(deployment: LocalDeployment) -> None:
    assert [*EVENTS][-2:] == ["warm", "live"]
    assert EVENTS["warm"].startswith("first text from Triton and OpenAI after ")


def test_gateway_requires_a_key_and_keys_are_stored_privately(deployment: LocalDeployment) -> None:
    with pytest.raises(HTTPError) as refused:
        ask(deployment, "/models", key="another one")
    assert refused.value.code == 401
    for pid in session_processes(deployment.record.pid, deployment.record.started):
        assert KEY not in Path(f"/proc/{pid}/environ").read_text() + Path(f"/proc/{pid}/cmdline").read_text()
    holders = [path for path in deployment.journal.root.iterdir() if path.is_file() and KEY in path.read_text()]
    assert [(path.name, path.stat().st_mode & 0o777) for path in holders] == [("openai.keys", 0o600)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_gateway_is_restarted_without_restarting_the_server(deployment: LocalDeployment, number: int) -> None:
    assert wait_until(
        lambda: deployment.journal.read_existing().state == "live" and entry_process(deployment) > 0, BACK_S
    )
    process, restarts = entry_process(deployment), deployment.journal.read_existing().restarts
    assert process
    os.kill(process, number)
    url = read_process_specs(deployment.journal.children)[0].url
    assert wait_until(lambda: entry_process(deployment) not in (0, process) and gateway.is_gateway_ready(url), BACK_S)
    assert ask(deployment, "/models")["data"]
    assert deployment.journal.read_existing().restarts == restarts, "the server keeps running"


def test_missing_uvicorn_is_an_error_with_an_install_hint(
    deployment: LocalDeployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DeployError, match="uvicorn, which is not installed") as caught:
        gateway.gateway_process(deployment.journal, deployment.record)
    assert caught.value.hint == "pip install 'trtspec[triton]', or build with serving.openai: false"
