# SPDX-License-Identifier: Apache-2.0
"""The report of skipped tests."""

from __future__ import annotations

import pytest

from tests._support.skips import counted, reason_of


def skipped(longrepr: object) -> pytest.TestReport:
    return pytest.TestReport("a", ("a", 1, "a"), {}, "skipped", longrepr, "setup")  # type: ignore[arg-type]


def test_skip_reason_is_the_message_without_prefix() -> None:
    assert reason_of(skipped(("tests/a.py", 3, "Skipped: no g++ on the PATH"))) == "no g++ on the PATH"
    assert reason_of(skipped("expected to fail")) == "expected to fail"


def test_skip_reasons_are_counted_and_sorted_by_frequency() -> None:
    assert counted(["b", "a", "c", "c"]) == ["    2 c", "    1 a", "    1 b"]
    assert counted([]) == []
