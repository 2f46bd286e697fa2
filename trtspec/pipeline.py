# SPDX-License-Identifier: Apache-2.0
"""From a recipe to a plan, and from a plan to an artifact: the only module that knows the order of steps.

prepare sources -> check -> the backend's plan of the artifact -> run its steps -> publish
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Literal

from trtspec import __version__
from trtspec.artifacts.manifest import BackendRecord, Manifest, StepRecord
from trtspec.artifacts.origins import remember_origin
from trtspec.artifacts.publish import publish_artifact
from trtspec.backends.artifact_plan import ArtifactPlan
from trtspec.backends.base import Backend, engine_arguments, find_backend
from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext
from trtspec.check import check_recipe
from trtspec.checkpoint.prepare import OnProgress, prepare_source
from trtspec.diagnostics import Diagnostic, RecipeError
from trtspec.errors import CheckpointError, StepError
from trtspec.files import FileRecord
from trtspec.graph.digest import DigestCache
from trtspec.graph.executor import Observer, StepResult, execute
from trtspec.graph.files import FileReader
from trtspec.graph.plan import Plan, StepStatus, plan_status
from trtspec.graph.store import Store
from trtspec.methods.speedup import expected_speedup
from trtspec.paths import cache_dir
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.steps.convert import ConvertCheckpoint
from trtspec.steps.copy import CopyFiles

# A plan may read this much of sources it has never seen; a build reads all of it.
READ_WHILE_PLANNING = 1 << 27
SUPPOSED_ACCEPTANCE = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Build:
    """A recipe that can be built: what is known of it, what `check` warned of, and the plan of its artifact."""

    context: PlanContext
    diagnostics: list[Diagnostic]
    artifact: ArtifactPlan

    @property
    def recipe(self) -> ResolvedRecipe:
        """Return the recipe with nothing left open."""
        return self.context.resolved

    @property
    def backend(self) -> Backend:
        """Return the backend that runs it."""
        return find_backend(self.context.choice.name)

    @cached_property
    def plan(self) -> Plan:
        """Return the steps in order."""
        return Plan(self.artifact.steps.values())

    @property
    def is_read(self) -> bool:
        """Return whether all sources were read, so that the steps' keys are final."""
        return all(
            files.is_read
            for step in self.plan.steps
            if isinstance(step, ConvertCheckpoint | CopyFiles)
            for files in step.sources
        )

    def status(self, store: Store) -> list[StepStatus]:
        """Return for each step whether it would run, and why."""
        return plan_status(self.plan, store)

    def memory(self) -> list[MemoryPlan]:
        """Return what serving takes on each device."""
        return self.backend.memory(self.context)

    def speculation(self) -> dict[str, object]:
        """Return how much a step drafts, by which rule it is accepted, and what an engine build is told of it."""
        speculation, shape = self.recipe.speculation, self.context.draft_shape
        return {
            "method": speculation.method,
            "draft_len": shape.max_depth,
            "draft_tokens": shape.max_tokens,
            "acceptance": speculation.acceptance,
            "build_arguments": engine_arguments(speculation.method, shape) if self.backend.converts else [],
        }

    def predicted(self) -> dict[str, object]:
        """Return the speed-up to expect at batch 1 for some acceptance rates; empty without a draft model."""
        target, draft = self.context.target_config, self.context.draft_config
        if target is None or draft is None:
            return {}
        cost, draft_len = draft.num_parameters / target.num_parameters, self.recipe.speculation.draft_len
        speedup = {str(rate): round(expected_speedup(rate, draft_len, cost), 2) for rate in SUPPOSED_ACCEPTANCE}
        return {"draft_cost": round(cost, 4), "speedup_by_acceptance_rate": speedup}


@dataclass(frozen=True)
class Built:
    """What became of a build."""

    artifact: Path
    status: Literal["published", "unchanged"]
    steps: list[StepResult]
    seconds: float


def open_store() -> Store:
    """Return the store of this user."""
    return Store(cache_dir() / "store")


def prepare_sources(loaded: LoadedRecipe, on_progress: OnProgress = lambda what, done, total: None) -> None:
    """Download and unpickle what a recipe names and is not there yet, for `plan_build` to find.

    `on_progress` gets what is done, the bytes done and their total. Raises RecipeError with every model that cannot be
    had.
    """
    sources = {"target.model": loaded.recipe.target, "speculation.draft.model": loaded.recipe.speculation.draft}
    diagnostics = []
    for path, source in sources.items():
        try:
            if source:
                prepare_source(source, on_progress)
        except CheckpointError as error:
            message = f"{error.where}: {error.message}"
            diagnostics.append(loaded.located(Diagnostic(path, "checkpoint", message, error.hint)))
    if diagnostics:
        raise RecipeError(diagnostics)


def plan_build(
    loaded: LoadedRecipe, *, read_all: bool = False, on_read: Callable[[int, int], None] = lambda done, total: None
) -> Build:
    """Examine a recipe and return its build; raises RecipeError with every problem that stands in its way.

    With `read_all` every source is read for its digest, however large; `on_read` gets the bytes done and their total.
    """
    checked = check_recipe(loaded)
    context = checked.context
    if checked.errors or context is None:
        raise RecipeError(checked.diagnostics)
    total, done, lock = sum(source.nbytes for source in context.sources.values()), 0, Lock()

    def on_bytes(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            on_read(done, total)

    digests = DigestCache(cache_dir() / "digests.json")
    reader = FileReader(digests, None if read_all else READ_WHILE_PLANNING, on_bytes)
    return Build(context, checked.diagnostics, find_backend(context.choice.name).plan(context, reader))


def run_build(build: Build, out: Path, store: Store, observer: Observer) -> Built:
    """Bring every step into the store and publish the artifact at `out`."""
    started = time.perf_counter()
    if problems := build.artifact.problems():
        raise StepError("; ".join(problems), hint="what is installed here is not what engine.version says")
    results = execute(build.plan, store, observer, build.artifact.devices)
    entries = {result.key: result.entry for result in results}
    records, files = [], {}
    for directory, step in build.artifact.steps.items():
        entry = entries[step.key]
        for file in entry.files:
            path = f"{directory}/{file.path}" if directory else file.path
            records.append(FileRecord(path=path, size=file.size, sha256=file.sha256))
            files[path] = entry.files_dir / file.path
    manifest = Manifest(
        recipe=build.recipe.without_places(),
        steps=tuple(StepRecord(name=result.name, key=result.key) for result in results),
        files=tuple(sorted(records, key=lambda record: record.path)),
        tools={**_tools(), **build.artifact.tools},
        gpu=dict(build.artifact.gpu),
        backend=BackendRecord(name=build.recipe.engine.backend, why=build.recipe.engine.backend_why),
    )
    status = publish_artifact(out, files, manifest)
    if not build.recipe.target.revision:
        remember_origin(manifest, build.recipe.target.model)
    if status == "published":
        for result in results:
            store.restamp(result.key)
    return Built(out, status, results, time.perf_counter() - started)


def _tools() -> dict[str, str]:
    return {"trtspec": __version__, "python": platform.python_version(), "numpy": version("numpy")}
