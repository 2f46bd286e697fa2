# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests._support import order

ROOT = Path(__file__).parents[2]
LISTED = ("tests/a/", "tests/test_b.py")
NODEIDS = ["tests/a/test_1.py::x", "tests/a/test_2.py::x", "tests/test_b.py::x[a::b]", "tests/test_c.py::x"]


class Node:
    """A fake worker that is sent tests by number."""

    shutting_down = False
    gateway = SimpleNamespace(id="gw")

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.send_runtest_some = self.sent.append

    def shutdown(self) -> None:
        self.shutting_down = True


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order, "longest", lambda: LISTED)
    monkeypatch.setattr(order, "unit_of", order.unit_of.__wrapped__)


def test_listed_units_run_first_and_alone_tests_first_within_a_unit() -> None:
    def item(nodeid: str, mark: str = "") -> Any:
        return SimpleNamespace(nodeid=nodeid, get_closest_marker=lambda name: name == mark or None)

    items = [
        item("tests/test_c.py::x"),
        item("tests/test_d.py::x", "alone"),
        item("tests/test_b.py::x"),
        item("tests/a/test_1.py::x"),
        item("tests/a/test_2.py::x", "alone"),
    ]
    order.pytest_collection_modifyitems(items)
    files = [each.nodeid.removeprefix("tests/").removesuffix(".py::x") for each in items]
    assert files == ["a/test_2", "a/test_1", "test_b", "test_c", "test_d"]


@pytest.fixture
def nodes() -> tuple[Node, Node]:
    return Node(), Node()


@pytest.fixture
def scheduler(nodes: tuple[Node, Node]) -> Any:
    """The scheduler after it sent the first tests to two workers."""
    options = SimpleNamespace(loadscopereorder=True)
    config = SimpleNamespace(option=options, getvalue=lambda name: ["popen", "popen"] if name == "tx" else None)
    scheduler = order.pytest_xdist_make_scheduler(config, None)  # type: ignore[arg-type]
    for node in nodes:
        scheduler.add_node(node)
        scheduler.add_node_collection(node, NODEIDS)
    scheduler.schedule()
    return scheduler


def test_scheduler_sends_whole_units_in_collection_order(nodes: tuple[Node, Node], scheduler: Any) -> None:
    assert [node.sent for node in nodes] == [[[0, 1], [3]], [[2]]]


def test_scheduler_reassigns_unstarted_tests_of_a_dead_worker(nodes: tuple[Node, Node], scheduler: Any) -> None:
    scheduler.mark_test_complete(nodes[0], 0)
    assert scheduler.remove_node(nodes[0]) == NODEIDS[1]
    other = Node()
    scheduler.add_node(other)
    scheduler.add_node_collection(other, NODEIDS)
    scheduler.schedule()
    assert other.sent == [[3]]
    scheduler.mark_test_complete(other, 3)
    scheduler.mark_test_complete(nodes[1], 2)
    assert scheduler.remove_node(nodes[1]) is None
    assert not scheduler.has_pending


def test_listed_units_exist_and_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    units = order.longest()
    assert len({*units}) == len(units) > 20
    assert [unit for unit in units if not (ROOT / unit).exists() or (ROOT / unit).is_dir() != unit.endswith("/")] == []
