# SPDX-License-Identifier: Apache-2.0
"""The speed-up, its interval, and a limit that is judged by it: another run is measured while it does not decide."""

from __future__ import annotations

import time
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from tests.conftest import Run
from trtspec.artifacts.manifest import load_manifest
from trtspec.measure.bench import Comparison, measure_server
from trtspec.measure.gates import judge_gates, undecided
from trtspec.measure.speedup import Speedup, speedup_of

PROMPTS = [f"prompt {number}" for number in range(8)]


@pytest.mark.parametrize(
    ("limit", "reached"), [(1.5, True), (1.6, True), (1.61, None), (2.0, None), (2.4, None), (2.41, False)]
)
def test_a_limit_is_held_against_the_interval(limit: float, reached: bool | None) -> None:
    assert Speedup(2.0, 1.6, 2.4, 1.9, samples=6).reaches(limit) is reached
    assert Speedup(2.0, 1.6, 2.4, 1.9, samples=5).reaches(limit) is None, "too few to be sure of anything"


@pytest.mark.slow
def test_the_interval_holds_the_true_median_about_as_often_as_it_says() -> None:
    samples = np.random.default_rng(1).lognormal(np.log(2.0), 0.3, (300, 24))
    found = [speedup_of(list(ratios), 1.0) for ratios in samples]
    assert 0.90 <= np.mean([each.low <= 2.0 <= each.high for each in found]) <= 0.99
    assert all(each.low <= each.median <= each.high for each in found)
    assert found[0] == speedup_of(list(samples[0]), 1.0), "the same ratios, the same interval"


def test_more_ratios_are_surer() -> None:
    few, many = (speedup_of([1.0, 1.2, 1.4, 1.6, 1.8, 2.0] * times, 1.0) for times in (1, 10))
    assert (few.median, many.median) == (1.5, 1.5)
    assert many.high - many.low < (few.high - few.low) / 2


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that measures a server which is these many times as fast with speculation, in turn."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def measure(ratios: list[float], *rest: Any) -> Comparison:
        turn = cycle(ratios)

        class Fake:
            def generate(self, request: dict[str, Any]) -> dict[str, Any]:
                clock[0] += next(turn) if "num_draft_tokens" in request else 1.0
                counts = {"num_output_tokens": 4, "total_draft_tokens": 0, "total_accepted_draft_tokens": 0}
                return {"text_output": "x", **counts}

        return measure_server(Fake(), PROMPTS, 4, 1, *rest)  # type: ignore[arg-type]

    return measure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ratios", "limit", "runs", "ok"),
    [
        ([1.5, 1.6, 1.7], 1.4, 1, True),
        ([1.5, 1.6, 1.7], 1.8, 1, False),
        ([1.0, 1.5, 2.0, 2.1], 1.7, 5, True),
        ([1.0, 1.5, 2.0, 2.1], 1.8, 5, False),
    ],
)
def test_runs_are_measured_until_a_limit_is_decided(
    ratios: list[float], limit: float, runs: int, ok: bool, recipe: Any, trtspec: Run, measure: Any
) -> None:
    assert trtspec("build", recipe, "--set", f"gates.min_speedup={limit}").code == 0
    resolved = load_manifest(recipe.parent / "build" / "tiny").recipe
    rest = (lambda *progress: None, "exact", None)
    measured = measure(ratios, *rest, undecided(resolved, (), 5))
    check = judge_gates(resolved, measured, "server").checks[1]
    assert (measured.runs, check.ok, check.limit) == (runs, ok, limit)
    assert ("not sure after 5 runs, so the median decides" in check.detail) == (runs == 5)
    assert measure(ratios, *rest, undecided(resolved, ["min_speedup"], 5)).runs == 1
    assert measure(ratios, *rest, undecided(resolved, (), 1)).runs == 1


@pytest.mark.integration
def test_verify_and_bench_say_how_fast_and_how_sure(recipe: Any, trtspec: Run) -> None:
    assert trtspec("build", recipe, "--set", "gates.min_speedup=0.001").code == 0
    done = trtspec("verify", "build/tiny", "--max-tokens", 4, "--json")
    benched = trtspec("bench", "build/tiny", "--max-tokens", 4, "--runs", 2, "--json")
    for document in (done.document, benched.document):
        low, high = document["speedup_interval"]
        assert 0 < low <= document["speedup"] <= high
        assert document["speedup_total"] > 0
    check = {each["name"]: each for each in done.document["checks"]}["min_speedup"]
    assert (check["ok"], check["value"]) == (True, done.document["speedup"])
    assert "median of 3 ratios by prompt; 95 % interval" in check["detail"]
    assert "not sure after 5 runs, so the median decides" in check["detail"], "no run makes three prompts six"
    once = trtspec("verify", "build/tiny", "--max-tokens", 4, "--runs", 1)
    assert "not sure after 1 run, so the median decides" in once.out + once.err
    assert "with speculation " in once.out + once.err
