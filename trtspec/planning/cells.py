# SPDX-License-Identifier: Apache-2.0
"""Builds several recipes on a pool: plans all of them on this machine, runs each step once, publishes each artifact.

An artifact has the same bytes as one built by `trtspec build` alone: its files come from the store by step key, and
its manifest from the plan.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from trtspec.checkpoints.resolve import OnProgress
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import StepError, TrtspecError
from trtspec.core.processes import sigterm_as_interrupt
from trtspec.fleet.hand_over import fetch_output
from trtspec.fleet.labels import Requirement
from trtspec.fleet.pool import DeferredPool, PoolOptions, find_pool
from trtspec.fleet.scheduler import Cell, CellRun, FleetObserver, Limits, MissingOutputs, Scheduler, StepRun
from trtspec.fleet.worker import make_here
from trtspec.planning.check.recipe import CheckResult
from trtspec.planning.pipeline import Build, check_builds, default_artifact_dir, plan_runnable, publish_build
from trtspec.planning.remote_tools import RemoteTools, engine_labels
from trtspec.recipe.load import LoadedRecipe, display_name
from trtspec.recipe.validate import find_mark
from trtspec.store.entry import StoreEntry
from trtspec.store.executor import StepResult
from trtspec.store.step import Step
from trtspec.store.store import Store

HERE = "this machine"


@dataclass(frozen=True)
class FleetRequest:
    """The recipes of a build on a pool; `until` limits all of them as in `Build.until`, without publishing."""

    recipes: Sequence[LoadedRecipe]
    on: str
    until: str = ""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class CellResult:
    """The result of one cell: its state, its steps in plan order, and the published artifact, if there is one."""

    run: CellRun
    steps: list[StepRun]
    artifact: Path | None = None
    manifest: str = ""
    status: Literal["published", "unchanged", ""] = ""


@dataclass(frozen=True)
class FleetResult:
    """The results of all cells in the order of the recipes, and the state of each step key."""

    cells: list[CellResult]
    steps: Mapping[str, StepRun]
    seconds: float

    @property
    def failed(self) -> list[CellResult]:
        return [cell for cell in self.cells if cell.run.status != "built"]


@dataclass(frozen=True)
class Events:
    """Callbacks of a build on a pool; see `trtspec.build` for the last three."""

    observer: FleetObserver
    on_prepare: OnProgress = lambda what, done, total: None
    on_read: Callable[[int, int], None] = lambda done, total: None
    on_warnings: Callable[[Sequence[Diagnostic]], None] = lambda diagnostics: None


def build_cells(request: FleetRequest, store: Store, events: Events) -> FleetResult:
    """Build all recipes of a request; cells that fail or cannot be placed are part of the result.

    Raises RecipeError with the problems of all recipes before anything runs, and TrtspecError if the pool cannot be
    used.
    """
    started = time.perf_counter()
    kind, address = find_pool(request.on)
    checks = _check(request, store, elsewhere=kind.is_remote)
    with ExitStack() as stack:
        stack.enter_context(sigterm_as_interrupt())
        # The tools of a remote pool are part of the plan, and the devices of this machine follow from the plan.
        deferred = DeferredPool(lambda: kind.open(PoolOptions(address)))
        remote = stack.enter_context(deferred) if kind.is_remote else None
        builds = _plan(request, checks, store, events, RemoteTools(remote) if remote else None)
        cells = [_cell(loaded, builds[loaded.recipe.name]) for loaded in request.recipes]
        publisher = _Publisher(builds, store, started, publishes=not request.until)
        for name, build in builds.items():
            stack.enter_context(store.holding([step.key for step in build.plan.steps], name))
        devices = tuple(dict.fromkeys(device for build in builds.values() for device in build.artifact.devices))
        pool = remote or stack.enter_context(kind.open(PoolOptions(address, devices)))
        scheduler = Scheduler(
            cells,
            pool,
            has=_lookup(store, builds.values(), elsewhere=kind.is_remote),
            hand_over=_sending(store, elsewhere=kind.is_remote),
            publish=publisher.publish,
            observer=events.observer,
            limits=request.limits,
        )
        scheduler.run()
    results = [
        CellResult(run, [scheduler.steps[step.key] for step in run.cell.steps], *publisher.published(run.cell.name))
        for run in scheduler.cells
    ]
    return FleetResult(results, scheduler.steps, time.perf_counter() - started)


def _check(request: FleetRequest, store: Store, *, elsewhere: bool) -> list[CheckResult]:
    """Check all recipes; raise TrtspecError if two have the same name."""
    names: set[str] = set()
    for loaded in request.recipes:
        if (name := loaded.recipe.name) in names:
            where = display_name(loaded.path)
            raise TrtspecError(f"two recipes have the name {name}", where=where, hint="give one another name")
        names.add(name)
    pairs = [(loaded, default_artifact_dir(loaded.recipe)) for loaded in request.recipes]
    return check_builds(pairs, store, request.until, elsewhere=elsewhere)


def _plan(
    request: FleetRequest, checks: Sequence[CheckResult], store: Store, events: Events, tools: RemoteTools | None
) -> dict[str, Build]:
    """Return the plans of the checked recipes by name; `tools` are those of a remote pool."""
    builds = {}
    for loaded, checked in zip(request.recipes, checks, strict=True):
        build = plan_runnable(
            loaded,
            checked,
            store,
            events.on_prepare,
            events.on_read,
            request.until,
            elsewhere=tools is not None,
            read_all=True,
            remote_probe=partial(tools.probe, loaded.recipe.fleet.labels) if tools else None,
        )
        events.on_warnings(build.diagnostics)
        name = loaded.recipe.name
        builds[name] = build.until(request.until) if request.until else build
        if not tools and (problems := builds[name].artifact.problems()):
            raise StepError("; ".join(problems), hint="the installed version differs from engine.version")
    return builds


def _cell(loaded: LoadedRecipe, build: Build) -> Cell:
    requirements = {step.key: step_requirement(loaded, build, step) for step in build.plan.steps}
    return Cell(loaded.recipe.name, build.plan.steps, requirements, recipe_position(loaded), build.plan.targets)


def recipe_position(loaded: LoadedRecipe) -> str:
    """Return the position of a recipe's name as FILE:LINE, for messages."""
    mark = find_mark(loaded.tree, "", ["name"])
    return f"{mark.file}:{mark.line}" if mark.line else display_name(loaded.path)


