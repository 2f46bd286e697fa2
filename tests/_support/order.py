# SPDX-License-Identifier: Apache-2.0
"""Distribution of tests over several processes: order and grouping.

Tests are distributed in units, so that shared fixtures of a unit are created once: a file, or a folder listed in
`longest.txt`. Units in this file run first and in its order, so that at the end all processes have short tests.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from tests._support.sharing import is_marked

LONGEST = Path(__file__).with_name("longest.txt")


@cache
def longest() -> tuple[str, ...]:
    """Return the longest-running units, longest first."""
    lines = LONGEST.read_text(encoding="utf-8").splitlines()
    return tuple(line for line in lines if not line.startswith("#"))


@cache
def unit_of(file: str) -> str:
    """Return the unit of a file."""
    return next((unit for unit in longest() if file.startswith(unit)), file)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the longest units first, and within a unit the tests that others wait for."""
    ranks = {unit: rank for rank, unit in enumerate(longest())}

    def place(item: pytest.Item) -> tuple[int, bool]:
        return ranks.setdefault(unit_of(file_of(item.nodeid)), len(ranks)), not is_marked(item, "alone")

    items.sort(key=place)


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def by_unit(nodeids: Iterable[str]) -> dict[str, dict[str, bool]]:
    """Return the pending tests in xdist's format."""
    return {unit: dict.fromkeys(tests, False) for unit, tests in groupby(nodeids, lambda each: unit_of(file_of(each)))}


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Assign whole units in collection order."""
    from xdist.scheduler import LoadScopeScheduling

    class ByUnit(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(file_of(nodeid))

        def remove_node(self, node: Any) -> str | None:
            """Return the test in which a worker died, and reassign the tests that it had not started."""
            left = [test for tests in self.assigned_work[node].values() for test, done in tests.items() if not done]
            self.assigned_work[node] = by_unit(left[1:])
            super().remove_node(node)
            return left[0] if left else None

    config.option.loadscopereorder = False
    return ByUnit(config, log)
