# SPDX-License-Identifier: Apache-2.0
"""Tests that only `make test-all` runs: those of real engines, and those listed in `thorough.txt`.

They get the mark `thorough(REASON)`. `make test` deselects them and prints their number by reason at its end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ENGINES = {"vllm": "vLLM", "sglang": "SGLang", "edge_llm": "TensorRT Edge-LLM"}
DESELECTED = "deselected thorough tests"

LIST = Path(__file__).with_name("thorough.txt")

_deselected: Counter[str] = Counter()


@cache
def listed() -> tuple[tuple[str, str], ...]:
    """Return pairs of the beginning of a test's id and the reason."""
    lines = (line for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    pairs = (line.rpartition(": ") for line in lines)
    return tuple((path, reason) for reason, _, path in pairs)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of real engines and those in the list."""
    for item in items:
        for path, reason in listed():
            if item.nodeid.startswith(path):
                item.add_marker(pytest.mark.thorough(reason))
        for name, engine in ENGINES.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.thorough(f"the real {engine}"))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Count the deselected tests by reason."""
    marks = (item.get_closest_marker("thorough") for item in items)
    _deselected.update(mark.args[0] for mark in marks if mark)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send a worker's counts to the controller; each worker collects all tests."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput[DESELECTED] = dict(_deselected)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Receive the counts of a worker."""
    _deselected.update(getattr(node, "workeroutput", {}).get(DESELECTED, {}) if not _deselected else {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what `make test-all` adds."""
    if config.option.markexpr == "not thorough" and _deselected:
        terminalreporter.section(f"make test-all runs {_deselected.total():,} tests more")
        for reason, count in _deselected.most_common():
            terminalreporter.write_line(f"{count:5} {reason}")
