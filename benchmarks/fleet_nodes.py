# SPDX-License-Identifier: Apache-2.0
"""Measure the time of a matrix of CPU-bound steps on one node and on two nodes of a real Ray cluster.

The nodes are processes of this machine with one processor each and separate stores, so the machine needs two free
cores. Each step computes for a given processor time and writes a few bytes. A first step on each node starts its worker
and is not measured.

    python -m benchmarks.fleet_nodes [--steps 12] [--seconds 1.5]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tests.fleet.cluster import RayCluster, ray_environment, variables_set
from trtspec.core.ports import free_ports
from trtspec.fleet.labels import Requirement
from trtspec.fleet.pool import Pool, PoolOptions, find_pool
from trtspec.fleet.scheduler import Cell, Scheduler
from trtspec.store.step import Inputs, Step, StepProgress

ZONES = ("a", "b")


@dataclass(frozen=True)
class Compute(Step):
    """Computes for `seconds` of processor time."""

    VERSION: ClassVar[int] = 1
    title: str
    seconds: float = field(default=0.0, metadata={"key": False})

    @property
    def name(self) -> str:
        return self.title

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        end, total = time.thread_time() + self.seconds, 0
        while time.thread_time() < end:
            total += sum(range(1000))
        (out / "text").write_text(self.title)


def measure(pool: Pool, name: str, steps: int, seconds: float, zone: str = "") -> float:
    """Return the wall time of `steps` cells of one step each, on the node of a zone or on all nodes."""
    requirement = Requirement((("zone", zone),) if zone else ())
    cells = []
    for number in range(steps):
        step = Compute(f"{name}-{number}", seconds)
        cells.append(Cell(step.title, (step,), {step.key: requirement}))
    started = time.monotonic()
    scheduler = Scheduler(cells, pool)
    scheduler.run()
    if failed := [run for run in scheduler.cells if run.status != "built"]:
        raise SystemExit(f"{len(failed)} cells were not built: {failed[0].failure}")
    return time.monotonic() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        variables = {
            **ray_environment(base / "without"),
            "TRTSPEC_REMOTE": f"file:{base / 'team'}",
            "TRTSPEC_CACHE": str(base / "driver"),
        }
        variables["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), variables["PYTHONPATH"]])
        cluster = RayCluster(variables, free_ports(1)[0])
        try:
            for zone in ZONES:
                cluster.add(base / zone, {"zone": zone})
            kind, address = find_pool(f"ray:{cluster.address}")
            with variables_set(variables), kind.open(PoolOptions(address)) as pool:
                for zone in ZONES:
                    measure(pool, f"warm-{zone}", 1, 0.0, zone)
                one = measure(pool, "one", options.steps, options.seconds, ZONES[0])
                two = measure(pool, "two", options.steps, options.seconds)
        finally:
            cluster.close()
    print(f"{options.steps} steps of {options.seconds} s of processor time")
    print(f"one node {one:.1f} s, two nodes {two:.1f} s: {one / two:.2f} times")


if __name__ == "__main__":
    main()
