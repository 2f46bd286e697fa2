# SPDX-License-Identifier: Apache-2.0
"""Intervals against published quantiles and their coverage; comparisons of identical runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from trtspec.bench.load.comparison import CONFIDENCE, RatioGate, compare
from trtspec.bench.load.intervals import RatioInterval, ratio_between, ratio_of_rounds, t_quantile
from trtspec.cli.load_results import load_gate
from trtspec.core.errors import TrtspecError
from trtspec.planning.documents import LoadDocument

# Published quantiles of Student's t: (cumulative probability, degrees of freedom) to t
TABLE = {
    (0.975, 1): 12.7062, (0.975, 2): 4.3027, (0.975, 5): 2.5706, (0.975, 30): 2.0423, (0.995, 3): 5.8409,
    (0.995, 10): 3.1693, (0.9995, 4): 8.6103, (0.95, 7): 1.8946,
}  # fmt: skip


@pytest.mark.parametrize("asked", TABLE)
def test_t_quantiles_match_published_tables(asked: tuple[float, int]) -> None:
    assert t_quantile(*asked) == pytest.approx(TABLE[asked], rel=2e-4)


def test_t_quantile_with_many_degrees_of_freedom_is_normal() -> None:
    assert t_quantile(0.975, 1e5) == pytest.approx(1.95996, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [3, 5, 12])
def test_interval_of_rounds_has_its_nominal_coverage(rounds: int) -> None:
    draws = np.random.default_rng(rounds)
    found = [ratio_of_rounds(list(np.exp(draws.normal(math.log(1.4), 0.1, rounds)))) for _ in range(2000)]
    held = np.mean([each.low <= 1.4 <= each.high for each in found])
    assert held == pytest.approx(0.95, abs=0.015)
    assert np.mean([each.value for each in found]) == pytest.approx(1.4, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(4, 4), (3, 12), (20, 6)])
def test_interval_between_documents_has_its_nominal_coverage(before: int, after: int) -> None:
    """The coverage holds with different numbers of rounds and different noise."""
    draws = np.random.default_rng(before * after)
    held = []
    for _ in range(2000):
        ours, theirs = np.exp(draws.normal(3, 0.02, before)), np.exp(draws.normal(3.2, 0.08, after))
        found = ratio_between(list(ours), list(theirs))
        held.append(found.low <= math.exp(0.2) <= found.high)
    assert np.mean(held) >= 0.925


def test_single_round_has_an_unbounded_interval() -> None:
    for found in (ratio_of_rounds([3.0]), ratio_between([2.0], [6.0, 6.0])):
        assert found.value == pytest.approx(3)
        assert (found.low, found.high, found.shows) == (0.0, math.inf, 0)
        assert found.as_dict()["low"] is None
    with pytest.raises(ValueError, match="at least one round"):
        ratio_of_rounds([])


def test_inverse_ratio_swaps_and_inverts_its_bounds() -> None:
    found = RatioInterval(2.0, 1.6, 2.5, 5)
    assert (found.inverse().low, found.inverse().high) == (0.4, 0.625)
    assert (found.shows, found.inverse().shows, found.widened(2).shows, found.widened(0.5).shows) == (1, -1, 0, 0)
    assert RatioInterval(1.0, 0.0, math.inf, 1).inverse().high == math.inf


def document(served: list[float], alone: list[float] | None = None, **more: Any) -> LoadDocument:
    """Return a saved document with one load, or several with the same rounds."""
    arms = {"served": served} | ({"baseline": alone} if alone is not None else {})
    summary = {"requests": 16, "failed": 0, "output_tokens_per_s": 100.0, **dict.fromkeys(
        ("ttft_ms", "tpot_ms", "e2e_ms", "acceptance_rate", "mean_accepted_len"))}  # fmt: skip
    requests = {"requests": 16, "failed": more.get("failed", 0)}
    rounds = {
        name: {**summary, "rounds": [{**requests, "output_tokens_per_s": v, "mean_e2e_ms": 1e5 / v} for v in values]}
        for name, values in arms.items()
    }
    judged_by = more.get("judged_by", "output_tokens_per_s")
    points = [
        {"load": {"kind": "closed", "concurrency": n}, "requests_per_round": more.get("requests", 16),
         "judged_by": judged_by, "arms": rounds, "speedup": None}
        for n in more.get("loads", [4])
    ]  # fmt: skip
    return LoadDocument.model_validate(
        {
            "format_version": 1,
            "kind": "load",
            "driver": more.get("driver", "trtspec"),
            "workload": {"sha256": more.get("sha256", "aa"), "source": "kinds", "max_tokens": 64},
            "noise": {"median_work_ms": more.get("work_ms", 10.0)},
            "points": points,
        }
    )


def drawn(draws: Any, speedup: float, rounds: int = 8, machine: float = 1.0) -> LoadDocument:
    """Return a simulated run on a shared machine: each round's noise is common to both arms."""
    weather = machine * np.exp(draws.normal(0, 0.1, rounds))
    noise = np.exp(draws.normal(0, 0.03, (2, rounds)))
    return document(list(500 * speedup * weather * noise[0]), list(500 * weather * noise[1]))


