# SPDX-License-Identifier: Apache-2.0
"""Text plots: marks are at the positions of their values, in any width."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trtspec.cli import render
from trtspec.cli.layout import BETWEEN, LEAST, MARK, MOST, chart
from trtspec.cli.profile import _show_chart as show_profile_chart

ROWS = [("1", [("a", 2.0), ("b", 2.9)]), ("16", [("a", 0.5), ("b", 1.0)])]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_marks_are_at_the_positions_of_their_values(width: int) -> None:
    ticks, first, second = chart("requests", ROWS, width)
    assert max(map(len, (ticks, first, second))) <= min(width, MOST + 20)
    left = ticks.index("0x")
    scale = (ticks.index("2x") - left) / 2
    for line, marks in zip((first, second), (ROWS[0][1], ROWS[1][1]), strict=True):
        for letter, value in marks:
            assert abs(line.index(letter) - left - value * scale) <= 1
    assert first.index(MARK) == ticks.index("1x")
    assert set(first[first.index("a") + 1 : first.index("b")]) == {BETWEEN}


def test_overlapping_marks_become_an_asterisk() -> None:
    _, row = chart("requests", [("1", [("a", 1.5), ("b", 1.501), ("c", 0.4)])], 80)
    assert row.count("*") == 1
    assert "c" in row


def test_narrow_terminal_has_no_chart() -> None:
    assert chart("requests", ROWS, LEAST) == []


def test_large_numbers_have_fewer_ticks() -> None:
    ticks, row = chart("requests", [("1", [("a", 22.0)])], 80)
    assert ticks.split()[1:4] == ["0x", MARK, "2x"]
    assert row.endswith("a")


@pytest.mark.parametrize("terminal", [True, False])
def test_charts_are_shown_only_on_terminals(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trtspec.cli.render.is_terminal", lambda stream: terminal)
    render.show_chart("by load", "requests", ROWS, {"a": "draft_target", "b": "ngram"})
    shown = capsys.readouterr().out
    assert shown.splitlines()[:1] == (["by load"] if terminal else [])
    assert ("a: draft_target, b: ngram" in shown) is terminal


def test_profile_chart_has_a_row_per_load_and_a_letter_per_draft(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trtspec.cli.render.is_terminal", lambda stream: True)
    speedups = {1: 2.0, 16: 0.5}
    measured = SimpleNamespace(
        batches=tuple(speedups),
        candidate=SimpleNamespace(name="draft_target"),
        best=lambda batch: SimpleNamespace(expected=SimpleNamespace(value=speedups[batch])),
    )
    show_profile_chart(SimpleNamespace(measured=[measured]))  # type: ignore[arg-type]
    _, ticks, one, many, letters = capsys.readouterr().out.splitlines()
    assert one.split()[0] == "1"
    assert abs(one.index("a") - ticks.index("2x")) <= 1
    assert many.split()[0] == "16"
    assert many.index("a") < ticks.index("1x")
    assert letters == "a: draft_target"
