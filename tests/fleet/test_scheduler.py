# SPDX-License-Identifier: Apache-2.0
"""The scheduler on simulated nodes: each key once, losses, errors, and cells that cannot be placed."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.fleet.scripted import ScriptedPool
from tests.fleet.steps import Work, cell, expected
from trtspec.core.errors import TrtspecError
from trtspec.fleet.labels import Node, Requirement, explain_unplaceable
from trtspec.fleet.pool import DeferredPool, Event, Finished, Lost, Outcome, Pool, Task
from trtspec.fleet.scheduler import Cell, Limits, MissingOutputs, Scheduler, StepRun, UnobservedFleet
from trtspec.store import entry
from trtspec.store.store import Store

NODES = [Node(f"node{number}", {"gpu": gpu}, 2) for number, gpu in enumerate(["h100", "h200", "h200"])]


class Published:
    """Records the published cells; raises MissingOutputs for the keys in `lost` once."""

    def __init__(self, store: Path, lost: list[str] | None = None) -> None:
        self.store, self.names, self.lost = Store(store), [], lost or []
        self.texts: dict[str, str] = {}

    def __call__(self, cell: Cell, steps: Mapping[str, StepRun]) -> None:
        if lost := [key for key in self.lost if key in {step.key for step in cell.steps}]:
            for key in lost:
                self.lost.remove(key)
                self.store.remove(key)
            raise MissingOutputs(lost)
        self.names.append(cell.name)
        for step in cell.steps:
            found = self.store.get(step.key).entry
            assert found
            self.texts[step.key] = (found.files_dir / "text").read_text()


def matrix(cells: int) -> list[Cell]:
    """Return cells of four steps: one for all of them, one for every ten, and two of their own."""
    common = Work("common")
    shared = [Work(f"shared{number}", (common,)) for number in range(-(-cells // 10))]
    return [cell(f"cell{n}", Work(f"emit{n}", (Work(f"own{n}", (shared[n // 10],)), common))) for n in range(cells)]


def test_200_cells_with_50_lost_nodes_build_each_key_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entry, "TICK_NS", 0)  # else each entry waits until its files' times have settled
    monkeypatch.setattr(os, "fsync", lambda file: None)
    cells, published = matrix(200), Published(tmp_path)
    pool = ScriptedPool(NODES, tmp_path, losses=50)
    scheduler = Scheduler(cells, pool, publish=published, limits=Limits(attempts=50))
    scheduler.run()
    keys = {step.key for each in cells for step in each.steps}
    assert pool.losses == 0
    assert sum(run.losses for run in scheduler.steps.values()) == 50
    assert pool.built == dict.fromkeys(keys, 1)
    assert {run.status for run in scheduler.cells} == {"built"}
    assert sorted(published.names) == sorted(each.name for each in cells)
    for each in cells:
        for step in each.steps:
            assert isinstance(step, Work)
            assert published.texts[step.key] == expected(step)
    assert pool.most_running == 6


def test_second_run_submits_only_what_the_store_lacks(tmp_path: Path) -> None:
    store = Store(tmp_path)
    Scheduler(matrix(3), ScriptedPool(NODES, tmp_path)).run()
    pool = ScriptedPool(NODES, tmp_path)
    scheduler = Scheduler(matrix(4), pool, has=lambda step: store.get(step.key).entry is not None)
    scheduler.run()
    assert sorted(scheduler.steps[key].step.name for key in pool.submitted) == ["emit3", "own3"]
    assert [run.status for run in scheduler.cells] == ["built"] * 4


def test_step_whose_output_nothing_needs_does_not_run(tmp_path: Path) -> None:
    common = Work("common")
    here, there = Work("here", (common,)), Work("there", (Work("between", (common,)),))
    nowhere = {key: Requirement((("gpu", "b200"),)) for key in (common.key, here.key)}
    present = {here.key}
    cells = [
        Cell("a", (common, here), nowhere, outputs=frozenset({here.key})),
        Cell("b", cell("b", there).steps, outputs=frozenset({there.key})),
    ]
    pool, published = ScriptedPool(NODES, tmp_path), list[str]()
    scheduler = Scheduler(
        cells[:1], pool, has=lambda step: step.key in present, publish=lambda cell, steps: published.append(cell.name)
    )
    scheduler.run()
    assert (published, pool.submitted) == (["a"], [])
    assert {run.step.name: run.status for run in scheduler.steps.values()} == {"common": "unneeded", "here": "hit"}
    scheduler = Scheduler(cells, pool, has=lambda step: step.key in present)
    scheduler.run()
    assert [scheduler.steps[key].step.name for key in pool.submitted] == ["common", "between", "there"]
    assert [run.status for run in scheduler.cells] == ["built", "built"]


@pytest.mark.parametrize(("fault", "message", "code"), [("error", "the tool failed", 100), ("bug", "ZeroDivision", 70)])
def test_failed_step_ends_its_cells_only_and_is_not_repeated(
    fault: str, message: str, code: int, tmp_path: Path
) -> None:
    bad, good = Work("bad", (Work("common"),), fault=fault), Work("good", (Work("common"),))
    pool = ScriptedPool(NODES, tmp_path)
    scheduler = Scheduler([cell("a", Work("x", (bad,))), cell("b", good), cell("c", bad)], pool)
    scheduler.run()
    a, b, c = scheduler.cells
    assert (a.status, b.status, c.status) == ("failed", "built", "failed")
    assert a.failure
    assert message in a.failure.message
    assert (a.failure.exit_code, a.step) == (code, "bad")
    assert pool.submitted.count(bad.key) == 1


def test_step_that_loses_every_worker_fails_after_the_attempts(tmp_path: Path) -> None:
    pool = ScriptedPool(NODES, tmp_path, losses=9, rate=1.0)
    scheduler = Scheduler([cell("a", Work("x"))], pool, limits=Limits(attempts=3))
    scheduler.run()
    (run,) = scheduler.cells
    assert run.failure
    assert run.failure.message.startswith("its worker was lost 3 times, last on node")
    assert scheduler.steps[Work("x").key].losses == 3


def test_unplaceable_cell_is_explained_at_once_and_others_run(tmp_path: Path) -> None:
    cells = [
        cell("fits", Work("x"), requirement=Requirement((("gpu", "h200"),))),
        *(cell(f"not{n}", Work(f"y{n}"), requirement=Requirement((("gpu", "b200"),), 1)) for n in range(199)),
    ]
    started = time.monotonic()
    scheduler = Scheduler(cells, ScriptedPool(NODES, tmp_path))
    scheduler.run()
    assert time.monotonic() - started < 2
    assert [run.status for run in scheduler.cells] == ["built"] + ["unplaceable"] * 199
    failure = scheduler.cells[1].failure
    assert failure
    assert failure.message == (
        "no node can run y0: it requires gpu=b200 GPUs>=1; node0 (gpu=h100) lacks gpu=b200, GPUs>=1; "
        "node1 and 1 more (gpu=h200) lacks gpu=b200, GPUs>=1"
    )


def test_strict_run_refuses_to_start_with_an_unplaceable_cell(tmp_path: Path) -> None:
    pool = ScriptedPool(NODES, tmp_path)
    cells = [cell("fits", Work("x")), cell("not", Work("y"), requirement=Requirement((("gpu", "b200"),)))]
    with pytest.raises(TrtspecError, match="1 of 2 cells cannot be placed: not: no node can run y"):
        Scheduler(cells, pool, limits=Limits(strict=True)).run()
    assert pool.submitted == []


def test_step_runs_only_where_its_labels_fit(tmp_path: Path) -> None:
    cells = [cell(f"c{n}", Work(f"s{n}"), requirement=Requirement((("gpu", "h100"),))) for n in range(10)]
    scheduler = Scheduler(cells, ScriptedPool(NODES, tmp_path))
    scheduler.run()
    assert {run.node for run in scheduler.steps.values()} == {"node0"}


def test_step_shared_by_different_cells_runs_where_either_fits(tmp_path: Path) -> None:
    shared = Work("shared")
    cells = [
        cell("never", shared, requirement=Requirement((("gpu", "b200"),))),
        cell("fits", shared, requirement=Requirement((("gpu", "h100"),))),
    ]
    scheduler = Scheduler(cells, ScriptedPool(NODES, tmp_path))
    scheduler.run()
    assert scheduler.steps[shared.key].node == "node0"


def test_cell_that_waits_for_nodes_is_built_when_one_joins(tmp_path: Path) -> None:
    now = [0.0]
    pool = ScriptedPool(NODES, tmp_path)

    def clock() -> float:
        now[0] += 1.0
        if now[0] > 100:
            pool._nodes.append(Node("late", {"gpu": "b200"}))
        return now[0]

    cells = [cell("late", Work("x"), requirement=Requirement((("gpu", "b200"),)))]
    messages: list[str] = []

    class Observer(UnobservedFleet):
        def message(self, run: StepRun, text: str) -> None:
            messages.append(text)

    scheduler = Scheduler(cells, pool, limits=Limits(wait_s=600), clock=clock, observer=Observer())
    scheduler.run()
    (message,) = messages
    assert message.startswith("waiting for a node, for 600 s: it requires gpu=b200; node0 (gpu=h100) lacks gpu=b200")
    assert (scheduler.cells[0].status, scheduler.steps[Work("x").key].node) == ("built", "late")


def test_lost_outputs_are_built_again(tmp_path: Path) -> None:
    work = Work("x", (Work("common"),))
    pool = ScriptedPool(NODES, tmp_path)
    published = Published(tmp_path, lost=[Work("common").key])
    scheduler = Scheduler([cell("a", work)], pool, publish=published)
    scheduler.run()
    assert published.names == ["a"]
    assert pool.built == {Work("common").key: 2, work.key: 1}


def test_worker_without_an_input_has_it_built_again_within_the_attempts(tmp_path: Path) -> None:
    need = Work("need")

    class Forgetful(ScriptedPool):
        def wait(self, timeout_s: float) -> list:  # type: ignore[type-arg]
            events = super().wait(timeout_s)
            return [
                Finished(each.key, Outcome("missing", "node0", missing=(need.key,)))
                if isinstance(each, Finished) and each.key != need.key
                else each
                for each in events
            ]

    scheduler = Scheduler([cell("a", Work("x", (need,)))], Forgetful(NODES, tmp_path), limits=Limits(attempts=3))
    scheduler.run()
    failure = scheduler.cells[0].failure
    assert failure
    assert failure.message == "node0 does not find the output of need"
    assert "TRTSPEC_REMOTE" in (failure.hint or "")


def test_pool_that_never_starts_a_step_is_given_up(tmp_path: Path) -> None:
    class Stuck(ScriptedPool):
        def wait(self, timeout_s: float) -> list:  # type: ignore[type-arg]
            return []

    now = iter(range(10**6))
    with pytest.raises(TrtspecError, match=r"no step has run for .* s, although 1 are queued"):
        Scheduler([cell("a", Work("x"))], Stuck(NODES, tmp_path), clock=lambda: float(next(now))).run()


def test_explanation_of_a_pool_without_nodes() -> None:
    assert explain_unplaceable([Requirement()], []) == "it requires any node, and the pool has no nodes"


def test_key_that_a_lost_worker_published_counts_as_built(tmp_path: Path) -> None:
    class Late(ScriptedPool):
        """Loses a worker after it has published the output and before it has reported that."""

        def _end(self, task: Task, node: Node) -> Event:
            event = super()._end(task, node)
            if self.built[task.step.key] == 1 and self.submitted.count(task.step.key) == 1:
                return Lost(task.step.key, node.name, "the node was lost")
            return event

    work = Work("x")
    scheduler = Scheduler([cell("a", work)], pool := Late(NODES, tmp_path))
    scheduler.run()
    run = scheduler.steps[work.key]
    assert (pool.built[work.key], run.builds, run.losses, run.status) == (1, 1, 1, "built")
    assert run.node.startswith("node")


def test_step_queued_for_a_lost_node_is_queued_for_another_that_fits(tmp_path: Path) -> None:
    """Ray keeps a task whose labels no node has any more; the step's other cell fits a node."""
    shared, now = Work("shared"), [0.0]
    nodes = [Node("first", {"zone": "a"}), Node("second", {"zone": "b"})]

    class Losing(ScriptedPool):
        def wait(self, timeout_s: float) -> list:  # type: ignore[type-arg]
            self._nodes = nodes[1:]
            return super().wait(timeout_s)

    def clock() -> float:
        now[0] += 1.0
        return now[0]

    cells = [cell(zone, shared, requirement=Requirement((("zone", zone),))) for zone in ("a", "b")]
    scheduler = Scheduler(cells, pool := Losing(nodes, tmp_path), clock=clock)
    scheduler.run()
    assert pool.submitted == [shared.key, shared.key]
    assert scheduler.steps[shared.key].node == "second"
    assert [run.status for run in scheduler.cells] == ["built", "built"]


