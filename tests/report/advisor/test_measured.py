# SPDX-License-Identifier: Apache-2.0
"""Facts from metrics: from a server's text, and from a real Prometheus that scrapes it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.conftest import Run
from tests.report.advisor.serving import serving
from tests.report.monitoring.prometheus import prometheus as running
from trtspec.core.errors import TrtspecError
from trtspec.report.advisor.advice import FACT_OPTIONS, AdvisorFact
from trtspec.report.advisor.metric_facts import QueriedMetrics, measured_facts, metric_sources, scrape
from trtspec.report.monitoring.prometheus import Prometheus


def ours(ended: float) -> str:
    """Return the metrics of a server after a number of finished requests.

    Each has 100 prompt tokens, 40 new tokens, 20 ms per token and 2.5 tokens per step. A drafting model calls
    another model eight times per request.
    """
    text = 'trtspec_requests_running{model="ensemble",method="ngram"} 0\n'
    for model, running_now, requests in (("tensorrt_llm_bls", 3, ended), ("tensorrt_llm", 2, 8 * ended)):
        labels = f'model="{model}",method="draft_target"'
        for reason, part in (("length", 0.75), ("end_id", 0.25)):
            text += f'trtspec_requests_total{{{labels},finish_reason="{reason}"}} {requests * part}\n'
        for name, value in {
            "requests_running": running_now,
            "prompt_tokens_total": 100 * ended,
            "generated_tokens_total": 40 * ended,
            "time_per_output_token_seconds_sum": 0.02 * requests,
            "time_per_output_token_seconds_count": requests,
        }.items():
            text += f"trtspec_{name}{{{labels}}} {value}\n"
    drafts = '{model="tensorrt_llm_bls",method="draft_target"}'
    return (
        text + f"trtspec_accepted_tokens_total{drafts} {24 * ended}\ntrtspec_decode_steps_total{drafts} {16 * ended}\n"
        f"trtspec_drafted_tokens_total{drafts} {48 * ended}\n"
    )


ANSWERS = {"concurrency": 3, "prompt_tokens": 100, "output_tokens": 40, "tpot_ms": 20, "mean_accepted_len": 2.5}
NONE = AdvisorFact(0.0, "")
VLLM = """vllm:num_requests_running{engine="0",model_name="m"} 12.0
vllm:request_generation_tokens_sum{model_name="m"} 900.0
vllm:request_generation_tokens_count{model_name="m"} 3.0
vllm:request_prompt_tokens_sum{model_name="m"} 1500.0
vllm:request_prompt_tokens_count{model_name="m"} 3.0
vllm:time_per_output_token_seconds_sum{model_name="m"} 0.5
vllm:time_per_output_token_seconds_count{model_name="m"} 50.0
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 30.0
vllm:spec_decode_num_drafts_total{model_name="m"} 20.0
"""
TRTLLM = """nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 70
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 2048
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="0"} 0.3
DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{gpu="1"} 0.5
"""


def read(*texts: str) -> dict[str, float]:
    """Return the facts from a server that returns these texts in turn."""
    said = iter([*texts, texts[-1]])
    found = scrape("http://here/metrics", 0, lambda url: next(said).encode())
    return {name: round(each.value, 6) for name, each in found.items()}


def test_facts_of_our_server_come_from_the_bls_model() -> None:
    found = read(ours(10), ours(30))
    assert found.pop("request_rate") > 0
    assert found == ANSWERS


def test_server_without_drafts_has_no_mean_accepted_len() -> None:
    """The server counts steps of one token each, which must not count as an argument against drafting."""
    found = read(*(text.replace(f" {48 * ended}\n", " 0\n") for ended in (10, 30) for text in [ours(ended)]))
    assert "mean_accepted_len" not in found
    assert found["output_tokens"] == 40


def test_facts_come_from_the_change_between_two_scrapes() -> None:
    before = ours(10)
    after = ours(11).replace(" 440\n", " 500\n")  # one request of 100 tokens
    assert read(before, after)["output_tokens"] == 100


def test_metrics_of_vllm_and_tensorrt_llm_are_read() -> None:
    assert read(VLLM) == {
        "concurrency": 12,
        "prompt_tokens": 500,
        "output_tokens": 300,
        "tpot_ms": 10,
        "mean_accepted_len": 2.5,
    }
    assert read(TRTLLM) == {"concurrency": 70, "gpu_utilization": 40}


@pytest.mark.parametrize(
    "text", ["", "hello", "trtspec_requests_running NaN\n", ours(0).replace(" 3\n", " 0\n").replace(" 2\n", " 0\n")]
)
def test_metrics_without_facts_are_an_error(text: str) -> None:
    with pytest.raises(TrtspecError, match="no known metrics found"):
        read(text)


def test_each_metric_source_is_for_a_fact_and_has_one_kind() -> None:
    assert metric_sources().keys() <= FACT_OPTIONS.keys()
    for entries in metric_sources().values():
        for entry in entries:
            assert sum(map(bool, (entry.gauge, entry.mean, entry.rate, entry.ratio))) == 1
            assert bool(entry.ratio) == bool(entry.per)


def test_our_metric_names_are_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    names = {
        name
        for entries in metric_sources().values()
        for each in entries
        for name in (each.gauge, each.rate, each.ratio, each.per, each.where)
    }
    for name in filter(lambda name: name.startswith("trtspec_"), names):
        assert f"| `{name.removesuffix('_sum').removesuffix('_count')}` |" in page


@pytest.mark.slow
def test_prometheus_facts_match_the_text_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real Prometheus scrapes a server that finishes ten requests per second."""
    monkeypatch.setattr("trtspec.report.advisor.metric_facts.WINDOW", "2s")
    started = time.monotonic()
    with serving(lambda path: (200, ours(10 * (time.monotonic() - started)).encode())) as url:
        targets = [{"targets": [urlsplit(url).netloc]}]
        config = {
            "global": {"scrape_interval": "250ms"},
            "scrape_configs": [{"job_name": "a", "static_configs": targets}],
        }
        with running(tmp_path, config) as process:
            base = process._base
            found = wait_for(lambda: measured_facts(QueriedMetrics(Prometheus(base)), base), 8)
            none = QueriedMetrics(Prometheus(base), 'instance="elsewhere"')
            with pytest.raises(TrtspecError, match="no known metrics found"):
                measured_facts(none, base)
    values = {name: each.value for name, each in found.items()}
    assert values.pop("request_rate") == pytest.approx(10, rel=0.2)
    assert values == pytest.approx(ANSWERS, rel=1e-6)


