# SPDX-License-Identifier: Apache-2.0
"""The benchmark of complete builds runs at a small size, and its limit is the slowest required operation."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "convert_builds.py"


@pytest.mark.slow
def test_small_run_reports_every_number(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--tiny", "--gigabytes", "0.01", "0.02", "--runs", "1", "--ranks", "2"]
    command += ["--encodings", "fp8_rowwise", "--out", tmp_path / "found.json"]
    subprocess.run(command, check=True, capture_output=True, timeout=480)
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(row["source_bytes"], row["cold"], row["ranks"], row["weights"]) for row in found["summary"]] == [
        (size, cold, 2, "fp8_rowwise") for size in found["source_bytes"] for cold in (True, False)
    ]
    assert found["source_bytes"][0] < found["source_bytes"][1]
    for sample in found["builds"]:
        assert set(sample["least"]) == {"read", "hash", "quantize", "write", "read and write"}
        assert bool(sample["least"]["read and write"]) == sample["cold"]
        assert sample["of_limit"] == max(sample["least"].values()) / sample["seconds"]
        assert set(sample["steps"]) == {"convert-target", "copy-tokenizer", "emit-repository"}
        assert sample["peak_bytes"] < 200e6
    assert all(row["times_rank_loop"] > 0 and row["cat_s"] > 0 and row["cp_s"] > 0 for row in found["summary"])