@pytest.mark.slow
def test_comparison_of_identical_runs_rarely_shows_a_difference() -> None:
    """At most a few of 400 pairs differ, even if the machine is a third slower in one run."""
    draws = np.random.default_rng(11)
    alarms = 0
    for _ in range(400):
        machine = float(np.exp(draws.normal(0, 0.3)))
        (found,) = compare(drawn(draws, 1.8), drawn(draws, 1.8, machine=machine))
        alarms += found.ratio.shows != 0
    assert alarms <= 400 * (1 - CONFIDENCE) * 2.5


def test_comparison_finds_a_real_difference() -> None:
    draws = np.random.default_rng(12)
    found = [compare(drawn(draws, 1.8), drawn(draws, 1.62), absolutely=False)[0].ratio for _ in range(50)]
    assert sum(each.shows < 0 for each in found) >= 45
    assert np.mean([each.value for each in found]) == pytest.approx(0.9, rel=0.02)


def test_gate_fails_for_a_slower_draft_and_passes_for_an_equal_one() -> None:
    draws = np.random.default_rng(13)
    for _ in range(20):
        good, same, worse = drawn(draws, 1.8), drawn(draws, 1.8), drawn(draws, 0.7)
        (found,) = compare(good, worse)
        assert not RatioGate(0.98, (found.ratio,)).ok
        (again,) = compare(good, same)
        assert RatioGate(0.98, (again.ratio,)).ok


def test_ratio_gate_reports_whether_it_is_decided() -> None:
    wide, sure, missed = (
        RatioInterval(1.0, 0.8, 1.3, 3),
        RatioInterval(1.1, 1.05, 1.2, 9),
        RatioInterval(0.9, 0.85, 0.97, 9),
    )
    assert (RatioGate(0.98, (wide,)).ok, RatioGate(0.98, (wide,)).is_decided) == (True, False)
    assert (RatioGate(0.98, (sure,)).ok, RatioGate(0.98, (sure,)).is_decided) == (True, True)
    assert (RatioGate(0.98, (sure, missed)).ok, RatioGate(0.98, (sure, missed)).is_decided) == (False, True)


def test_comparison_with_baselines_cancels_machine_speed() -> None:
    fast = document([100.0, 101, 99, 100], [50.0, 50.5, 49.5, 50])
    slow = document([60.0, 60.6, 59.4, 60], [30.0, 30.3, 29.7, 30])
    (found,) = compare(fast, slow)
    assert found.by == "speedup"
    assert found.ratio.value == pytest.approx(1.0)
    assert found.ratio.shows == 0
    assert found.served.value == pytest.approx(0.6)
    assert found.baseline is not None
    assert found.baseline.shows == -1
    (absolute,) = compare(fast, slow, absolutely=True)
    assert (absolute.by, absolute.ratio.shows) == ("served", -1)


