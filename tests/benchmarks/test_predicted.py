# SPDX-License-Identifier: Apache-2.0
"""Comparison of predictions and measurements."""

from __future__ import annotations

import argparse

from benchmarks.predicted import lacking, rows
from benchmarks.predicted_pool import pooled


def test_predictions_are_compared_with_measurements() -> None:
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


def test_profiles_are_compared_with_all_measured_servers() -> None:
    """The second length was measured at 2.0 in the first run and at 1.0 in the second."""
    predictions = [
        {"speedups": {"1": {"1": 1.2, "2": by_two, "3": 1.0}}, "best": {"1": best}}
        for by_two, best in ((1.5, 2), (1.2, 1))
    ]
    runs = [
        {"predictions": predictions[:1], "measured": {"2": {"1": {"ratio": 2.0}}, "1": {"1": {"ratio": 1.2}}}},
        {"predictions": predictions[1:], "measured": {"2": {"1": {"ratio": 1.0}}}},
    ]
    found = pooled(runs)
    assert [*found["measured"]] == ["1", "2"]
    assert found["measured"]["2"]["1"] == {"ratio": 1.4142, "servers": 2, "most": 2.0, "least": 1.0}
    assert found["summary"] == {"1": {"errors": [0.061, 0.151], "chosen": [2, 1], "chosen_of_best": [1.0, 0.849]}}
