# SPDX-License-Identifier: Apache-2.0
"""profile, tune and bench of several recipes on a pool: real measurements of the quickstart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trtspec.fleet.labels import Requirement
from trtspec.planning.measurements import built_measurement, recipe_measurement
from trtspec.recipe.load import load_matrix

COMMAND_S = 240
MATRIX = """
extends: quickstart
name: m
engine: {max_batch_size: 1}
matrix: {speculation.draft_len: [2, 3]}
"""
NAMES = ["m-draft_len-2", "m-draft_len-3"]


def measure(folder: Path, *arguments: str, expected: int = 0) -> dict[str, Any]:
    """Run a command of trtspec with `--json`; return its document."""
    (folder / "m.yaml").write_text(MATRIX)
    variables = {**os.environ, "TRTSPEC_CACHE": str(folder / "cache")}
    command = [sys.executable, "-m", "trtspec", *arguments, "--json"]
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=COMMAND_S, check=False
    )
    assert done.returncode == expected, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.parametrize(
    ("verb", "options"),
    [("profile", ("--methods", "draft_target")), ("tune", ())],
)
def test_cells_of_a_matrix_are_measured(verb: str, options: tuple[str, ...], tmp_path: Path) -> None:
    small = ("--num-prompts", "2", "--max-tokens", "4", "--max-draft-len", "2")
    found = measure(tmp_path, verb, "m.yaml", "--on", "local:2", *small, *options)["recipes"]
    assert [each["name"] for each in found] == NAMES
    assert [(each["status"], each["node"], each["exit_code"]) for each in found] == [("measured", "local", 0)] * 2
    for each in found:
        assert each["document"]["name"] == each["name"]
        assert each["document"]["recommendation"]["why"]


def test_recipes_and_artifacts_are_benchmarked_and_their_gates_evaluated(tmp_path: Path) -> None:
    (tmp_path / "strict.yaml").write_text("extends: quickstart\nname: strict\ngates: {min_speedup: 100.0}\n")
    measure(tmp_path, "build", "m.yaml")
    found = measure(
        tmp_path, "bench", f"build/{NAMES[0]}", "strict.yaml", "--max-tokens", "16", "--runs", "1", "--gates",
        expected=112,
    )["recipes"]  # fmt: skip
    assert [(each["name"], each["status"], each["exit_code"]) for each in found] == [
        (NAMES[0], "measured", 0),
        ("strict", "measured", 112),
    ]
    assert [each["document"]["ok"] for each in found] == [True, False]
    for each in found:
        assert each["document"]["speedup"] > 0
        assert each["document"]["identical_texts"] == each["document"]["prompts"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:8000", "--on", "local"), "--on measures recipes and artifacts, not servers"),
        (("m.yaml", "--on", "local", "--concurrency", "2"), "cannot be combined with a load"),
        (("m.yaml", "m.yaml"), "two of them have the same name"),
    ],
)
def test_bench_on_a_pool_refuses_what_it_cannot_measure(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    assert message in measure(tmp_path, "bench", *arguments, expected=1)["error"]["message"]


def test_measurements_require_a_whole_node_with_the_labels(tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("extends: quickstart\nname: r\nengine: {backend: vllm, gpu: H200}\nfleet: {labels: {zone: b}}\n")
    (loaded,) = load_matrix(recipe)
    assert recipe_measurement("profile", loaded, ()).requirement == Requirement((("zone", "b"),), exclusive=True)
    measurement = built_measurement("bench", loaded, ("--runs", "1"))
    assert measurement.requirement == Requirement((("gpu", "h200"), ("zone", "b")), 1, exclusive=True)
    assert measurement.commands == (
        ("build", "recipe.yaml", "--out", "artifact"),
        ("bench", "./artifact", "--runs", "1"),
    )
