# SPDX-License-Identifier: Apache-2.0
"""Many node losses on a real Ray cluster: after every eighth key a node is killed with SIGKILL and replaced.

`TRTSPEC_FLEET_LOSSES=50` runs 200 cells; the default is a tenth of that.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.cluster import RayCluster, ray_environment, variables_set
from tests.fleet.steps import Work, cell, expected
from trtspec.core.ports import free_ports
from trtspec.fleet.pool import PoolOptions, find_pool
from trtspec.fleet.scheduler import Cell, CellRun, Limits, MissingOutputs, Scheduler, StepRun
from trtspec.planning.pipeline import open_store
from trtspec.store.step import Step

pytest.importorskip("ray")

LOSSES = int(os.environ.get("TRTSPEC_FLEET_LOSSES", "5"))
CELLS, NODES, KEYS_PER_LOSS = 4 * LOSSES, 3, 8


class Killer:
    """Observer that kills a random node each time KEYS_PER_LOSS more keys are done, and starts another one."""

    def __init__(self, cluster: RayCluster, base: Path) -> None:
        self._cluster, self._base, self._random = cluster, base, random.Random(1)
        self._nodes = [self._add(number) for number in range(NODES)]
        self.losses = 0

    def _add(self, number: int) -> Any:
        return self._cluster.add(self._base / f"cache-{number}", {"number": str(number)})

    def changed(self, cells: list[CellRun], steps: Mapping[str, StepRun]) -> None:
        done = sum(run.state == "done" for run in steps.values())
        if self.losses < min(LOSSES, done // KEYS_PER_LOSS):
            self._cluster.kill(self._nodes.pop(self._random.randrange(NODES)))
            self._nodes.append(self._add(NODES + self.losses))
            self.losses += 1

    def advanced(self, run: object, n_bytes: int) -> None: ...
    def message(self, run: object, text: str) -> None: ...
    def step_finished(self, run: object) -> None: ...
    def cell_finished(self, run: object) -> None: ...


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    variables = {
        **ray_environment(tmp_path / "without"),
        "TRTSPEC_REMOTE": f"file:{tmp_path / 'team'}",
        "TRTSPEC_CACHE": str(tmp_path / "driver"),
    }
    started = RayCluster(variables, free_ports(1)[0])
    try:
        yield started
    finally:
        started.close()


def matrix(log: Path) -> list[Cell]:
    """Return cells of four steps: one for all of them, one for every ten, and two of their own."""

    def work(title: str, *needs: Work) -> Work:
        return Work(title, needs, seconds=0.3, log=log)

    common = work("common")
    shared = [work(f"shared{number}", common) for number in range(-(-CELLS // 10))]
    return [cell(f"cell{n}", work(f"emit{n}", work(f"own{n}", shared[n // 10]), common)) for n in range(CELLS)]


@pytest.mark.timeout(900)
def test_cells_are_built_although_nodes_are_lost(cluster: RayCluster, tmp_path: Path) -> None:
    log, texts, started = tmp_path / "log", dict[str, str](), time.monotonic()
    cells = matrix(log)
    with variables_set(cluster.variables):
        killer, store = Killer(cluster, tmp_path), open_store()

        def publish(cell: Cell, steps: Mapping[str, StepRun]) -> None:
            found: dict[Step, Any] = {step: store.fetch(step) for step in cell.steps}
            if missing := [step.key for step, entry in found.items() if entry is None]:
                raise MissingOutputs(missing)
            texts.update({step.key: (entry.files_dir / "text").read_text() for step, entry in found.items()})

        kind, address = find_pool(f"ray:{cluster.address}")
        with kind.open(PoolOptions(address)) as pool:
            scheduler = Scheduler(cells, pool, publish=publish, observer=killer, limits=Limits(attempts=50))
            scheduler.run()
    runs = list(scheduler.steps.values())
    ran = Counter(line.split()[0] for line in log.read_text().splitlines())
    sys.stdout.write(
        f"{len(runs)} keys in {time.monotonic() - started:.0f} s, {killer.losses} nodes lost, "
        f"{sum(run.losses for run in runs)} runs lost, builds reported per key: {Counter(run.builds for run in runs)}, "
        f"runs that wrote their output per key: {Counter(ran.values())}\n"
    )
    assert killer.losses == LOSSES
    assert {run.status for run in scheduler.cells} == {"built"}
    assert texts == {run.step.key: expected(run.step) for run in runs if isinstance(run.step, Work)}
    assert {run.builds for run in runs} == {1}
    # A step runs again only if its node was lost while it ran, or before it had published the output.
    assert all(1 <= ran[run.step.name] <= 1 + run.losses for run in runs)
