# SPDX-License-Identifier: Apache-2.0
"""`--strict-hw`: skipped hardware tests fail on a machine that has the hardware."""

from __future__ import annotations

from collections.abc import Generator

import pytest

HARDWARE = ("gpu", "trtllm")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--strict-hw", action="store_true", help="skipped tests of hardware count as failures")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure; tests that need more memory than available fail by themselves."""
    report = yield
    strict = item.config.getoption("strict_hw") and any(map(item.get_closest_marker, HARDWARE))
    if strict and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome, report.longrepr = "failed", f"under --strict-hw: {reason}"
    return report
