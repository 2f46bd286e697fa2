# SPDX-License-Identifier: Apache-2.0
"""From a recipe to a plan, and from a plan to an artifact: the only module that knows the order of steps.

prepare sources -> examine -> resolve -> lay out the engine's steps (layouts/) -> run them -> publish
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
from trtspec.artifacts.manifest import Backend, Manifest, StepRecord
from trtspec.artifacts.publish import publish_artifact
from trtspec.check import Findings, examine
from trtspec.checkpoint.prepare import OnProgress, prepare_source
from trtspec.backends.base import Case, backends
from trtspec.backends.memory import MemoryPlan
from trtspec.errors import CheckpointError, StepError
from trtspec.files import FileRecord
from trtspec.graph.digest import DigestCache
from trtspec.graph.executor import Observer, StepResult, execute
from trtspec.graph.plan import Plan, StepStatus, plan_status
from trtspec.graph.store import Store
from trtspec.backends.artifact_plan import Ground, Layout, lay_out
from trtspec.methods.speedup import expected_speedup
from trtspec.paths import cache_dir
from trtspec.recipe.diagnostics import RecipeError
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.resolve import ResolvedRecipe, resolve_recipe
from trtspec.steps.convert import ConvertCheckpoint
from trtspec.steps.copy import CopyFiles
from trtspec.graph.files import FileReader
from trtspec.models.source_model import SourceModel

# A plan may read this much of sources it has never seen; a build reads all of it.
READ_WHILE_PLANNING = 1 << 27
SUPPOSED_ACCEPTANCE = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Build:
    """A resolved recipe, what was found of it, and the layout of its artifact."""

    recipe: ResolvedRecipe
    findings: Findings
    case: Case
    layout: Layout

    @cached_property
    def plan(self) -> Plan:
        """Return the steps in order."""
        return Plan(self.layout.steps.values())

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
        return backends()[self.recipe.engine.backend].memory(self.case)

    def speculation(self) -> dict[str, object]:
        """Return how much a step drafts, by which rule it is accepted, and what an engine build is told of it."""
        speculation, extent = self.recipe.speculation, self.case.extent
        return {
            "method": speculation.method,
            "draft_len": extent.depth,
            "draft_tokens": extent.nodes,
            "acceptance": speculation.acceptance,
            "build_arguments": self.case.method.build_arguments(extent) if self.findings.converts else [],
        }

    def predicted(self) -> dict[str, object]:
        """Return the speed-up to expect at batch 1 for some acceptance rates; empty without a draft model."""
        target, draft, draft_len = self.case.target, self.case.draft, self.recipe.speculation.draft_len
        if target is None or draft is None:
            return {}
        cost = draft.num_parameters / target.num_parameters
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
    problems = []
    for path, source in sources.items():
        try:
            if source:
                prepare_source(source, on_progress)
        except CheckpointError as error:
            problems.append(loaded.problem("error", "checkpoint", path, f"{error.where}: {error.message}", error.hint))
    if problems:
        raise RecipeError(problems)


def plan_build(
    loaded: LoadedRecipe, *, read_all: bool = False, on_read: Callable[[int, int], None] = lambda done, total: None
) -> Build:
    """Examine a recipe and return its build; raises RecipeError with every problem that stands in its way.

    With `read_all` every source is read for its digest, however large; `on_read` gets the bytes done and their total.
    """
    findings = examine(loaded)
    case, chosen = findings.case, findings.chosen
    if findings.errors or case is None or chosen is None:
        raise RecipeError(findings.problems)
    resolved = resolve_recipe(
        case.recipe,
        target_dtype=_dtype(findings.target),
        draft_dtype=_dtype(findings.draft or findings.target),
        backend=chosen.name,
        backend_why=chosen.why,
        version=chosen.version,
        draft_len=case.extent.depth,
        nodes=case.extent.nodes,
        options=case.options.model_dump(mode="json", exclude_none=True),
        acceptance=case.options.acceptance,
        draft_apart=findings.part is None,
    )
    total, done, lock = sum(source.nbytes for source in findings.sources.values()), 0, Lock()

    def on_bytes(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            on_read(done, total)

    digests = DigestCache(cache_dir() / "digests.json")
    reader = FileReader(digests, None if read_all else READ_WHILE_PLANNING, on_bytes)
    return Build(resolved, findings, case, lay_out(chosen.name, Ground(resolved, findings, case, reader)))


def run_build(build: Build, out: Path, store: Store, observer: Observer) -> Built:
    """Bring every step into the store and publish the artifact at `out`."""
    started = time.perf_counter()
    if problems := build.layout.problems():
        raise StepError("; ".join(problems), hint="what is installed here is not what engine.version says")
    results = execute(build.plan, store, observer, build.layout.devices)
    entries = {result.key: result.entry for result in results}
    records, files = [], {}
    for directory, step in build.layout.steps.items():
        entry = entries[step.key]
        for file in entry.files:
            path = f"{directory}/{file.path}" if directory else file.path
            records.append(FileRecord(path=path, size=file.size, sha256=file.sha256))
            files[path] = entry.files_dir / file.path
    manifest = Manifest(
        recipe=build.recipe.as_dict(),
        steps=tuple(StepRecord(name=result.name, key=result.key) for result in results),
        files=tuple(sorted(records, key=lambda record: record.path)),
        tools={**_tools(), **build.layout.tools},
        gpu=dict(build.layout.gpu),
        backend=Backend(name=build.recipe.engine.backend, why=build.recipe.engine.backend_why),
    )
    status = publish_artifact(out, files, manifest)
    if status == "published":
        for result in results:
            store.restamp(result.key)
    return Built(out, status, results, time.perf_counter() - started)


def _tools() -> dict[str, str]:
    return {"trtspec": __version__, "python": platform.python_version(), "numpy": version("numpy")}


def _dtype(model: SourceModel | None) -> str:
    """Return what a model computes in; one that no family describes is left to its engine."""
    return model.config.dtype if model else "source"
