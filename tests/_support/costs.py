# SPDX-License-Identifier: Apache-2.0
"""`--costs[=N]`: report the processor time of tests, with the N most expensive files and tests.

User and system time do not depend on other load, unlike wall time. They include child processes, and processes that
outlive a test (a deployed server left to later tests) as long as they are visible.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

MARK = "TRTSPEC_COSTS"
TICKS = os.sysconf("SC_CLK_TCK")
MOST = 40


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", nargs="?", type=int, const=MOST, help="report the processor time of tests")


def pytest_configure(config: pytest.Config) -> None:
    """Start measuring."""
    if config.getoption("costs"):
        config.pluginmanager.register(Costs(), "costs")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the most expensive files and tests."""
    if not (most := config.getoption("costs")):
        return
    files: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for report in terminalreporter.stats.get("", ()):  # pytest keeps reports of teardowns there
        tests[report.nodeid] += getattr(report, "processor_s", 0)
        files[report.nodeid.split("::")[0]] += getattr(report, "processor_s", 0)
    terminalreporter.section(f"processor: {sum(files.values()):.1f} s")
    for name, seconds in [*files.most_common(most), *tests.most_common(most)]:
        terminalreporter.write_line(f"{seconds:8.1f} {name}")


class Costs:
    """Adds the time since the previous test to the last report of each test."""

    def __init__(self) -> None:
        os.environ[MARK] = str(os.getpid())
        self.mark = f"{MARK}={os.getpid()}".encode()
        self.strangers: set[int] = set()
        self.seen = self.look()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, Any]:
        """Add a test's time to its report."""
        report = yield
        if call.when == "teardown":
            report.processor_s = self.passed()
        return report

    def passed(self) -> float:
        """Return the seconds since the last call, of this process and its children."""
        before, self.seen = self.seen, self.look()
        passed = sum(seen.ticks - (before[pid].ticks if pid in before else 0) for pid, seen in self.seen.items())
        # The parent of an ended process waited for it and includes its time now, unless the parent had ended before.
        passed -= sum(old.ticks for pid, old in before.items() if pid not in self.seen and old.parent in before)
        return passed / TICKS

    def look(self) -> dict[int, Seen]:
        """Return the processes of this run."""
        seen = {}
        for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
            if pid not in self.strangers:
                with suppress(OSError):
                    if self.is_ours(pid):
                        seen[pid] = read(pid)
                    else:
                        self.strangers.add(pid)
        return seen

    def is_ours(self, pid: int) -> bool:
        return pid == os.getpid() or self.mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


class Seen(NamedTuple):
    """A snapshot of a process: its time including its waited-for children, and its parent."""

    ticks: int
    parent: int


def read(pid: int) -> Seen:
    """Return a process's data from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Seen(sum(map(int, fields[11:15])), int(fields[1]))