def test_comparison_without_baselines_allows_for_machine_speed_differences() -> None:
    before, after = document([100.0, 101, 99, 100]), document([90.0, 91, 89, 90])
    (found,) = compare(before, after)
    assert found.ratio.shows == -1
    slower_machine = document([90.0, 91, 89, 90], work_ms=11.5)
    (found,) = compare(before, slower_machine)
    assert found.ratio.shows == 0


def test_lower_latency_compares_as_faster() -> None:
    """In an open loop, lower latency counts as faster."""
    before = document([100.0, 101, 99, 100], judged_by="mean_e2e_ms")
    after = document([200.0, 202, 198, 200], judged_by="mean_e2e_ms")
    (found,) = compare(before, after)
    assert found.ratio.value == pytest.approx(2.0)
    assert found.ratio.shows == 1


@pytest.mark.parametrize("alone", [None, [50.0] * 12])
def test_rounds_are_paired_by_number(alone: list[float] | None) -> None:
    """Later rounds of one run sent other prompts, which take longer; one round of the other lacks responses."""
    speeds = [100.0, 60.0, 101.0, 99.0, *[50.0] * 8]
    long, short = document(speeds, alone), document(speeds[:4], alone and alone[:4])
    (found,) = compare(long, short)
    assert (found.ratio.value, found.ratio.rounds) == (pytest.approx(1.0), 4)
    short.points[0].arms["served"].rounds[1].output_tokens_per_s = None
    (found,) = compare(long, short)
    assert (found.ratio.value, found.served.value) == (pytest.approx(1.0), pytest.approx(1.0))
    assert found.ratio.rounds == found.served.rounds == 3


@pytest.mark.parametrize(("loads", "ok"), [(1, False), (20, True)])
def test_load_gate_uses_a_corrected_99_percent_interval(loads: int, ok: bool) -> None:
    """The gate uses a 99 % interval, corrected for the number of loads."""
    speedups = [0.95, 0.96, 0.97, 0.94, 0.955]
    near = [0.985, 0.95, 0.97, 0.94, 0.965]
    assert ratio_of_rounds(near).high < 0.985 < ratio_of_rounds(near, CONFIDENCE).high
    assert load_gate({"points": [{"speedups": near, "unfit": None}]}, 0.985).ok
    found = [speedups, *[[1.2, 1.3, 1.25]] * (loads - 1), []]
    points = [{"speedups": each, "unfit": None} for each in found]
    assert load_gate({"points": points}, 0.982).ok is ok


def test_load_gate_fails_for_a_point_that_cannot_be_compared() -> None:
    points = [
        {"speedups": [2.0, 2.1, 2.2], "unfit": None},
        {"speedups": [], "unfit": "9 of 20 requests failed (served)"},
    ]
    gate = load_gate({"points": points}, 0.5)
    assert not gate.ok
    assert gate.as_dict()["unfit"] == ["9 of 20 requests failed (served)"]


def test_interval_widens_with_the_number_of_loads() -> None:
    draws = np.random.default_rng(14)
    one = [list(np.exp(draws.normal(4, 0.05, 8))) for _ in range(2)]
    (alone,) = compare(document(one[0]), document(one[1]))
    several = compare(document(one[0], loads=[1, 2, 4, 8]), document(one[1], loads=[1, 2, 4, 8]))
    assert len(several) == 4
    assert several[0].ratio.low < alone.ratio.low < alone.ratio.high < several[0].ratio.high


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"sha256": "bb"}, "prompts, lengths or seeds differ"),
        ({"loads": [8]}, "they do not share a load"),
        ({"requests": 32}, "rounds have 16 and 32 requests"),
        ({"driver": "aiperf"}, "A was measured by trtspec, B by aiperf"),
        ({"failed": 1}, "6% of the requests failed in B"),
    ],
)
def test_incomparable_documents_are_rejected_with_the_reason(other: dict[str, Any], why: str) -> None:
    with pytest.raises(TrtspecError, match="cannot be compared") as refused:
        compare(document([100.0, 101.0]), document([100.0, 101.0], **other))
    assert why in str(refused.value)
