# SPDX-License-Identifier: Apache-2.0
"""Stopping a real deployment during texts that outlast its drain: every client gets an error in time."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from tests._support.deployed import deploy_local
from tests._support.manifests import resolved
from tests.serving.triton.artifact import ENGINE, make_artifact, rewrite_manifest
from tests.serving.triton.exposed import exported_metrics
from tests.serving.triton.streams import generate_stream
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.core.processes import wait_until
from trtspec.deployment.journal import DeploymentRecord
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.targets.local import stop
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.config import load_config, render_config, set_parameter
from trtspec.serving.triton.python_models.responses import SHUTTING_DOWN
from trtspec.serving.triton.server import find_server
from trtspec.store.artifact import load_manifest

pytestmark = [pytest.mark.triton, pytest.mark.slow]

DRAIN_S = 4
MARGIN_S = 15.0  # on a busy machine
PLACES = 4  # one per client
LONGEST = 20_000  # tokens; too many to finish within the drain
ENDLESS = {"text_input": "abc", "max_tokens": LONGEST - 100, "end_id": -1}
ASKED = {"model": "tiny", "prompt": "abc", "max_tokens": LONGEST - 100, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what each client received, by name, and the duration of the stop in seconds."""
    root = tmp_path_factory.mktemp("drain")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_STATE", str(root / "state"))
        try:
            find_server()
        except DeployError as error:
            pytest.skip(str(error))
        server = deploy_local(make_long_artifact(root / "tiny"), DeployOptions(timeout_s=120, drain_s=DRAIN_S))
        return drained(server.record)


def make_long_artifact(root: Path) -> Path:
    """Create an artifact whose texts can outlast the drain."""
    artifact = make_artifact(root)
    path = artifact / "model_repository" / "tensorrt_llm" / "config.pbtxt"
    config = load_config(path)
    settings = replace(ENGINE, method="none", draft_len=0, max_seq_len=LONGEST, max_batch_size=PLACES)
    set_parameter(config, "engine_settings", settings.as_json())
    set_parameter(config, "draft_model_path", "")
    path.write_text(render_config(config))
    model = artifact / "checkpoints" / "target" / "config.json"
    model.write_text(json.dumps(json.loads(model.read_text()) | {"max_position_embeddings": LONGEST}))
    recipe = resolved("tiny", serving={"openai": True}, engine={"max_seq_len": LONGEST, "max_input_len": 64})
    manifest = load_manifest(artifact).model_copy(update={"recipe": recipe})
    (artifact / "manifest.json").write_bytes(manifest.render())
    rewrite_manifest(artifact)
    return artifact


def drained(record: DeploymentRecord) -> dict[str, Any]:
    begun: Queue[str] = Queue()
    asks = {
        "stream": lambda: triton_stream(record, begun),
        "whole": lambda: triton_whole(record, begun),
        "greedy": lambda: openai_stream(record, begun, temperature=0),
        "sampled": lambda: openai_stream(record, begun, temperature=1),
    }
    with ThreadPoolExecutor(len(asks)) as threads:
        asked = {name: threads.submit(ask) for name, ask in asks.items()}
        try:
            for _ in asks:
                begun.get(timeout=60)
            assert wait_until(lambda: is_full(record), 60)
        finally:
            began = time.monotonic()
            stop(record.name)
            took = time.monotonic() - began
        return {name: each.result(MARGIN_S) for name, each in asked.items()} | {"took": took}


def is_full(record: DeploymentRecord) -> bool:
    """Return whether all slots are busy, including the ensemble's, so that the supervisor's probe must wait."""
    now = exported_metrics(SimpleNamespace(metrics=record.metrics), "tensorrt_llm")
    return now["trtspec_requests_running"] == PLACES and now["trtspec_requests_waiting"] > 0


def triton_stream(record: DeploymentRecord, begun: Queue[str]) -> tuple[int, str]:
    """Return the number of received chunks and the error after them."""
    pieces = 0
    try:
        for _ in generate_stream(Client.at(record.endpoints["http"], 120), ENDLESS):
            if not pieces:
                begun.put("stream")
            pieces += 1
    except TrtspecError as error:
        return pieces, error.message
    return pieces, ""


def triton_whole(record: DeploymentRecord, begun: Queue[str]) -> str:
    begun.put("whole")
    try:
        Client.at(record.endpoints["http"], 120).generate(ENDLESS)
    except TrtspecError as error:
        return error.message
    return ""


def openai_stream(record: DeploymentRecord, begun: Queue[str], **asked: Any) -> list[str]:
    """Return the data of all events; raises if the connection ends within the response."""
    url = f"{record.endpoints['openai']}/completions"
    said: list[str] = []
    with requests.post(url, json=ASKED | asked, stream=True, timeout=120) as answer:
        for line in filter(None, answer.iter_lines()):
            if not said:
                begun.put("openai")
            said.append(line.decode().removeprefix("data: "))
    return said


def test_drain_ends_near_its_deadline(ended: dict[str, Any]) -> None:
    assert DRAIN_S - 2.5 < ended["took"] < DRAIN_S + MARGIN_S


def test_triton_stream_ends_with_a_shutdown_error(ended: dict[str, Any]) -> None:
    pieces, error = ended["stream"]
    assert pieces > 1
    assert SHUTTING_DOWN in error


def test_triton_unary_request_fails_with_a_shutdown_error(ended: dict[str, Any]) -> None:
    assert SHUTTING_DOWN in ended["whole"]


@pytest.mark.parametrize("how", ["greedy", "sampled"])
def test_openai_stream_ends_with_a_shutdown_error_instead_of_done(ended: dict[str, Any], how: str) -> None:
    events = ended[how]
    assert len(events) > 1
    assert "[DONE]" not in events, events[-2:]
    assert json.loads(events[-1])["error"] == {
        "message": SHUTTING_DOWN,
        "type": "server_error",
        "param": None,
        "code": "shutting_down",
    }