def step_requirement(loaded: LoadedRecipe, build: Build, step: Step) -> Requirement:
    """Return what a step requires of its node.

    All steps require the recipe's `fleet.labels`. Steps with devices also require that number of GPUs of the
    recipe's kind (label `gpu`), and the version of the engine (a label with the backend's name).
    """
    labels = {**loaded.recipe.fleet.labels, **(engine_labels(build.recipe.engine) if step.num_devices else {})}
    return Requirement(tuple(sorted(labels.items())), step.num_devices)


def _lookup(store: Store, builds: Iterable[Build], *, elsewhere: bool) -> Callable[[Step], bool]:
    """Return a function that returns whether workers do not have to run a step.

    This machine or, for workers `elsewhere`, the team store has its output, or each machine makes it when it needs it,
    because no team store gets it.
    """
    keys = {step.key for build in builds for step in build.plan.steps}
    there = store.remote.find(keys) if elsewhere and store.remote else frozenset[str]()

    def has(step: Step) -> bool:
        return step.key in there or (elsewhere and not step.is_shared) or store.get(step.key).entry is not None

    return has


def _sending(store: Store, *, elsewhere: bool) -> Callable[[Step], None]:
    """Return a function that sends what only this machine has to the team store, for workers `elsewhere`."""

    def send(step: Step) -> None:
        if elsewhere and store.remote and store.get(step.key).entry:
            store.obtain(step)

    return send


class _Publisher:
    """Publishes the artifact of each finished cell from the driver's store."""

    def __init__(self, builds: Mapping[str, Build], store: Store, started: float, *, publishes: bool) -> None:
        self._builds, self._store, self._started, self._publishes = builds, store, started, publishes
        self._published: dict[str, tuple[Path, str, Literal["published", "unchanged"]]] = {}

    def publish(self, cell: Cell, steps: Mapping[str, StepRun]) -> None:
        """Publish a cell; raise MissingOutputs if the store lacks an output of its steps."""
        if not self._publishes:
            return
        found = {step.key: self._find(step, steps[step.key]) for step in cell.steps if step.key in cell.published}
        if missing := [key for key, entry in found.items() if entry is None]:
            raise MissingOutputs(missing)
        results = [
            StepResult(step, steps[step.key].status or "unneeded", steps[step.key].seconds, found.get(step.key))
            for step in cell.steps
        ]
        build = self._builds[cell.name]
        built = publish_build(build, default_artifact_dir(build.recipe), self._store, results, self._started)
        self._published[cell.name] = (built.artifact, built.manifest, built.status)

    def _find(self, step: Step, run: StepRun) -> StoreEntry | None:
        entry = fetch_output(step, self._store)
        if entry or step.is_shared or run.status != "hit":
            return entry
        made = make_here(step, self._store)
        run.status, run.builds, run.node = made.status, int(made.built), HERE
        return made.entry

    def published(self, name: str) -> tuple[Path | None, str, Literal["published", "unchanged", ""]]:
        return self._published.get(name, (None, "", ""))
