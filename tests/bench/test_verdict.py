# SPDX-License-Identifier: Apache-2.0
"""The verdict in every situation: slower, faster, undecided, better alternatives, gates contradicted by a benchmark."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec.bench.decision import (
    ALONE,
    DO_NOT_SHIP,
    NOT_DECIDED,
    PAYS,
    SHIP,
    UNKNOWN,
    DraftOption,
    Evidence,
    Proposal,
    RelativeSpeed,
    contradicting_measurement,
    decide,
)
from trtspec.bench.gates import VerificationCheck

FAST, SLOW, EVEN = RelativeSpeed(1.8, 1.6, 2.0), RelativeSpeed(0.82, 0.75, 0.9), RelativeSpeed(1.06, 0.97, 1.25)
NGRAM = DraftOption("ngram", RelativeSpeed(2.2, 2.0, 2.4))
HELD = VerificationCheck("min_speedup", True, 1.06, 1.05, "1.06 times as fast, required: 1.05")
MISSED = VerificationCheck("min_speedup", False, 1.02, 1.05, "1.02 times as fast, required: 1.05")
OPEN = VerificationCheck(
    "min_speedup", True, 1.06, 1.05, "1.06 times as fast; undecided after 1 run", state="undecided"
)
PARITY = VerificationCheck("parity", False, 7, 12, "7 of 12 texts match transformers")
FEW = VerificationCheck("min_acceptance", False, 0.4, 0.6, "acceptance rate 0.400, required: 0.6")
LOSSLESS = VerificationCheck("lossless", True, 4, 4, "4 of 4 texts are identical")


def evidence(**facts: Any) -> Evidence:
    return Evidence(**{"method": "draft_target", **facts})


@pytest.mark.parametrize(
    ("facts", "decision", "text"),
    [
        pytest.param(
            {"speedup": SLOW},
            DO_NOT_SHIP,
            "Do not ship this draft: it is 0.82 times (0.75 to 0.90) as fast as the target alone at 1 request.",
            id="slower",
        ),
        pytest.param(
            {"speedup": SLOW, "verified": True, "checks": [HELD]},
            DO_NOT_SHIP,
            "Do not ship this draft: it is 0.82 times (0.75 to 0.90) as fast as the target alone at 1 request.",
            id="slower-though-the-gate-held",
        ),
        pytest.param(
            {"speedup": SLOW, "rivals": [DraftOption("lookahead", RelativeSpeed(1.1, 1.05, 1.2)), NGRAM]},
            DO_NOT_SHIP,
            "Do not ship this draft: ngram is 2.20 times (2.00 to 2.40) as fast as the target alone here, "
            "this draft 0.82 times (0.75 to 0.90).",
            id="slower-and-another-is-better",
        ),
        pytest.param(
            {"speedup": EVEN, "rivals": [NGRAM], "verified": True},
            DO_NOT_SHIP,
            "Do not ship this draft: ngram is 2.20 times (2.00 to 2.40) as fast as the target alone here, "
            "this draft 1.06 times (0.97 to 1.25).",
            id="undecided-and-another-is-better",
        ),
        pytest.param(
            {"speedup": FAST, "rivals": [DraftOption("ngram", RelativeSpeed(1.9, 1.7, 2.1))], "verified": True},
            SHIP,
            "Ship it: 1.80 times (1.60 to 2.00) as fast as the target alone at 1 request.",
            id="another-is-not-surely-better",
        ),
        pytest.param(
            {"speedup": SLOW, "rivals": [DraftOption("ngram", RelativeSpeed(1.0, 0.95, 1.2))]},
            DO_NOT_SHIP,
            "Do not ship this draft: it is 0.82 times (0.75 to 0.90) as fast as the target alone at 1 request.",
            id="another-is-not-surely-faster-than-the-target",
        ),
        pytest.param(
            {"speedup": FAST, "verified": True, "by_load": [(1, 1.8), (4, 1.3), (8, 0.9), (16, 0.7)]},
            SHIP,
            "Ship it: 1.80 times (1.60 to 2.00) as fast as the target alone at 1 request; "
            "it does not pay from 8 concurrent requests.",
            id="faster-below-a-load",
        ),
        pytest.param(
            {"speedup": FAST, "verified": True, "by_load": [(1, 1.8), (16, 1.2)]},
            SHIP,
            "Ship it: 1.80 times (1.60 to 2.00) as fast as the target alone at 1 request; "
            "it pays up to 16 concurrent requests, the highest load measured.",
            id="faster-at-every-load",
        ),
        pytest.param(
            {"speedup": FAST, "verified": True, "by_load": [(1, 1.8), (4, 0.9), (16, 1.1)]},
            SHIP,
            "Ship it: 1.80 times (1.60 to 2.00) as fast as the target alone at 1 request; "
            "it does not pay at 4 concurrent requests.",
            id="faster-but-for-a-load-between",
        ),
        pytest.param(
            {"speedup": FAST, "check": "trtspec verify build/x"},
            PAYS,
            "It pays: 1.80 times (1.60 to 2.00) as fast as the target alone at 1 request; "
            "not verified yet, run: trtspec verify build/x.",
            id="faster-but-not-verified",
        ),
        pytest.param(
            {"method": "unknown", "subject": "speculation", "speedup": FAST, "check": ""},
            PAYS,
            "It pays: 1.80 times (1.60 to 2.00) as fast as the target alone at 1 request.",
            id="faster-on-a-server-of-an-unknown-artifact",
        ),
        pytest.param(
            {"speedup": FAST, "verified": True, "checks": [PARITY]},
            DO_NOT_SHIP,
            "Do not ship this artifact: parity fails: 7 of 12 texts match transformers.",
            id="fp8-with-parity-failed",
        ),
        pytest.param(
            {"method": "none", "verified": False, "checks": [PARITY]},
            DO_NOT_SHIP,
            "Do not ship this artifact: parity fails: 7 of 12 texts match transformers.",
            id="parity-fails-of-a-target-alone",
        ),
        pytest.param(
            {"speedup": FAST, "texts": (3, 4), "must_be_lossless": True},
            DO_NOT_SHIP,
            "Do not ship this draft: only 3 of 4 texts are identical with and without speculation, "
            "but the recipe requires all of them.",
            id="faster-but-other-texts",
        ),
        pytest.param(
            {"speedup": FAST, "texts": (3, 4), "verified": True},
            PAYS,
            "It pays: 1.80 times (1.60 to 2.00) as fast as the target alone at 1 request; "
            "only 3 of 4 texts are identical with and without speculation.",
            id="faster-with-other-texts-where-that-is-allowed",
        ),
        pytest.param(
            {"speedup": FAST, "limit": 1.05, "checks": [MISSED], "verified": False},
            NOT_DECIDED,
            "Not decided: the gate min_speedup (1.05) fails with 1.02 times, but bench measured "
            "1.80 times (1.60 to 2.00); run trtspec verify again.",
            id="bench-is-faster-than-the-gate",
        ),
        pytest.param(
            {"speedup": RelativeSpeed(1.02, 1.0, 1.04), "limit": 1.05, "checks": [HELD], "verified": True},
            DO_NOT_SHIP,
            "Do not ship this draft: the gate min_speedup (1.05) holds with 1.06 times, but bench measured "
            "1.02 times (1.00 to 1.04).",
            id="bench-contradicts-the-gate",
        ),
        pytest.param(
            {"speedup": RelativeSpeed(0.97, 0.9, 1.08), "limit": 1.05, "checks": [HELD], "verified": True},
            NOT_DECIDED,
            "Not decided: 0.90 to 1.08 times as fast as the target alone at 1 request, but the gate requires 1.05 "
            "(the gate held with 1.06 times); measure again with --runs 5.",
            id="bench-doubts-the-gate",
        ),
        pytest.param(
            {"speedup": EVEN, "limit": 1.05},
            NOT_DECIDED,
            "Not decided: 0.97 to 1.25 times as fast as the target alone at 1 request, but the gate requires 1.05; "
            "measure again with --runs 5.",
            id="undecided-against-a-gate",
        ),
        pytest.param(
            {"speedup": EVEN},
            NOT_DECIDED,
            "Not decided: 0.97 to 1.25 times as fast as the target alone at 1 request, so it may be slower; "
            "measure again with --runs 5.",
            id="undecided",
        ),
        pytest.param(
            {"speedup": RelativeSpeed(1.4), "load": "4 requests", "more": "more rounds"},
            NOT_DECIDED,
            "Not decided: 1.40 times as fast as the target alone at 4 requests, from one round without an interval; "
            "measure again with more rounds.",
            id="one-round",
        ),
        pytest.param(
            {"speedup": RelativeSpeed(1.02, 1.0, 1.04), "limit": 1.05},
            DO_NOT_SHIP,
            "Do not ship this draft: it is 1.02 times (1.00 to 1.04) as fast as the target alone, "
            "but the gate requires 1.05.",
            id="faster-but-less-than-the-gate-wants",
        ),
        pytest.param(
            {"speedup": FAST, "checks": [FEW], "verified": False},
            DO_NOT_SHIP,
            "Do not ship this draft: min_acceptance fails: acceptance rate 0.400, required: 0.6.",
            id="a-gate-fails",
        ),
        pytest.param(
            {"checks": [OPEN], "verified": True},
            NOT_DECIDED,
            "Not decided: min_speedup: 1.06 times as fast; undecided after 1 run; run trtspec verify again "
            "with --runs 5.",
            id="the-gate-is-undecided",
        ),
        pytest.param(
            {"checks": [OPEN], "speedup": FAST, "limit": 1.05, "verified": True},
            PAYS,
            "It pays: 1.80 times (1.60 to 2.00) as fast as the target alone at 1 request; "
            "min_speedup is undecided in the verification.",
            id="bench-decides-what-the-gate-did-not",
        ),
        pytest.param(
            {"checks": [HELD], "verified": True},
            SHIP,
            "Ship it: the gate min_speedup holds with 1.06 times as fast as the target alone at 1 request.",
            id="only-the-gate",
        ),
        pytest.param(
            {"checks": [LOSSLESS], "verified": True, "measure": "trtspec bench build/x"},
            UNKNOWN,
            "Unknown whether this draft pays: it was not measured; its checks pass; run: trtspec bench build/x.",
            id="verified-but-no-speed",
        ),
        pytest.param(
            {"has_baseline": False, "subject": "eagle3"},
            UNKNOWN,
            "Unknown whether eagle3 pays: the target alone was not measured; "
            "give a server without speculation with --baseline.",
            id="no-baseline",
        ),
        pytest.param(
            {"foreign": ["bench.json is of another artifact"], "measure": "trtspec bench build/x"},
            UNKNOWN,
            "Unknown whether this draft pays: it was not measured: bench.json is of another artifact; "
            "run: trtspec bench build/x.",
            id="results-of-another-artifact",
        ),
        pytest.param(
            {"measure": "trtspec bench build/x"},
            UNKNOWN,
            "Unknown whether this draft pays: it was not measured; run: trtspec bench build/x.",
            id="nothing",
        ),
        pytest.param(
            {"speedup": FAST, "is_expected": True, "measure": "trtspec bench build/x"},
            PAYS,
            "It should pay: expected to be 1.80 times (1.60 to 2.00) as fast as the target alone at 1 request; "
            "measure the artifact with: trtspec bench build/x.",
            id="only-a-profile",
        ),
        pytest.param(
            {"speedup": SLOW, "is_expected": True},
            DO_NOT_SHIP,
            "Do not ship this draft: it is expected to be 0.82 times (0.75 to 0.90) as fast as the target alone "
            "at 1 request.",
            id="only-a-profile-that-is-slower",
        ),
        pytest.param(
            {"method": "none"}, ALONE, "This artifact does not speculate: it runs the target alone.", id="no-method"
        ),
    ],
)
def test_verdict_matches_the_evidence(facts: dict[str, Any], decision: str, text: str) -> None:
    found = decide(evidence(**facts))
    assert (found.text, found.decision) == (text, decision)


OWN = DraftOption("draft_target (./draft)", RelativeSpeed(1.25, 0.97, 1.76))


@pytest.mark.parametrize(
    ("proposal", "decision", "text"),
    [
        pytest.param(
            Proposal(None, OWN, OWN, why_alone="the interval begins below 1.02"),
            DO_NOT_SHIP,
            "Do not speculate: the best option tried, draft_target (./draft), is expected to be 1.25 times "
            "(0.97 to 1.76) as fast as the target alone at 1 request, but the interval begins below 1.02; "
            "use the target alone.",
            id="none",
        ),
        pytest.param(
            Proposal(None),
            ALONE,
            "Do not speculate: none of the options could be measured.",
            id="nothing-tried",
        ),
        pytest.param(
            Proposal(NGRAM, NGRAM, None, 6, by_load=[(1, 2.2), (8, 0.9)]),
            PAYS,
            "Use ngram: it is expected to be 2.20 times (2.00 to 2.40) as fast as the target alone at 1 request, "
            "draft_len 6; it does not pay from 8 concurrent requests.",
            id="of-a-recipe-without-a-method",
        ),
        pytest.param(
            Proposal(NGRAM, NGRAM, OWN, 6),
            DO_NOT_SHIP,
            "Do not ship draft_target (./draft): it is expected to be 1.25 times (0.97 to 1.76) as fast as the target "
            "alone, ngram 2.20 times (2.00 to 2.40) as fast as the target alone at 1 request, draft_len 6.",
            id="another-than-the-recipe-has",
        ),
        pytest.param(
            Proposal(NGRAM, NGRAM, DraftOption("eagle3", FAST), 6),
            PAYS,
            "Use ngram instead of eagle3: 2.20 times (2.00 to 2.40) as fast as the target alone at 1 request, "
            "draft_len 6; eagle3 is 1.80 times (1.60 to 2.00).",
            id="better-than-the-recipe-has",
        ),
    ],
)
def test_verdict_matches_the_proposal(proposal: Proposal, decision: str, text: str) -> None:
    found = decide(proposal)
    assert (found.text, found.decision) == (text, decision)


@pytest.mark.parametrize(
    ("check", "speedup", "acceptance", "texts", "said"),
    [
        (
            HELD,
            RelativeSpeed(0.97, 0.9, 1.08),
            None,
            None,
            "bench measured 0.97 times (0.90 to 1.08) as fast as the target alone",
        ),
        (HELD, EVEN, None, None, ""),
        (MISSED, FAST, None, None, "bench measured 1.80 times (1.60 to 2.00) as fast as the target alone"),
        (MISSED, EVEN, None, None, ""),
        (OPEN, SLOW, None, None, ""),
        (FEW, None, 0.7, None, "bench measured 0.700"),
        (FEW, None, 0.5, None, ""),
        (LOSSLESS, None, None, (3, 4), "bench found 3 of 4 texts identical"),
        (LOSSLESS, None, None, (4, 4), ""),
        (HELD, None, None, None, ""),
    ],
)
def test_gate_contradicted_by_bench_reports_the_measurement(
    check: VerificationCheck,
    speedup: RelativeSpeed | None,
    acceptance: float | None,
    texts: tuple[int, int] | None,
    said: str,
) -> None:
    assert contradicting_measurement(check, speedup, acceptance, texts) == said
