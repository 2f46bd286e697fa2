# SPDX-License-Identifier: Apache-2.0
"""Runs a measuring command for many recipes or artifacts on a pool: one task for each, whose document comes back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trtspec.backends.base import needs_gpu
from trtspec.core.errors import TrtspecError
from trtspec.core.processes import sigterm_as_interrupt
from trtspec.fleet.command import RECIPE, RunCommands, read_document, read_exit_code
from trtspec.fleet.labels import Requirement
from trtspec.fleet.pool import PoolOptions, find_pool
from trtspec.fleet.scheduler import Cell, CellRun, FleetObserver, MissingOutputs, Scheduler, StepRun
from trtspec.planning.cells import recipe_position
from trtspec.planning.remote_tools import engine_labels
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.yaml_tree import plain
from trtspec.store.artifact import load_manifest
from trtspec.store.store import Store

ARTIFACT = "artifact"  # below the directory of the commands


@dataclass(frozen=True)
class Measurement:
    """Commands that measure a recipe or an artifact, and the node that they require.

    `recipe` is the text of the recipe, or "" for an artifact; `where` locates it for users.
    """

    name: str
    commands: tuple[tuple[str, ...], ...]
    requirement: Requirement
    recipe: str = ""
    where: str = ""


@dataclass(frozen=True)
class Measured:
    """The result of one measurement; `document` is empty and `exit_code` 1 if it failed.

    `exit_code` is also not 0 if the results are negative, such as a failed gate of `bench --gates`.
    """

    run: CellRun
    node: str
    seconds: float
    document: dict[str, Any]
    exit_code: int

    @property
    def status(self) -> str:
        return "measured" if self.document else self.run.status


def recipe_measurement(verb: str, loaded: LoadedRecipe, arguments: Sequence[str]) -> Measurement:
    """Return the measurement `trtspec VERB RECIPE ARGUMENTS` on the torch engine, of which every node has one."""
    return Measurement(
        loaded.recipe.name,
        ((verb, RECIPE, *arguments),),
        Requirement(tuple(sorted(loaded.recipe.fleet.labels.items())), exclusive=True),
        yaml.safe_dump(plain(loaded.tree), sort_keys=False),  # self-contained, with absolute paths
        recipe_position(loaded),
    )


def built_measurement(verb: str, loaded: LoadedRecipe, arguments: Sequence[str]) -> Measurement:
    """Return the measurement `trtspec VERB ARTIFACT ARGUMENTS` of a recipe's artifact, which the node builds first."""
    engine = loaded.recipe.engine
    gpus = int(needs_gpu(engine))
    labels = {**loaded.recipe.fleet.labels, **(engine_labels(engine) if gpus else {})}
    return Measurement(
        loaded.recipe.name,
        (("build", RECIPE, "--out", ARTIFACT), (verb, f"./{ARTIFACT}", *arguments)),
        Requirement(tuple(sorted(labels.items())), gpus, exclusive=True),
        yaml.safe_dump(plain(loaded.tree), sort_keys=False),
        recipe_position(loaded),
    )


def artifact_measurement(verb: str, root: Path, arguments: Sequence[str]) -> Measurement:
    """Return the measurement `trtspec VERB ARTIFACT ARGUMENTS`; the artifact is at the same path on all nodes."""
    manifest, path = load_manifest(root), str(root.absolute())
    engine = manifest.recipe.engine
    gpus = int(needs_gpu(engine))
    labels = engine_labels(engine) if gpus else {}
    requirement = Requirement(tuple(sorted(labels.items())), gpus, exclusive=True)
    return Measurement(manifest.recipe.name, ((verb, path, *arguments),), requirement, where=str(root))


def measure_all(measurements: Sequence[Measurement], on: str, store: Store, observer: FleetObserver) -> list[Measured]:
    """Run measurements on a pool, one at a time on each node.

    Failures are part of the results. Raises TrtspecError if two have one name, or if the pool is unusable.
    """
    run_id = f"{int(time.time())}-{secrets.token_hex(4)}"
    found: dict[str, tuple[dict[str, Any], int]] = {}
    cells = [_cell(each, run_id) for each in measurements]
    if len({cell.name for cell in cells}) < len(cells):
        raise TrtspecError("two of them have the same name", hint="change `name` in one of the recipes")

    def collect(cell: Cell, steps: Mapping[str, StepRun]) -> None:
        (step,) = cell.steps
        if (entry := store.fetch(step)) is None:
            raise MissingOutputs([step.key])
        found[cell.name] = read_document(entry.files_dir), read_exit_code(entry.files_dir)

    kind, address = find_pool(on)
    with ExitStack() as stack:
        stack.enter_context(sigterm_as_interrupt())
        pool = stack.enter_context(kind.open(PoolOptions(address)))
        scheduler = Scheduler(cells, pool, publish=collect, observer=observer)
        scheduler.run()
    return [_measured(run, scheduler.steps, *found.get(run.cell.name, ({}, 1))) for run in scheduler.cells]


def _cell(measurement: Measurement, run_id: str) -> Cell:
    step = RunCommands(measurement.recipe, measurement.commands, run_id)
    return Cell(measurement.name, (step,), {step.key: measurement.requirement}, measurement.where)


def _measured(run: CellRun, steps: Mapping[str, StepRun], document: dict[str, Any], exit_code: int) -> Measured:
    (step,) = run.cell.steps
    return Measured(run, steps[step.key].node, steps[step.key].seconds, document, exit_code)
