# SPDX-License-Identifier: Apache-2.0
"""Predictions compared with published measurements; `rows.yaml` has every row with its URL."""

from __future__ import annotations

from math import exp, log
from statistics import mean
from typing import Any

import pytest

from tests.planning.prediction.published import ROWS, pair

ALONE, SPEEDUP = 0.20, 0.25  # maximum relative errors of the target's speed and of the speed-up


def told(row: dict[str, Any]) -> str:
    return " ".join(str(row[key]) for key in ("gpu", "target", "draft_len", "batch", "tokens_per_s") if key in row)


@pytest.mark.parametrize("row", ROWS["alone"], ids=told)
def test_target_speed_matches_published_measurements(row: dict[str, Any]) -> None:
    assert 1 / pair(row).alone_seconds(1) == pytest.approx(row["tokens_per_s"], rel=ALONE)


@pytest.mark.parametrize("row", ROWS["known_wrong"], ids=told)
def test_four_bit_target_is_slower_than_predicted(row: dict[str, Any]) -> None:
    assert 1 / pair(row).alone_seconds(1) > row["tokens_per_s"] * (1 + ALONE)


@pytest.mark.parametrize("row", ROWS["measured_length"], ids=told)
def test_speed_with_measured_accepted_len_matches_published_measurements(row: dict[str, Any]) -> None:
    seconds = pair(row).step_seconds(1, row["draft_len"])
    assert row["accepted_len"] / seconds == pytest.approx(row["tokens_per_s"], rel=SPEEDUP)


@pytest.mark.parametrize("group", ["nvidia", "sglang", "3090"])
def test_one_acceptance_rate_fits_all_rows_of_a_pair(group: str) -> None:
    rows = [row for row in ROWS["speedup"] if str(row["group"]) == group]

    def off(rate: float) -> list[float]:
        return [log(pair(row).speedup(rate, row["draft_len"], row.get("batch", 1)) / row["speedup"]) for row in rows]

    low, high = 0.0, 1.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(off(middle)) < 0 else (low, middle)
    assert 0.6 < low < 0.95
    assert max(exp(abs(each)) - 1 for each in off(low)) < SPEEDUP, (low, off(low))


def test_every_row_has_a_source_url() -> None:
    rows = [row for kind in ("alone", "known_wrong", "measured_length", "speedup") for row in ROWS[kind]]
    assert len(rows) >= 40
    assert all(ROWS["addresses"][row["source"]].startswith("https://") for row in rows)
