# SPDX-License-Identifier: Apache-2.0
"""The fallback for Triton's backend when the vLLM process exits: by itself, killed, or because the model is unloaded.

A script with the worker's protocol replaces vLLM.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serving.triton.fakes import Request, make_pb_utils
from trtspec.core.processes import wait_until

STAND_IN = "trtspec.backends.vllm.stand_in"
CONFIG = {"output": [{"name": "text_output"}]}
# does not answer, but exits on "raise"; its child keeps the pipe open for longer
WORKER = """
import json, subprocess, sys
held = subprocess.Popen(["sleep", "10"]) if {holds_the_pipe} else None
print(json.dumps({{"ready": "1"}}), flush=True)
for line in sys.stdin:
    if json.loads(line).get("prompt") == "raise":
        raise SystemExit(1)
"""


class Ended:
    """Raised by `os._exit` in these tests."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def __call__(self, code: int) -> None:
        self.codes.append(code)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Ended:
    ended = Ended()
    monkeypatch.setattr(os, "_exit", ended)
    return ended


@pytest.fixture(params=[False, True], ids=["alone", "a child holds its pipe"])
def model(
    request: pytest.FixtureRequest, ended: Ended, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A model with a running worker."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", make_pb_utils())
    monkeypatch.delitem(sys.modules, STAND_IN, raising=False)
    module, worker = importlib.import_module(STAND_IN), tmp_path / "worker.py"
    monkeypatch.setattr(module, "find_vllm", lambda: sys.executable)
    monkeypatch.setattr(module, "WORKER", worker)
    worker.write_text(WORKER.format(holds_the_pipe=request.param))
    model = module.TritonPythonModel()
    model.initialize({"model_config": json.dumps(CONFIG), "model_repository": str(tmp_path), "model_version": "1"})
    yield model
    model.finalize()


def ask(model: Any, text: str) -> Request:
    request = Request(text_input=text.encode())
    model.execute([request])
    return request


def errors(request: Request) -> list[str]:
    return [response.error.message for response, _ in request.sender.sent if response.error]


@pytest.mark.parametrize("end", [lambda model: model.worker.kill(), lambda model: ask(model, "raise")])
def test_vllm_exit_fails_open_requests_and_ends_the_stub(end: Any, model: Any, ended: Ended) -> None:
    waiting = [ask(model, "waits"), ask(model, "waits too")]
    end(model)
    assert wait_until(lambda: bool(ended.codes), 30)
    assert ended.codes == [1]
    assert [errors(each) for each in waiting] == [["Error generating stream: vLLM ended: see the server's log"]] * 2


def test_request_after_vllm_exit_returns_an_error(model: Any, ended: Ended) -> None:
    model.worker.kill()
    assert wait_until(lambda: bool(ended.codes), 30)
    assert errors(ask(model, "too late")) == ["Error generating stream: vLLM ended: see the server's log"]


def test_unloaded_model_stops_its_worker_without_ending_the_stub(model: Any, ended: Ended) -> None:
    waiting = ask(model, "waits")
    model.finalize()
    assert wait_until(lambda: bool(waiting.sender.sent), 30)
    assert (model.worker.returncode, ended.codes) == (0, [])
