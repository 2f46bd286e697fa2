# SPDX-License-Identifier: Apache-2.0
"""Runs a measuring command for many recipes on a pool: one task for each recipe, whose JSON document comes back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import yaml

from trtspec.core.errors import TrtspecError
from trtspec.core.processes import sigterm_as_interrupt
from trtspec.fleet.command import RunCommand, read_document
from trtspec.fleet.labels import Requirement
from trtspec.fleet.pool import PoolOptions, find_pool
from trtspec.fleet.scheduler import Cell, CellRun, FleetObserver, MissingOutputs, Scheduler, StepRun
from trtspec.planning.cells import recipe_position
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.yaml_tree import plain
from trtspec.store.store import Store


@dataclass(frozen=True)
class Measured:
    """The result of the command for one recipe; `document` is empty if it failed."""

    run: CellRun
    node: str
    seconds: float
    document: dict[str, Any]


def measure_recipes(
    verb: str,
    recipes: Sequence[LoadedRecipe],
    arguments: Sequence[str],
    on: str,
    store: Store,
    observer: FleetObserver,
) -> list[Measured]:
    """Run `trtspec VERB RECIPE ARGUMENTS --json` for each recipe on a node that has its `fleet.labels`.

    Failures are part of the results. Raises TrtspecError if two recipes have one name, or if the pool is unusable.
    """
    run_id, documents = f"{int(time.time())}-{secrets.token_hex(4)}", dict[str, dict[str, Any]]()
    cells = [_cell(verb, loaded, tuple(arguments), run_id) for loaded in recipes]
    if len({cell.name for cell in cells}) < len(cells):
        raise TrtspecError("two recipes have the same name", hint="give one another name")

    def collect(cell: Cell, steps: Mapping[str, StepRun]) -> None:
        (step,) = cell.steps
        if (entry := store.fetch(step)) is None:
            raise MissingOutputs([step.key])
        documents[cell.name] = read_document(entry.files_dir)

    kind, address = find_pool(on)
    with ExitStack() as stack:
        stack.enter_context(sigterm_as_interrupt())
        pool = stack.enter_context(kind.open(PoolOptions(address)))
        scheduler = Scheduler(cells, pool, publish=collect, observer=observer)
        scheduler.run()
    return [_measured(run, scheduler.steps, documents.get(run.cell.name, {})) for run in scheduler.cells]


def _cell(verb: str, loaded: LoadedRecipe, arguments: tuple[str, ...], run_id: str) -> Cell:
    text = yaml.safe_dump(plain(loaded.tree), sort_keys=False)  # self-contained, with absolute paths
    step = RunCommand(verb, text, arguments, run_id)
    labels = tuple(sorted(loaded.recipe.fleet.labels.items()))
    return Cell(loaded.recipe.name, (step,), {step.key: Requirement(labels)}, recipe_position(loaded))


def _measured(run: CellRun, steps: Mapping[str, StepRun], document: dict[str, Any]) -> Measured:
    (step,) = run.cell.steps
    return Measured(run, steps[step.key].node, steps[step.key].seconds, document)
