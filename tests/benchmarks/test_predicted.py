# SPDX-License-Identifier: Apache-2.0
"""What benchmarks of measuring make of their numbers."""

from __future__ import annotations

import argparse

from benchmarks.aiperf_agrees import compared
from benchmarks.predicted import lacking, rows


def test_predictions_are_held_against_what_was_measured() -> None:
    found = {
        "predicted": {"speedups": {"1": {"1": 1.5, "2": 2.0, "3": 2.2}, "4": {"1": 1.2, "2": 1.1}}, "best": {"1": 3}},
        "measured": {"2": {"1": {"ratio": 2.5}}, "3": {"1": {"ratio": 2.2}}},
    }
    assert rows(found) == [
        {
            "batch": 1, "predicted": {"2": 2.0, "3": 2.2}, "measured": {"2": 2.5, "3": 2.2}, "error": 0.2,
            "within": False, "chosen": 3, "chosen_of_best": 0.88,
        }
    ]  # fmt: skip
    assert lacking(found, argparse.Namespace(lens=[1, 2])) == [1]


def test_two_clients_are_compared_by_their_medians() -> None:
    def document(ms: float) -> dict[str, object]:
        arm = {"ttft_ms": {"p50": 100.0}, "tpot_ms": {"p50": ms}}
        return {"points": [{"load": {"concurrency": 1}, "arms": {"served": arm, "baseline": arm}}]}

    rounds = [{"trtspec": document(ours), "aiperf": document(10.0)} for ours in (10.4, 99.0, 9.0)]
    found = compared(rounds)
    assert (found["largest_difference"], found["holds"]) == (0.04, True)
    assert [row["ratio"] for row in found["figures"]] == [1.0, 1.04, 1.0, 1.04]
    assert compared(rounds[1:2])["holds"] is False
