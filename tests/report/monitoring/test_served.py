# SPDX-License-Identifier: Apache-2.0
"""Queries of the dashboard and the rules on metrics of a real tritonserver, scraped by a real Prometheus.

One model drafts by itself, and two others are a pair. The target is its own draft, so that some drafts are accepted.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.report.monitoring.prometheus import Prometheus, prometheus, promtool
from tests.serving.triton.artifact import ENGINE, SERVING, VOCAB, make_artifact
from tests.serving.triton.exposed import exposition
from tests.serving.triton.serving import Served, serving
from tests.serving.triton.streams import generate_stream
from trtspec.core.errors import DeployError
from trtspec.core.paths import model_repository_dir
from trtspec.core.processes import wait_until
from trtspec.report.monitoring.configuration import RULES, dashboard, scrape_config
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.repository_writer import emit_model

pytestmark = pytest.mark.triton

METHOD = "draft_target"
ROUNDS, STREAMS, TOKENS, DRAFT_LEN = 5, 6, 24, 4
EMBEDDED = known.FAMILIES
ANSWERED = {"requests": 0, "prompt": 0, "generated": 0, "drafted": 0, "accepted": 0}
TENSORS = {
    "prompt": "num_input_tokens",
    "generated": "num_output_tokens",
    "drafted": "total_draft_tokens",
    "accepted": "total_accepted_draft_tokens",
}


def make_models(root: Path) -> Path:
    """Create an artifact with a self-drafting model and a pair; return its model repository."""
    make_artifact(root)
    shutil.rmtree(root / "checkpoints" / "draft")
    (root / "checkpoints" / "draft").symlink_to("target")
    (root / "manifest.json").write_text(json.dumps({"recipe": {"speculation": {"method": METHOD}}}))
    models, shared = root / "model_repository", model_repository_dir()
    plain = {"gpt_model_path": "../../checkpoints/target", "draft_model_path": "", "tokenizer_dir": "../../tokenizer"}
    alone = ENGINE.as_json().replace("draft_target", "none")
    parameters = {**plain, "engine_settings": alone}
    emit_model(models, "tensorrt_llm_draft", SERVING, parameters, source=shared / "tensorrt_llm")
    pair = {"draft_len": DRAFT_LEN, "max_seq_len": 128, "vocab_size": VOCAB}
    emit_model(models, "tensorrt_llm_bls", SERVING, pair)
    return models


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("metrics")
    with serving(root, make_models(root / "artifact")) as server:
        yield server


@pytest.fixture(scope="module")
def watched(served: Served, tmp_path_factory) -> Iterator[Prometheus]:
    """A Prometheus that scraped the server under load; `ANSWERED` counts the responses of `ensemble`."""
    config = scrape_config({"tiny": f"http://127.0.0.1:{served.metrics}/metrics"})
    config |= {"global": {"scrape_interval": "500ms", "evaluation_interval": "1s"}, "rule_files": [str(RULES)]}
    with prometheus(tmp_path_factory.mktemp("prometheus"), config) as running:
        assert wait_until(lambda: bool(running.query("up == 1")), 30)
        for _ in range(ROUNDS):
            work(served)
            time.sleep(1)  # some requests end between two scrapes
        time.sleep(2)  # until the last requests are reported and scraped
        yield running


def work(served: Served) -> None:
    """Send requests to both models on several streams, and one invalid request."""
    asked = [{"text_input": f"prompt {number}", "max_tokens": TOKENS, "end_id": -1} for number in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as pool:
        answers = list(pool.map(served.client.generate, asked))
        drafted = [each | {"num_draft_tokens": DRAFT_LEN} for each in asked]  # explicit, not the adaptive length
        pairs = pool.map(lambda each: list(generate_stream(served.client, each, model="tensorrt_llm_bls")), drafted)
        assert all(events[-1]["num_output_tokens"] == TOKENS for events in pairs)
    for answer in answers:
        ANSWERED["requests"] += 1
        for name, tensor in TENSORS.items():
            ANSWERED[name] += answer[tensor]
    for model in ("ensemble", "tensorrt_llm_bls"):
        with suppress(DeployError):
            served.client.generate({"text_input": "x", "max_tokens": 10**6}, model=model)


def one(watched: Prometheus, expression: str) -> float:
    [series] = watched.query(expression)
    return float(series["value"][1])


def test_metric_counts_match_the_responses(watched: Prometheus) -> None:
    """Requests of the pair to `tensorrt_llm` also count as requests of that model, without drafts."""
    engine = 'model="tensorrt_llm"'
    asked = one(watched, f'sum(trtspec_requests_total{{{engine}, finish_reason!="refused"}})')
    assert asked >= ANSWERED["requests"] == ROUNDS * STREAMS
    pair = 'model="tensorrt_llm_bls"'
    assert one(watched, f'trtspec_requests_total{{{pair}, finish_reason="length"}}') == ROUNDS * STREAMS
    assert one(watched, f'trtspec_requests_total{{{pair}, finish_reason="refused"}}') == ROUNDS
    assert one(watched, f"trtspec_generated_tokens_total{{{pair}}}") == ROUNDS * STREAMS * TOKENS
    assert one(watched, f"trtspec_prompt_tokens_total{{{pair}}}") == ANSWERED["prompt"]
    accepted = {model: one(watched, f"trtspec_accepted_tokens_total{{{model}}}") for model in (engine, pair)}
    assert accepted[engine] == ANSWERED["accepted"] + accepted[pair]
    for model in (engine, pair):
        places = f"sum(trtspec_accepted_tokens_by_position_total{{{model}}})"
        assert one(watched, places) == accepted[model] > 0
    for family in (known.TTFT, known.TPOT, known.DURATION, known.QUEUE):
        assert one(watched, f"{family.name}_count{{{pair}}}") == ROUNDS * STREAMS
        assert one(watched, f"{family.name}_sum{{{pair}}}") > 0


def test_method_is_a_label_and_gauges_return_to_zero(watched: Prometheus) -> None:
    methods = {series["metric"]["method"] for series in watched.query("trtspec_requests_total")}
    assert methods == {METHOD}
    for gauge in ("trtspec_requests_running", "trtspec_requests_waiting", "trtspec_breaker_open"):
        assert [series["value"][1] for series in watched.query(f"sum({gauge})")] == ["0"]


def test_each_model_exports_its_metrics(watched: Prometheus) -> None:
    for model, families in {"tensorrt_llm": EMBEDDED, "tensorrt_llm_bls": known.FAMILIES}.items():
        query = f'group by (__name__) ({{__name__=~"trtspec_.*", model="{model}"}})'
        names = {series["metric"]["__name__"] for series in watched.query(query)}
        expected = {family.name + ("_count" if family.kind == "histogram" else "") for family in families}
        assert {name for name in names if not name.endswith(("_sum", "_bucket"))} == expected


def test_exposition_passes_promtools_linter(served: Served, watched: Prometheus) -> None:
    ours = [line for line in exposition(served).splitlines(keepends=True) if "trtspec_" in line]
    assert promtool("check", "metrics", given="".join(ours)) == ""


PANELS = [
    pytest.param(target["expr"], id=f"{panel['title']}, {target['legendFormat']}")
    for panel in dashboard()["panels"]
    for target in panel["targets"]
]


@pytest.mark.parametrize("expression", PANELS)
def test_every_query_of_the_dashboard_has_data(expression: str, watched: Prometheus) -> None:
    for name, value in {"$__rate_interval": "1m", "$model": ".*", "$instance": ".*"}.items():
        expression = expression.replace(name, value)
    values = [float(series["value"][1]) for series in watched.query(expression)]
    assert [value for value in values if math.isfinite(value)], f"{expression} lacks data"


def test_dashboard_variable_labels_have_values(watched: Prometheus) -> None:
    for label in ("model", "instance"):
        assert watched.get(f"label/{label}/values", **{"match[]": "trtspec_requests_total"})


def test_every_rule_is_evaluated_without_firing(watched: Prometheus) -> None:
    groups: list[dict[str, Any]] = watched.get("rules")["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) == 10
    assert [(rule["name"], rule["health"]) for rule in rules if rule["health"] != "ok"] == []
    assert [rule["name"] for rule in rules if rule.get("state") == "firing"] == []
