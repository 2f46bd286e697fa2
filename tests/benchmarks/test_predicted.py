# SPDX-License-Identifier: Apache-2.0
"""What a benchmark makes of predictions and of what was measured."""

from __future__ import annotations

import argparse

from benchmarks.predicted import lacking, rows


def test_predictions_are_held_against_what_was_measured() -> None:
    speedups = [{"1": {"1": 1.5, "2": more, "3": 2.2}, "4": {"1": 1.2, "2": 1.1}} for more in (1.0, 2.1, 2.0)]
    found = {
        "predictions": [{"speedups": each, "best": {"1": 3}} for each in speedups],
        "measured": {"2": {"1": {"ratio": 2.5}}, "3": {"1": {"ratio": 2.2}}},
    }
    assert rows(found) == [
        {
            "batch": 1, "predicted": {"2": 2.0, "3": 2.2}, "measured": {"2": 2.5, "3": 2.2}, "error": 0.2,
            "within": False, "chosen": 3, "chosen_of_best": 0.88,
        }
    ]  # fmt: skip
    assert rows(found | {"measured": {}}) == []
    assert lacking(found, argparse.Namespace(lens=[1, 2])) == [1]
