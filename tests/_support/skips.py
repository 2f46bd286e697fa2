# SPDX-License-Identifier: Apache-2.0
"""Tells at the end of a run what was not tested here, and why: skipped tests counted by their reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts above pytest's own last line."""
    if lines := counted(reason_of(report) for report in terminalreporter.getreports("skipped")):
        terminalreporter.section("skipped")
        for line in lines:
            terminalreporter.write_line(line)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return why a test was not run."""
    where_and_why = report.longrepr
    reason = where_and_why[2] if isinstance(where_and_why, tuple) else str(where_and_why)
    return reason.removeprefix("Skipped: ")


def counted(reasons: Iterable[str]) -> list[str]:
    """Return a line for each reason, the most frequent first."""
    counts = sorted(Counter(reasons).items(), key=lambda item: (-item[1], item[0]))
    return [f"{count:5} {reason}" for reason, count in counts]
