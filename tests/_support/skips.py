# SPDX-License-Identifier: Apache-2.0
"""Report skipped tests at the end of a run, counted by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the counts above pytest's last line."""
    if lines := counted(reason_of(report) for report in terminalreporter.getreports("skipped")):
        terminalreporter.section("skipped")
        for line in lines:
            terminalreporter.write_line(line)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason for a skip."""
    where_and_why = report.longrepr
    reason = where_and_why[2] if isinstance(where_and_why, tuple) else str(where_and_why)
    return reason.removeprefix("Skipped: ")


def counted(reasons: Iterable[str]) -> list[str]:
    """Return a line for each reason, most frequent first."""
    counts = sorted(Counter(reasons).items(), key=lambda item: (-item[1], item[0]))
    return [f"{count:5} {reason}" for reason, count in counts]
