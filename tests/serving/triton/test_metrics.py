# SPDX-License-Identifier: Apache-2.0
"""The metrics of a served model and the times at which they are reported to Triton, without a server."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.serving.triton.fakes import make_pb_utils
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Stats, Update
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.python_models.metrics import EngineMetrics, artifact_method


@pytest.fixture
def args(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "manifest.json").write_text(json.dumps({"recipe": {"speculation": {"method": "ngram"}}}))
    return {"model_name": "tensorrt_llm", "model_repository": str(tmp_path / "model_repository" / "tensorrt_llm")}


@pytest.fixture
def pb_utils() -> Any:
    return make_pb_utils()


def total(pb_utils: Any, *key: str) -> float:
    return sum(pb_utils.exported[key])


def test_metrics_sum_all_requests_and_export_each_update_once(args, pb_utils) -> None:
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES)
    first, second = metrics.text(), metrics.text()
    first.updated(Update((1,), None, Stats(5, 1), queue_s=0.25))
    first.updated(Update((2, 3), None, Stats(5, 3, 4, 1, 1, (1,))))
    metrics._publish()
    first.updated(Update((4, 5, 6), "stop", Stats(5, 6, 8, 3, 2, (2, 1))))
    second.updated(Update((7,), "length", Stats(2, 1), queue_s=0.5))
    metrics.close()
    sums = {name: total(pb_utils, f"trtspec_{name}_total") for name in ("prompt_tokens", "generated_tokens")}
    assert sums == {"prompt_tokens": 7, "generated_tokens": 7}
    drafts = ("drafted_tokens", "accepted_tokens", "decode_steps")
    assert [total(pb_utils, f"trtspec_{name}_total") for name in drafts] == [8, 3, 2]
    by_position = "trtspec_accepted_tokens_by_position_total"
    assert [total(pb_utils, by_position, place) for place in ("1", "2")] == [2, 1]
    requests = {reason: total(pb_utils, "trtspec_requests_total", reason) for reason in known.FINISH_REASONS}
    assert requests == dict.fromkeys(known.FINISH_REASONS, 0) | {"stop": 1, "length": 1}
    assert sorted(pb_utils.exported["trtspec_queue_seconds",]) == [0.25, 0.5]
    assert len(pb_utils.exported["trtspec_time_to_first_token_seconds",]) == 2
    assert len(pb_utils.exported["trtspec_time_per_output_token_seconds",]) == 1, "one token gives no time per token"
    assert len(pb_utils.exported["trtspec_request_duration_seconds",]) == 2
    assert not pb_utils.logged


def test_whole_response_exports_no_time_to_first_token(args, pb_utils) -> None:
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES)
    text = metrics.text()
    text.started()
    text.ended("length", Stats(5, 9))
    metrics.close()
    assert total(pb_utils, "trtspec_generated_tokens_total") == 9
    assert not pb_utils.exported["trtspec_time_to_first_token_seconds",]
    assert not pb_utils.exported["trtspec_time_per_output_token_seconds",]
    assert len(pb_utils.exported["trtspec_request_duration_seconds",]) == 1


def test_failed_requests_are_counted_by_reason(args, pb_utils) -> None:
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES)
    metrics.text().failed(TrtspecError("max_tokens is 0"))
    metrics.text().failed(ValueError("a bug"))
    begun = metrics.text()
    begun.started()
    begun.failed(TrtspecError("the engine gave up"))
    metrics.close()
    assert [total(pb_utils, "trtspec_requests_total", reason) for reason in ("refused", "error")] == [1, 2]
    assert not pb_utils.exported["trtspec_request_duration_seconds",]


def test_running_and_waiting_gauges_prefer_the_engine_counts(args, pb_utils) -> None:
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES)
    texts = [metrics.text() for _ in range(3)]
    texts[0].started()
    metrics._publish()
    gauges = [("trtspec_requests_running",), ("trtspec_requests_waiting",)]
    assert [pb_utils.exported[gauge][-1] for gauge in gauges] == [1, 2]
    knows = EngineMetrics(pb_utils, args, known.FAMILIES, lambda: (7, 8))
    knows._publish()
    assert [pb_utils.exported[gauge][-1] for gauge in gauges] == [7, 8]
    for each in (metrics, knows):
        each.close()


def test_requests_beyond_the_slots_of_an_engine_are_waiting(args, pb_utils) -> None:
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES, slots=2)
    for accepted in (True, True, True, False):
        text = metrics.text()
        if accepted:
            text.handed_over()
    assert metrics._counted() == (2, 2)
    metrics.close()


def test_requests_in_the_queue_of_the_engine_are_waiting(args, pb_utils) -> None:
    queue = [3]
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES, slots=4, engine_queue=lambda: queue[0])
    for _ in range(6):
        metrics.text().handed_over()
    assert metrics._counted() == (3, 3)  # one of the four slots waits, for example for memory
    queue[0] = 0
    assert metrics._counted() == (4, 2)
    queue[0] = 9  # more than are open, because some have just left
    assert metrics._counted() == (0, 6)
    metrics.close()


def test_queue_of_an_engine_that_cannot_be_read_is_logged_once(args, pb_utils) -> None:
    calls = []

    def fail() -> int:
        calls.append(1)
        raise AttributeError("no such queue")

    metrics = EngineMetrics(pb_utils, args, known.FAMILIES, slots=1, engine_queue=fail)
    for _ in range(3):
        metrics.text().handed_over()
    assert [metrics._counted() for _ in range(3)] == [(1, 2)] * 3
    metrics.close()
    assert len(calls) == 1
    assert "the engine's queue cannot be read: AttributeError: no such queue" in pb_utils.logged


def test_fallbacks_and_breaker_state_are_exported(args, pb_utils) -> None:
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES)
    metrics.breaker(is_open=True)
    for reason in ("timeout", "timeout", "error"):
        metrics.fallback(reason)
    metrics.close()
    assert [total(pb_utils, "trtspec_fallbacks_total", reason) for reason in ("timeout", "error")] == [2, 1]
    assert pb_utils.exported["trtspec_breaker_open",][-1] == 1


def test_metrics_export_only_the_selected_families(args, pb_utils) -> None:
    metrics = EngineMetrics(pb_utils, args, known.OF_TEXTS)
    metrics.text().ended("length", Stats(5, 9, 8, 3, 2, (2, 1)))
    metrics.close()
    assert {name for name, *_ in pb_utils.exported} == {family.name for family in known.OF_TEXTS}


def test_metrics_are_exported_from_a_single_thread(args, pb_utils) -> None:
    """Two concurrent calls crash tritonserver 2.51."""
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES)
    callers = set()
    real = metrics._exported.report
    metrics._exported.report = lambda *given: (callers.add(threading.current_thread().name), real(*given))[1]
    threads = [threading.Thread(target=lambda: metrics.text().ended("stop", Stats(1, 2))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    metrics.close()
    assert callers == {"trtspec-metrics"}
    assert total(pb_utils, "trtspec_requests_total", "stop") == 8


def test_triton_without_metrics_is_logged_once_and_ignored(args, pb_utils) -> None:
    del pb_utils.MetricFamily
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES)
    metrics.text().ended("stop", Stats(1, 2))
    metrics.fallback("timeout")
    metrics.close()
    [said] = pb_utils.logged
    assert said.startswith("metrics are disabled for this model: AttributeError")


def test_failing_export_disables_only_the_metrics(args, pb_utils) -> None:
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES)

    def fail(*given: object) -> None:
        raise RuntimeError("Triton takes no more")

    metrics._exported.report = fail
    for _ in range(3):
        metrics.text().ended("stop", Stats(1, 2))
    metrics.close()
    assert pb_utils.logged == ["metrics are disabled for this model: RuntimeError: Triton takes no more"]
    assert not metrics._open
    metrics.text().ended("stop")
    assert not metrics._ended


def test_triton_without_histograms_exports_the_other_metrics(args, pb_utils) -> None:
    del pb_utils.MetricFamily.HISTOGRAM
    metrics = EngineMetrics(pb_utils, args, known.FAMILIES)
    metrics.text().ended("stop", Stats(1, 2))
    metrics.close()
    assert total(pb_utils, "trtspec_requests_total", "stop") == 1
    assert not any(name.endswith("_seconds") for name, *_ in pb_utils.exported)
    assert "trtspec_queue_seconds is not exported: this Triton lacks histograms" in pb_utils.logged


def test_method_label_is_read_from_the_artifact(args, tmp_path: Path) -> None:
    assert artifact_method(args) == "ngram"
    (tmp_path / "manifest.json").write_text("{}")
    assert artifact_method(args) == "unknown"