def wait_for(ask: Callable[[], dict[str, AdvisorFact]], rate: float) -> dict[str, AdvisorFact]:
    """Return the facts once Prometheus has enough history for rates."""
    deadline = time.monotonic() + 30
    while True:
        with suppress(TrtspecError):
            if (found := ask()).get("request_rate", NONE).value > rate:
                return found
        assert time.monotonic() < deadline, "Prometheus did not scrape in time"
        time.sleep(0.2)


def test_advise_command_reads_a_server(trtspec: Run) -> None:
    counts: Iterator[int] = iter((10, 30))
    with serving(lambda path: (200, ours(next(counts)).encode())) as url:
        found = trtspec(
            "advise", "--metrics", f"{url}/metrics", "--seconds", 0, "--output-tokens", 300, "--json"
        ).document
    assert found["answers"]["concurrency"] == {"value": 3.0, "from": f"{url}/metrics"}
    assert found["answers"]["output_tokens"] == {"value": 300.0, "from": "told"}
    assert (found["speculate"], found["decided_by"]["name"]) == ("yes", "few-requests")


def test_advise_command_queries_prometheus(trtspec: Run) -> None:
    def answer(path: str) -> tuple[int, bytes]:
        query = parse_qs(urlsplit(path).query)["query"][0]
        values = [{"metric": {}, "value": [0, "90"]}] if "trtspec_requests_running" in query else []
        assert 'job="a"' in query
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": values}}).encode()

    with serving(answer) as url:
        found = trtspec("advise", "--prometheus", url, "--selector", 'job="a"', "--json").document
    assert found["decided_by"]["name"] == "many-requests"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--metrics", "nowhere"), "'nowhere' is not an http(s) URL"),
        (("--metrics", "http://127.0.0.1:1/metrics"), "cannot be reached"),
        (("--prometheus", "http://ada:secret@127.0.0.1:1"), "credentials in a URL are not supported"),
        (("--concurrency", "0"), "Invalid value for '--concurrency'"),
        (("--work", "poetry"), "'poetry' is not one of"),
        (("nosuch.yaml",), "nosuch.yaml"),
    ],
)
def test_invalid_arguments_are_rejected(
    workplace: Path, trtspec: Run, arguments: tuple[str, ...], message: str
) -> None:
    outcome = trtspec("advise", *arguments)
    assert (outcome.code, outcome.out) == (1, "")
    assert message in outcome.err
