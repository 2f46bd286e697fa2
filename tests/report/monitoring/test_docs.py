# SPDX-License-Identifier: Apache-2.0
"""The metrics table of docs/metrics.md matches the code, and its alerts match the rules."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.serving.triton.fakes import make_pb_utils
from trtspec.report.monitoring.configuration import rules
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.python_models.metrics import FAMILIES, MetricSpec

PAGE = (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()
ROWS = [
    [cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if line.startswith("| `trtspec_")
]
BLS = (*known.OF_TEXTS, *known.OF_QUEUE, *known.OF_DRAFTS, *known.OF_STEPS, *known.OF_POSITIONS, *known.OF_FALLBACKS)


def listed(backend: str) -> set[str]:
    return {row[0].strip("`") for row in ROWS if backend in row[5].split(", ")}


def names(families: Iterable[MetricSpec]) -> set[str]:
    return {family.name for family in families}


def test_metrics_table_matches_the_registered_metrics() -> None:
    expected = [
        [f"`{each.name}`", each.kind, ", ".join(f"`{label}`" for label in each.labels), each.unit, each.description]
        for each in FAMILIES
    ]
    assert sorted(row[:5] for row in ROWS) == sorted(expected)


@pytest.mark.parametrize(
    ("backend", "code"),
    {
        "embedded": "backends.embedded.served_model",
        "llmapi": "backends.llmapi.served_model",
        "sglang": "backends.sglang.served_model",
        "edge_llm": "backends.edge_llm.served_model",
        "vllm": "backends.vllm.stand_in",
    }.items(),
)
def test_metrics_listed_for_a_backend_match_its_exports(
    backend: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", make_pb_utils())
    model = importlib.import_module(f"trtspec.{code}")
    sys.modules.pop(f"trtspec.{code}")  # imports the stub of this test
    told = model.METRICS if hasattr(model, "METRICS") else model.TritonPythonModel.METRICS
    assert names(told) == listed(backend)


def test_bls_model_exports_every_metric() -> None:
    assert listed("tensorrt_llm") == names(BLS) == names(FAMILIES)


def test_documented_alerts_match_the_rules() -> None:
    alerts = {rule["alert"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule}
    assert set(re.findall(r"^\| `(Trtspec\w+)`", PAGE, re.MULTILINE)) == alerts


@pytest.mark.parametrize("backend", ["llmapi", "sglang", "edge_llm", "vllm"])
@pytest.mark.parametrize("alert", ["TrtspecNoTokens", "TrtspecQueueGrowing"])
def test_alerts_on_load_use_metrics_that_the_backend_exports(backend: str, alert: str) -> None:
    """An alert without data never fires, and nobody notices."""
    found = [rule for group in rules()["groups"] for rule in group["rules"] if rule.get("alert") == alert]
    (expression,) = [rule["expr"] for rule in found]
    used = set(re.findall(r"trtspec_\w+", expression))
    assert used
    assert used <= listed(backend)
