# SPDX-License-Identifier: Apache-2.0
"""The speed-up, its interval, and a gate on it: more runs are measured while the result is undecided."""

from __future__ import annotations

import re
import time
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from tests.conftest import Run
from trtspec.bench.bench import measure_server
from trtspec.bench.gates import (
    VerificationReport,
    evaluate_gates,
    needs_more_runs,
    speedup_state,
    undecided_policy,
)
from trtspec.bench.speedup import BenchComparison, Speedup, estimate_speedup
from trtspec.bench.verify import ensure_gates
from trtspec.core.errors import GateNotMet
from trtspec.store.artifact import load_manifest

PROMPTS = [f"prompt {number}" for number in range(8)]


@pytest.mark.parametrize(
    ("limit", "reached"), [(1.5, True), (1.6, True), (1.61, None), (2.0, None), (2.4, None), (2.41, False)]
)
def test_speedup_limit_is_compared_with_the_interval(limit: float, reached: bool | None) -> None:
    assert Speedup(2.0, 1.6, 2.4, 1.9, samples=6).reaches(limit) is reached
    assert Speedup(2.0, 1.6, 2.4, 1.9, samples=5).reaches(limit) is None, "too few for a significant result"


@pytest.mark.slow
def test_speedup_interval_covers_the_true_median_at_its_confidence_level() -> None:
    samples = np.random.default_rng(1).lognormal(np.log(2.0), 0.3, (300, 24))
    found = [estimate_speedup(list(ratios), 1.0) for ratios in samples]
    assert 0.90 <= np.mean([each.low <= 2.0 <= each.high for each in found]) <= 0.99
    assert all(each.low <= each.median <= each.high for each in found)
    assert found[0] == estimate_speedup(list(samples[0]), 1.0), "the interval is deterministic"


def test_speedup_interval_narrows_with_more_samples() -> None:
    few, many = (estimate_speedup([1.0, 1.2, 1.4, 1.6, 1.8, 2.0] * times, 1.0) for times in (1, 10))
    assert (few.median, many.median) == (1.5, 1.5)
    assert many.high - many.low < (few.high - few.low) / 2


@pytest.fixture
def measure(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that measures a server with these speed-ups in turn."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def measure(ratios: list[float], *rest: Any) -> BenchComparison:
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
    ("ratios", "limit", "runs", "state"),
    [
        ([1.5, 1.6, 1.7], 1.4, 1, "holds"),
        ([1.5, 1.6, 1.7], 1.8, 1, "fails"),
        ([1.0, 1.5, 2.0, 2.1], 1.7, 5, "undecided"),
        ([1.0, 1.5, 2.0, 2.1], 1.8, 5, "undecided"),
    ],
)
def test_runs_are_repeated_until_a_limit_is_decided(
    ratios: list[float], limit: float, runs: int, state: str, recipe: Any, trtspec: Run, measure: Any
) -> None:
    assert trtspec("build", recipe, "--set", f"gates.min_speedup={limit}").code == 0
    resolved = load_manifest(recipe.parent / "build" / "tiny").recipe
    rest = (lambda *progress: None, "exact", None)
    measured = measure(ratios, *rest, needs_more_runs(resolved, (), 5))
    check = evaluate_gates(resolved, measured, "server").checks[1]
    assert (measured.runs, check.state, check.limit) == (runs, state, limit)
    assert ("; undecided after 5 runs: the interval includes the limit" in check.detail) == (state == "undecided")
    report = VerificationReport((check,), "exact", "")
    assert report.under("fail").ok == (state == "holds")
    assert report.under("pass").ok == (state != "fails")
    assert measure(ratios, *rest, needs_more_runs(resolved, ["min_speedup"], 5)).runs == 1
    assert measure(ratios, *rest, needs_more_runs(resolved, (), 1)).runs == 1


@pytest.mark.integration
def test_verify_and_bench_report_the_speedup_with_its_interval(recipe: Any, trtspec: Run) -> None:
    assert trtspec("build", recipe, "--set", "gates.min_speedup=0.001").code == 0
    done = trtspec("verify", "build/tiny", "--max-tokens", 4, "--json")
    benched = trtspec("bench", "build/tiny", "--max-tokens", 4, "--runs", 2, "--json")
    for document in (done.document, benched.document):
        low, high = document["speedup_interval"]
        assert 0 < low <= document["speedup"] <= high
        assert document["speedup_total"] > 0
    check = {each["name"]: each for each in done.document["checks"]}["min_speedup"]
    assert (check["ok"], check["value"]) == (True, done.document["speedup"])
    assert "median of 3 prompts; 95 % interval" in check["detail"]
    assert "; the interval of fewer than 6 prompts is unreliable" in check["detail"], "more runs do not add prompts"
    once = trtspec("verify", "build/tiny", "--max-tokens", 4, "--runs", 1)
    assert "with speculation " in once.out + once.err


