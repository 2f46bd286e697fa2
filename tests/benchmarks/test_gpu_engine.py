# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the torch engine on a small pair on a CPU: everything is measured and recorded in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.measures import ACCEPTANCES, BATCHES, DRAFT_LENS, MEASURES, ON_GPUS, SET_LEN, WIDTHS
from benchmarks.gpu.parts import ROOT

pytestmark = pytest.mark.integration
BOUND_S = 300


def run(out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "benchmarks.gpu.engine", "--shape", "tiny", "--device", "cpu", "--out", str(out)]
    return subprocess.run([*words, *options], cwd=ROOT, capture_output=True, text=True, check=False, timeout=BOUND_S)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("engine") / "engine.json"
    done = run(out, "--steps", "6")
    assert done.returncode == 0, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(out.read_text())
    return document


def test_every_measure_is_recorded(found: dict[str, Any]) -> None:
    assert found["failed"] == {}
    counts = {name: len(found[name]) for name in MEASURES if name not in ON_GPUS | {"agreement"}}
    batches = len(BATCHES)
    assert counts == {
        "alone": 2 * batches,
        "over_drafts": len(DRAFT_LENS) * batches,
        "forward": len(WIDTHS) * batches,
        "set_acceptance": 2 * len(ACCEPTANCES) * batches,
        "small_model": 2 * batches,
    }
    assert len(found["table"]) == sum(counts.values()) + 2


def test_tokens_per_step_follow_the_acceptance(found: dict[str, Any]) -> None:
    assert all(row["tokens_per_step"] == 1.0 for row in found["alone"])
    assert all(row["tokens_per_step"] < 1.2 for row in found["over_drafts"]), "random tokens are almost never accepted"
    for row in found["set_acceptance"]:
        if row["batch"] == 32:  # 192 samples of the number of accepted tokens
            expected = sum(row["acceptance"] ** count for count in range(SET_LEN + 1))
            assert row["tokens_per_step"] == pytest.approx(expected, rel=0.15)


def test_float32_forward_of_five_tokens_agrees_with_single_tokens(found: dict[str, Any]) -> None:
    assert found["agreement"]["share"] == 1.0


def test_engine_benchmark_without_time_reports_timeouts(tmp_path: Path) -> None:
    done = run(tmp_path / "engine.json", "--seconds", "0")
    assert done.returncode == 1
    failed = json.loads((tmp_path / "engine.json").read_text())["failed"]
    assert failed == {name: "TimeoutError: no time left" for name in MEASURES if name not in ON_GPUS}
