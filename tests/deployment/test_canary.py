# SPDX-License-Identifier: Apache-2.0
"""Rejection of a new revision by its statistics; nothing is started."""

from __future__ import annotations

import random

import pytest

from trtspec.deployment.rollout.canary import (
    CanaryStats,
    ProbePair,
    has_enough_samples,
    latency_ratio_interval,
    mirroring_summary,
    rejection_reason,
)
from trtspec.deployment.rollout.state import RolloutPolicy
from trtspec.serving.gateway.config import BackendStats, GatewayConfig, MirrorStats, Route, next_route

LIMITS = RolloutPolicy(hold_s=5, min_requests=20, max_latency_ratio=1.5, min_acceptance=0.5)


def pairs(ratio: float, count: int = 20, text: str = "same") -> list[ProbePair]:
    """Return pairs in which the new revision takes `ratio` times as long, with 10 % noise."""
    noise = random.Random(0)
    return [ProbePair(noise.gauss(1, 0.1), ratio * noise.gauss(1, 0.1), "same", text) for _ in range(count)]


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        (CanaryStats(9), ""),
        (CanaryStats(9, pairs=pairs(1.0)), ""),
        (CanaryStats(9, pairs=pairs(1.5)), ""),  # undecided: within noise
        (CanaryStats(9, pairs=pairs(9.0, 19)), ""),  # too few samples
        (CanaryStats(9, pairs=pairs(2.0)), "a synthetic request takes "),
        (
            CanaryStats(9, new=BackendStats(requests=7, failed=1, said="broken")),
            "1 of 7 requests failed, most recently: broken",
        ),
        (CanaryStats(9, pairs=pairs(1.0, text="other")), ""),
        (
            CanaryStats(9, pairs=pairs(1.0, text="other"), comparable=True),
            "20 of 20 texts differ from the previous revision",
        ),
        (CanaryStats(9, new=BackendStats(drafted=199)), ""),
        (CanaryStats(9, new=BackendStats(drafted=200, accepted=99)), "acceptance rate 0.495 is below 0.5"),
        (CanaryStats(9, new=BackendStats(drafted=200, accepted=100)), ""),
        (
            CanaryStats(9, BackendStats(first_token=(1.0,) * 20), BackendStats(first_token=(2.0,) * 20)),
            "the first token takes 2.00",
        ),
        (
            CanaryStats(9, BackendStats(per_token=(1.0,) * 20), BackendStats(per_token=(2.0,) * 20)),
            "a token takes 2.00 times",
        ),
        (CanaryStats(9, BackendStats(per_token=(1.0,) * 19), BackendStats(per_token=(2.0,) * 20)), ""),
        (
            CanaryStats(9, shadow=MirrorStats(sent=9, failed=1, said="no")),
            "1 of 9 mirrored requests failed, most recently: no",
        ),
        (CanaryStats(9, shadow=MirrorStats(compared=9, different=1)), ""),
        (
            CanaryStats(9, shadow=MirrorStats(compared=9, different=1), comparable=True),
            "1 of 9 mirrored texts differ from those",
        ),
        (CanaryStats(9, shadow=MirrorStats(new_drafted=200, new_accepted=99)), "acceptance rate 0.495 is below 0.5"),
        (
            CanaryStats(9, shadow=MirrorStats(old_s=(1.0,) * 20, new_s=(2.0,) * 20)),
            "a mirrored request takes 2.00 times",
        ),
    ],
)
def test_rejection_reason_is_empty_unless_evidence_is_conclusive(seen: CanaryStats, said: str) -> None:
    found = rejection_reason(LIMITS, seen)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_latency_tail_regression_is_rejected_with_enough_samples() -> None:
    old, new = (1.0,) * 200, (1.0,) * 160 + (9.0,) * 40
    assert "percentile 95" in rejection_reason(
        LIMITS, CanaryStats(9, BackendStats(per_token=old), BackendStats(per_token=new))
    )
    assert not rejection_reason(
        LIMITS, CanaryStats(9, BackendStats(per_token=old[:50]), BackendStats(per_token=new[80:]))
    )


def test_canary_has_enough_samples_after_hold_time_and_minimum_requests() -> None:
    assert has_enough_samples(LIMITS, CanaryStats(5, pairs=pairs(1.0)))
    assert not has_enough_samples(LIMITS, CanaryStats(4.9, pairs=pairs(1.0)))
    assert not has_enough_samples(LIMITS, CanaryStats(50, pairs=pairs(1.0, 19)))


@pytest.mark.slow
def test_latency_ratio_interval_rarely_misclassifies_equal_samples() -> None:
    """Of 200 equal pairs of samples, about 2.5 % may be classified as slower."""
    wrong = 0
    for seed in range(200):
        noise = random.Random(seed)
        old, new = ([noise.expovariate(1.0) for _ in range(30)] for _ in range(2))
        wrong += latency_ratio_interval(old, new, 50)[0] > 1
    assert wrong <= 12


@pytest.mark.parametrize("share", [1, 5, 25, 50, 99, 100])
def test_routing_share_is_within_one_request_at_every_point(share: int) -> None:
    config = GatewayConfig("", 0, "m", "t", "", 1, 1)
    routes, served = (Route(1, 100 - share, config), Route(2, share, config)), {1: 0, 2: 0}
    for asked in range(1, 1001):
        served[next_route(routes, served).revision] += 1
        assert abs(served[2] - asked * share / 100) <= 1
    assert served[2] == 10 * share


def test_mirroring_summary_has_counts_ratios_and_a_verdict() -> None:
    """Without samples there is no rate."""
    assert mirroring_summary(MirrorStats(), 50) == {
        "share": 50,
        **dict.fromkeys(("sent", "failed", "compared", "different", "dropped"), 0),
        **dict.fromkeys(("latency_ratio", "acceptance_rate", "acceptance_rate_before")),
        "verdict": "0 requests, 0 failed, 0 of 0 greedy texts differ, 0 dropped because of load",
    }
    tokens = {"drafted": 10, "accepted": 6, "new_drafted": 10, "new_accepted": 7}
    found = mirroring_summary(MirrorStats(4, 1, 3, 2, 5, (1.0, 2.0, 1.0), (1.0, 4.0, 3.0), **tokens), 50)
    assert (found["latency_ratio"], found["acceptance_rate"], found["acceptance_rate_before"]) == (2.0, 0.7, 0.6)
    assert found["verdict"] == (
        "4 requests, 1 failed, 2 of 3 greedy texts differ, 2.00 times the latency, "
        "acceptance rate 0.700 (0.600 before), 5 dropped because of load"
    )