@pytest.mark.parametrize(
    ("limit", "state"), [(1.5, "holds"), (1.6, "holds"), (1.61, "undecided"), (2.4, "undecided"), (2.41, "fails")]
)
def test_speedup_state_is_undecided_where_the_interval_includes_the_limit(limit: float, state: str) -> None:
    assert speedup_state(Speedup(2.0, 1.6, 2.4, 1.9, samples=6), limit) == state
    assert speedup_state(Speedup(2.0, 1.6, 2.4, 1.9, samples=3), limit) == state


@pytest.mark.parametrize(
    ("environment", "policy"),
    [
        ({}, "pass"),
        ({"CI": "true"}, "fail"),
        ({"CI": "1"}, "fail"),
        ({"CI": "false"}, "pass"),
        ({"CI": "0"}, "pass"),
        ({"CI": ""}, "pass"),
        ({"CI": "true", "TRTSPEC_UNDECIDED": "pass"}, "pass"),
        ({"TRTSPEC_UNDECIDED": "fail"}, "fail"),
    ],
)
def test_undecided_policy_follows_its_variable_then_ci(environment: dict[str, str], policy: str) -> None:
    assert undecided_policy(environment) == policy


@pytest.fixture
def undecided_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the interval of every measured speed-up include 1.05."""
    monkeypatch.setattr(BenchComparison, "speedup", Speedup(1.06, 0.97, 1.25, 1.09, samples=12))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TRTSPEC_UNDECIDED", "")  # set by the options, removed by monkeypatch


@pytest.mark.integration
@pytest.mark.parametrize("command", [("verify",), ("bench", "--gates"), ("deploy", "--detach")])
def test_undecided_gate_passes_or_fails_according_to_the_option(
    command: tuple[str, ...], recipe: Any, trtspec: Run, undecided_speed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trtspec("build", recipe, "--set", "gates.min_speedup=1.05").code == 0
    name, *options = command
    few = () if name == "deploy" else ("--max-tokens", 2, "--runs", 1)
    failed = trtspec(name, "build/tiny", *options, *few, "--undecided", "fail")
    assert failed.code == 112
    assert "undecided after" in failed.out + failed.err
    monkeypatch.setenv("TRTSPEC_UNDECIDED", "")
    monkeypatch.setenv("CI", "true")
    assert trtspec(name, "build/tiny", *options, *few).code == 112, "the default in CI"
    if name == "deploy":
        return  # the tests below cover a passing gate, without a server
    passed = trtspec(name, "build/tiny", *options, *few, "--undecided", "pass")
    assert passed.code == 0
    assert re.search(r"min_speedup +undecided ", passed.out)
    document = trtspec(name, "build/tiny", *options, *few, "--undecided", "pass", "--json").document
    check = {each["name"]: each for each in document["checks"]}["min_speedup"]
    assert (document["ok"], check["ok"], check["state"]) == (True, True, "undecided")
    document = trtspec(name, "build/tiny", *options, *few, "--undecided", "fail", "--json").document
    check = {each["name"]: each for each in document["checks"]}["min_speedup"]
    assert (document["ok"], check["ok"], check["state"]) == (False, False, "undecided")


@pytest.mark.integration
def test_deploy_applies_the_current_policy_to_a_stored_undecided_gate(
    recipe: Any, trtspec: Run, undecided_speed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trtspec("build", recipe, "--set", "gates.min_speedup=1.05").code == 0
    root, left = recipe.parent / "build" / "tiny", []
    assert trtspec("verify", root, "--max-tokens", 2, "--runs", 1).code == 0
    assert ensure_gates(root, on_undecided=left.extend)
    assert [(each.name, each.reason) for each in left] == [("min_speedup", "undecided")]
    monkeypatch.setenv("TRTSPEC_UNDECIDED", "fail")
    with pytest.raises(GateNotMet, match=r"min_speedup: 1\.06 times as fast .* undecided"):
        ensure_gates(root)
    assert ensure_gates(root, skip=["min_speedup"])


def test_undecided_option_accepts_only_fail_or_pass(trtspec: Run) -> None:
    failed = trtspec("verify", "build/tiny", "--undecided", "maybe")
    assert (failed.code, failed.err) == (
        1,
        "error: --undecided maybe: expected fail or pass\nhint: e.g. --undecided fail\n",
    )
