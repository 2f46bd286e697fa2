# SPDX-License-Identifier: Apache-2.0
"""pytest plugin that writes one JSON line per test when it ends, so that a terminated run keeps its results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

MESSAGE_CHARACTERS = 1500


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu-report", type=Path, metavar="FILE", help="write a line of JSON for each test")


def pytest_configure(config: pytest.Config) -> None:
    # the workers of pytest-xdist report to the process that started them
    if (path := config.getoption("gpu_report")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Report(path))


class Report:
    """Appends to a file; a test counts once, by its first phase that did not pass."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: set[str] = set()

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.nodeid not in self._told and (report.when == "call" or not report.passed):
            self._tell(report)

    def pytest_collectreport(self, report: Any) -> None:
        if not report.passed:
            self._tell(report)

    def _tell(self, report: Any) -> None:
        self._told.add(report.nodeid)
        message = "" if report.passed else str(report.longrepr)[-MESSAGE_CHARACTERS:]
        found = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "seconds": round(getattr(report, "duration", 0.0), 2),
            "message": message,
        }
        with self._path.open("a") as file:
            file.write(json.dumps(found) + "\n")