def test_pool_is_not_used_if_no_step_has_to_run(tmp_path: Path) -> None:
    def open_pool() -> Pool:
        raise AssertionError("the pool was opened")

    handed_over, published = [], []
    cells = [cell("a", Work("x", (Work("common"),)))]
    with DeferredPool(open_pool) as pool:
        scheduler = Scheduler(
            cells,
            pool,
            has=lambda step: True,
            hand_over=lambda step: handed_over.append(step.name),
            publish=lambda cell, steps: published.append(cell.name),
        )
        scheduler.run()
    assert (published, handed_over) == (["a"], ["common", "x"])


def test_unplaceable_cells_are_explained_before_the_workers_are_prepared(tmp_path: Path) -> None:
    class Unprepared(ScriptedPool):
        def prepare(self) -> None:
            raise AssertionError("the workers were prepared")

    scheduler = Scheduler(
        [cell("a", Work("x"), requirement=Requirement((("gpu", "b200"),)))], Unprepared(NODES, tmp_path)
    )
    scheduler.run()
    assert scheduler.cells[0].status == "unplaceable"


@pytest.mark.parametrize(
    ("label", "hint"),
    [
        (("zone", "A"), "did you mean zone=a?"),
        (("gpu", "h10o"), "did you mean gpu=h100?"),
        (("gpu", "tpu-v5"), "the label gpu of the nodes is h100, h200"),
        (("zonne", "a"), "no node has a label zonne; did you mean zone?"),
        (("rack", "7"), "start a node with these labels, or wait for one with --wait-for-nodes"),
    ],
)
def test_hint_names_the_nearest_label(label: tuple[str, str], hint: str, tmp_path: Path) -> None:
    nodes = [Node("n0", {"zone": "a", "gpu": "h100"}), Node("n1", {"zone": "b", "gpu": "h200"})]
    scheduler = Scheduler([cell("a", Work("x"), requirement=Requirement((label,)))], ScriptedPool(nodes, tmp_path))
    scheduler.run()
    failure = scheduler.cells[0].failure
    assert failure
    assert failure.hint == hint
