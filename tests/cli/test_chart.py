# SPDX-License-Identifier: Apache-2.0
"""Plots of text: marks stand where their numbers are, in any width."""

from __future__ import annotations

import pytest

from trtspec.cli.chart import BETWEEN, LEAST, MARK, MOST, chart

ROWS = [("1", [("a", 2.0), ("b", 2.9)]), ("16", [("a", 0.5), ("b", 1.0)])]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_marks_stand_where_their_numbers_are(width: int) -> None:
    ticks, first, second = chart("requests", ROWS, width)
    assert max(map(len, (ticks, first, second))) <= min(width, MOST + 20)
    left = ticks.index("0x")
    scale = (ticks.index("2x") - left) / 2
    for line, marks in zip((first, second), (ROWS[0][1], ROWS[1][1]), strict=True):
        for letter, value in marks:
            assert abs(line.index(letter) - left - value * scale) <= 1
    assert first.index(MARK) == ticks.index("1x")
    assert set(first[first.index("a") + 1 : first.index("b")]) == {BETWEEN}


def test_marks_on_each_other_are_several() -> None:
    _, row = chart("requests", [("1", [("a", 1.5), ("b", 1.501), ("c", 0.4)])], 80)
    assert row.count("*") == 1
    assert "c" in row


def test_a_narrow_terminal_has_none() -> None:
    assert chart("requests", ROWS, LEAST) == []


def test_large_numbers_have_fewer_ticks() -> None:
    ticks, row = chart("requests", [("1", [("a", 22.0)])], 80)
    assert ticks.split()[1:4] == ["0x", MARK, "2x"]
    assert row.endswith("a")
