# SPDX-License-Identifier: Apache-2.0
"""Interpolation of the break-even load between measured loads."""

from __future__ import annotations

import pytest

from trtspec.report.plots import faster_ranges, find_break_even

LOADS = (1, 4, 16, 64)


@pytest.mark.parametrize(
    ("ratios", "place", "load"),
    [
        ([2.0, 1.5, 1.1, 0.9], 2.5, 32.0),  # halfway on a logarithmic axis
        ([2.0, 1.0, 0.5, 0.4], 1.0, 4.0),
        ([2.0, None, 0.0, None], 1.0, 4.0),  # across a missing value
        ([0.9, 1.2, 0.6, 0.5], 1 + 1 / 3, 4 * 4 ** (1 / 3)),  # below 1 at the first load
    ],
)
def test_break_even_is_interpolated_where_the_ratio_crosses_one(
    ratios: list[float | None], place: float, load: float
) -> None:
    found = find_break_even(LOADS, ratios)
    assert found
    assert (found.place, found.load) == pytest.approx((place, load))


def test_faster_ranges_describe_the_crossings() -> None:
    assert faster_ranges(LOADS, [2.0, 1.5, 1.2, 1.1]) == "up to 64+"
    assert faster_ranges(LOADS, [0.9, 0.8, 0.7, 0.7]) == "nowhere"
    assert faster_ranges(LOADS, [None, None, None, None]) == "nowhere"
    assert faster_ranges(LOADS, [0.99, 1.2, 1.3, 1.4]) == "from 4 on"
    assert faster_ranges(LOADS, [0.9, 1.25, 0.5, None]) == "from 4 to ~6"
    assert faster_ranges(LOADS, [None, 1.25, 0.5, 1.1]) == "up to ~6 and from 64 on"
    assert faster_ranges(LOADS, [2.0, 1.5, 1.1, 0.9]) == "up to ~32"
