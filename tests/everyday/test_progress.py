# SPDX-License-Identifier: Apache-2.0
"""Progress lines in a log every 30 s, with a simulated clock."""

from __future__ import annotations

from time import sleep
from types import SimpleNamespace
from typing import cast

import pytest
from rich.progress import Progress

from tests.conftest import Run
from trtspec.cli import progress as module
from trtspec.cli.progress import PERIOD_S, BuildBars, Counter, build_bars, counter, report_progress
from trtspec.store.step import Step


class Clock:
    """Simulated clock that advances on each of a number of waits."""

    def __init__(self, waits: int) -> None:
        self.now, self.left = 100.0, waits

    def __call__(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        """Advance the time; return True after the last wait, like a set event."""
        self.now += seconds
        self.left -= 1
        return self.left < 0


def progress_lines(
    capfd: pytest.CaptureFixture[str], work: list[tuple[str, int, int | None]], waits: int = 1
) -> list[str]:
    clock = Clock(waits)
    progress = Progress(disable=True, get_time=clock)
    for what, done, total in work:
        progress.update(progress.add_task(what, total=total), completed=done)
    report_progress(progress, clock.wait)
    out, err = capfd.readouterr()
    assert out == ""
    return err.splitlines()


def test_progress_line_has_percentage_and_time_left(capfd: pytest.CaptureFixture[str]) -> None:
    assert PERIOD_S <= 30
    assert progress_lines(capfd, [("convert-target", 25, 100)]) == ["  convert-target: 25 %, 1 min 30 s left"]
    assert progress_lines(capfd, [("a", 75, 100), ("b", 1, 1000)]) == [
        "  a: 75 %, 10 s left",
        "  b: 0 %, 8 h 19 min left",
    ]


def test_progress_is_reported_every_30_seconds(capfd: pytest.CaptureFixture[str]) -> None:
    lines = progress_lines(capfd, [("build-target", 0, None)], waits=3)
    assert lines == [f"  build-target: {spent} elapsed" for spent in ("30 s", "1 min 00 s", "1 min 30 s")]


def test_progress_of_unstarted_or_finished_work_has_no_estimate(capfd: pytest.CaptureFixture[str]) -> None:
    assert progress_lines(capfd, [("a", 0, 100)]) == ["  a: 0 %, unknown time left"]
    assert progress_lines(capfd, [("a", 100, 100)]) == ["  still running after 30 s"]
    assert progress_lines(capfd, [("a", 1, 100)], waits=0) == []


@pytest.mark.parametrize(
    ("expected", "done", "said"), [(90.0, 0, "0 %, 1 min 00 s"), (20.0, 0, "0 %, 0 s"), (90.0, 50, "50 %, 30 s")]
)
def test_time_left_before_the_first_bytes_uses_earlier_builds(
    capfd: pytest.CaptureFixture[str], expected: float, done: int, said: str
) -> None:
    clock = Clock(1)
    progress = Progress(disable=True, get_time=clock)
    bars = BuildBars(progress, lambda step: expected)
    step = cast(Step, SimpleNamespace(name="convert-target", key="key"))
    bars.step_started(step, 100)
    bars.step_advanced(step, done)
    report_progress(progress, clock.wait)
    assert capfd.readouterr().err == f"  convert-target: {said} left\n"


def test_progress_reports_only_unfinished_counts(capfd: pytest.CaptureFixture[str]) -> None:
    clock = Clock(1)
    progress = Progress(disable=True, get_time=clock)
    count = Counter(progress)
    count("parity", 3, 3)
    count("lossless", 1, 4)
    report_progress(progress, clock.wait)
    assert capfd.readouterr().err == "  lossless: 25 %, 1 min 30 s left\n"


@pytest.mark.slow
def test_progress_is_reported_without_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.01)
    with counter() as count:
        count("lossless", 1, 4)
        sleep(0.2)
    assert "  lossless: 25 %, " in capfd.readouterr().err
    sleep(0.05)
    assert capfd.readouterr().err == ""  # the reporting thread has ended


@pytest.mark.slow
def test_generate_with_a_prompt_file_reports_progress(trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PERIOD_S", 0.01)
    monkeypatch.setattr("trtspec.bench.artifact.generate_many", lambda *_, **__: sleep(0.2) or [])
    done = trtspec("generate", "build/tiny", "--prompts", "some.jsonl")
    assert done.document == {"format_version": 1, "results": []}
    assert "  still running after 0 s\n" in done.err


def test_progress_line_of_a_build_is_not_wrapped(capfd: pytest.CaptureFixture[str]) -> None:
    what = f"fetch /{'long path/' * 20}"
    with build_bars() as bars:
        bars.preparing(what, 0, 10)
    assert capfd.readouterr().err == f"  {what}\n"


def test_short_command_reports_no_progress(trtspec: Run, workplace: object) -> None:
    assert trtspec("cache", "--verify").err == ""
