# SPDX-License-Identifier: Apache-2.0
"""`--costs[=N]`: what tests took of the processor, the dearest N files and tests.

Seconds of user and system time do not depend on who else uses the machine, as a clock does. They count what a test
started, and what outlived it (a server, deployed and left to its successors) as long as it is seen.
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
    parser.addoption("--costs", nargs="?", type=int, const=MOST, help="say what tests took of the processor")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to count."""
    if config.getoption("costs"):
        config.pluginmanager.register(Costs(), "costs")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the dearest files and tests."""
    if not (most := config.getoption("costs")):
        return
    files: Counter[str] = Counter()
    tests: Counter[str] = Counter()
    for report in terminalreporter.stats.get("", ()):  # where pytest keeps reports of teardowns
        tests[report.nodeid] += getattr(report, "processor_s", 0)
        files[report.nodeid.split("::")[0]] += getattr(report, "processor_s", 0)
    terminalreporter.section(f"processor: {sum(files.values()):.1f} s")
    for name, seconds in [*files.most_common(most), *tests.most_common(most)]:
        terminalreporter.write_line(f"{seconds:8.1f} {name}")


class Costs:
    """Tells the last report of each test what passed since the test before."""

    def __init__(self) -> None:
        os.environ[MARK] = str(os.getpid())
        self.mark = f"{MARK}={os.getpid()}".encode()
        self.strangers: set[int] = set()
        self.seen = self.look()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, Any]:
        """Note on the report what its test took."""
        report = yield
        if call.when == "teardown":
            report.processor_s = self.passed()
        return report

    def passed(self) -> float:
        """Return the seconds since the last call, of this process and of what it started."""
        before, self.seen = self.seen, self.look()
        passed = sum(seen.ticks - (before[pid].ticks if pid in before else 0) for pid, seen in self.seen.items())
        # who ended was waited for by its parent, which has its time now; unless that had left it behind
        passed -= sum(old.ticks for pid, old in before.items() if pid not in self.seen and old.parent in before)
        return passed / TICKS

    def look(self) -> dict[int, Seen]:
        """Return the processes there are of this run."""
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
    """What was seen of a process: its time, with that of those it waited for, and its parent."""

    ticks: int
    parent: int


def read(pid: int) -> Seen:
    """Return what /proc says of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Seen(sum(map(int, fields[11:15])), int(fields[1]))
