# SPDX-License-Identifier: Apache-2.0
"""Plan and build recipes; the only module that defines the order of the build.

check all recipes -> download sources -> the backend's artifact plan -> run its steps -> publish. A partial build stops
before the last step and leaves its results in the store, where another machine can continue.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from trtspec.backends.base import ArtifactPlan, Backend, engine_arguments, find_backend
from trtspec.backends.common.cache_source import store_source
from trtspec.backends.common.convert import ConvertCheckpoint
from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.common.steps import CopyFiles
from trtspec.backends.context import PlanContext, recipe_models
from trtspec.checkpoints.resolve import OnProgress, prepare_source
from trtspec.core.diagnostics import Diagnostic, Mark, RecipeError
from trtspec.core.errors import CheckpointError, StepError, TrtspecError
from trtspec.core.installation import __version__
from trtspec.core.paths import hub_cache_dir, store_dir
from trtspec.core.registry import did_you_mean
from trtspec.planning.check.recipe import CheckResult, check_recipe
from trtspec.planning.prediction.predict import describe_prediction
from trtspec.planning.prediction.speedup import expected_speedup
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.recipe.schema import Recipe
from trtspec.store.artifact import (
    BackendRecord,
    DeviceMemory,
    Manifest,
    StepRecord,
    check_artifact_path,
    manifest_sha256,
    publish_artifact,
)
from trtspec.store.artifact_cache import record_source_locations, remember_published
from trtspec.store.artifact_paths import checkpoint
from trtspec.store.executor import Observer, StepResult, execute
from trtspec.store.files import FileReader, Files
from trtspec.store.plan import DiskNeed, StepPlan, StepStatus, disk_need, lacking_disk, plan_disk, plan_status
from trtspec.store.step import Step
from trtspec.store.store import Store

log = logging.getLogger(__name__)

# Unknown sources up to this size are read for a plan; a build reads larger ones before its first step.
READ_WHILE_PLANNING = 1 << 27
DISK_HINT = "free disk space, or set TRTSPEC_CACHE and --out to other disks"
SUPPOSED_ACCEPTANCE = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Build:
    """A recipe that can be built: its context, the warnings of `check`, and its artifact plan."""

    context: PlanContext
    diagnostics: list[Diagnostic]
    artifact: ArtifactPlan

    @property
    def recipe(self) -> ResolvedRecipe:
        return self.context.resolved

    @property
    def backend(self) -> Backend:
        return find_backend(self.context.choice.name)

    @cached_property
    def plan(self) -> StepPlan:
        return StepPlan(self.artifact.steps.values())

    @property
    def is_read(self) -> bool:
        """Return whether all sources were read."""
        return all(files.is_read for files in self.files)

    @property
    def keys_are_final(self) -> bool:
        """Return whether everything that step keys depend on is known."""
        return self.is_read and self.artifact.keys_are_final

    @property
    def target_key(self) -> str:
        """Return the key of the converted target without embedded draft heads, "" without a conversion."""
        target = self.artifact.steps.get(checkpoint("target"))
        return target.bare_key if isinstance(target, ConvertCheckpoint) else ""

    @property
    def files(self) -> list[Files]:
        """Return the files outside the store that steps read."""
        return _files_of(self.plan.steps)

    def until(self, name: str) -> Build:
        """Return the build of the steps of a name, such as convert-target, and of all that they depend on.

        `name` may be the first part of several names: convert. The result cannot be published. Raises TrtspecError
        with the names of the steps if none matches.
        """
        chosen = [step for step in self.plan.steps if step.name == name or step.name.startswith(f"{name}-")]
        if not chosen:
            names = [step.name for step in self.plan.steps]
            hint = did_you_mean(name, names) or f"steps of {self.recipe.name}: {', '.join(names)}"
            raise TrtspecError(f"--until {name}: no such step", hint=hint)
        kept = {step.key for step in StepPlan(chosen).steps}
        lacks = {self.artifact.steps[place].key: lack for place, lack in self.artifact.lacks.items()}
        lacks = {key: lack for key, lack in lacks.items() if key in kept}
        steps = {step.key: step for step in self.plan.steps if step.key in kept}
        return replace(self, artifact=replace(self.artifact, steps=steps, lacks=lacks))

    @property
    def weights_absent(self) -> bool:
        """Return whether a source is not on this machine, so that no step can read it."""
        return any(source.absent for source in self.context.sources.values())

    def needs_sources(self, store: Store) -> bool:
        """Return whether a step that has to run reads a file that is not on this machine."""
        absent = {source.root / name for source in self.context.sources.values() for name in source.absent}
        missing = [status.step for status in self.status(store) if status.status == "miss"] if absent else []
        return any(path in absent for files in _files_of(missing) for path in files.paths)

    @property
    def downloads(self) -> list[dict[str, Any]]:
        """Return the models whose files are not on this machine, with their sizes."""
        sources = self.context.sources
        return [
            {"model": asked.model, "revision": asked.revision, "bytes": sum(each[1] for each in absent.values())}
            for role, _, asked in recipe_models(self.context)
            if role in sources and (absent := sources[role].absent)
        ]

    def disk(self, store: Store, out: Path) -> list[DiskNeed]:
        """Return the disk space needed and free in the store, at `out`, and in the hub cache."""
        needs = plan_disk(self.status(store), store, out)
        if downloads := sum(each["bytes"] for each in self.downloads):
            needs.append(disk_need("hub cache", hub_cache_dir(), downloads))
        return needs

    def status(self, store: Store) -> list[StepStatus]:
        """Return for each step whether it would run, and why."""
        return plan_status(self.plan, store)

    def missing_tools(self, store: Store) -> list[Diagnostic]:
        """Return why steps that have to run cannot run on this machine."""
        missing = {status.key for status in self.status(store) if status.status == "miss"}
        steps = self.artifact.steps
        return list(dict.fromkeys(lack for name, lack in self.artifact.lacks.items() if steps[name].key in missing))

    def disk_problems(self, store: Store, out: Path) -> list[Diagnostic]:
        """Return an error for each file system without enough free space."""
        needs = plan_disk(self.status(store), store, out)
        return [Diagnostic("", "disk", need.message, DISK_HINT) for need in needs if not need.is_met]

    def disk_warnings(self, store: Store, out: Path) -> list[Diagnostic]:
        """Return a warning for each file system that lacks space for everything that a build writes there."""
        messages = lacking_disk(self.disk(store, out))
        return [Diagnostic("", "disk", message, DISK_HINT, "warning") for message in messages]

    def memory(self) -> list[MemoryPlan]:
        """Return the serving memory of each device."""
        return self.backend.memory(self.context)

    def speculation(self) -> dict[str, object]:
        """Return draft length and tokens, acceptance rule, and the arguments for engine builds."""
        speculation, shape = self.recipe.speculation, self.context.draft_shape
        return {
            "method": speculation.method,
            "draft_len": shape.max_depth,
            "draft_tokens": shape.max_tokens,
            "acceptance": speculation.acceptance,
            "build_arguments": engine_arguments(speculation.method, shape) if self.backend.converts else [],
        }

    def predicted(self, gpu_price: float | None = None) -> dict[str, object]:
        """Return the predicted effect of speculation (docs/planning.md), or the reason for no prediction in "why_not".

        `gpu_price` is in dollars per GPU and hour. Empty if nothing is drafted. With a draft model the result has the
        ratio of parameters and the speed-up that follows from it alone.
        """
        document = describe_prediction(self.context, gpu_price) if self.context.draft_shape.max_depth else {}
        target, draft = self.context.target_config, self.context.draft_config
        if target is None or draft is None:
            return document
        cost, draft_len = draft.num_parameters / target.num_parameters, self.recipe.speculation.draft_len
        speedup = {str(rate): round(expected_speedup(rate, draft_len, cost), 2) for rate in SUPPOSED_ACCEPTANCE}
        return {"draft_cost": round(cost, 4), "speedup_by_acceptance_rate": speedup, **document}


@dataclass(frozen=True)
class BuildResult:
    """Result of a build; `manifest` is the SHA-256 of the artifact's manifest."""

    artifact: Path
    manifest: str
    status: Literal["published", "unchanged"]
    steps: list[StepResult]
    seconds: float


@dataclass(frozen=True)
class PartialBuildResult:
    """Result of a partial build, whose steps are in the store; `remaining` are the names of the steps still to run."""

    steps: list[StepResult]
    remaining: list[str]
    seconds: float


def _files_of(steps: Iterable[Step]) -> list[Files]:
    return [files for step in steps if isinstance(step, ConvertCheckpoint | CopyFiles) for files in step.sources]


def open_store() -> Store:
    return Store(store_dir())


def default_artifact_dir(recipe: Recipe | ResolvedRecipe) -> Path:
    return Path("build") / recipe.name


def plan_build(
    loaded: LoadedRecipe,
    *,
    checked: CheckResult | None = None,
    read_all: bool = False,
    read_at_most: int | None = None,
    on_read: Callable[[int, int], None] = lambda done, total: None,
) -> Build:
    """Check a recipe and return its build; RecipeError with all problems.

    `checked` is the result of a check that was just made. Unknown sources of more than `read_at_most` bytes (by
    default READ_WHILE_PLANNING) are not hashed, unless `read_all` is set, as a build requires. `on_read` gets the bytes
    done and their total.
    """
    checked = checked or check_recipe(loaded)
    context = checked.context
    if checked.errors or context is None:
        raise RecipeError(checked.diagnostics)
    total, done, lock = sum(source.nbytes for source in context.sources.values()), 0, Lock()

    def on_bytes(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            on_read(done, total)

    log.info("%s: backend %s: %s", loaded.recipe.name, context.choice.name, context.choice.why)
    absent = {source.root / name: each for source in context.sources.values() for name, each in source.absent.items()}
    limit = READ_WHILE_PLANNING if read_at_most is None else read_at_most
    reader = FileReader(open_store().digests, None if read_all else limit, on_bytes, absent)
    return Build(context, checked.diagnostics, find_backend(context.choice.name).plan(context, reader))


def run_build(build: Build, out: Path, store: Store, observer: Observer) -> BuildResult:
    """Bring every step into the store and publish the artifact at `out`; all sources of the build must be read."""
    if not build.is_read:
        raise ValueError("the sources were not read: plan the build with read_all")
    started = time.perf_counter()
    if refused := build.disk_problems(store, out):
        raise TrtspecError("; ".join(each.message for each in refused), hint=DISK_HINT)
    if problems := build.artifact.problems():
        raise StepError("; ".join(problems), hint="the installed version differs from engine.version")
    with store.holding([step.key for step in build.plan.steps], build.recipe.name):
        results = execute(build.plan, store, observer, build.artifact.devices)
        status = _publish(build, out, results)
        if status == "published":
            for result in results:
                store.restamp(result.key)
    _remember_sources(build, store)
    log.info("%s: %s", out, status)
    return BuildResult(out, manifest_sha256(out), status, results, time.perf_counter() - started)


def store_steps(build: Build, until: str, store: Store, observer: Observer) -> PartialBuildResult:
    """Bring the steps of a build up to those named `until` into the store (`Build.until`); publishes no artifact."""
    started = time.perf_counter()
    part = build.until(until)
    if not part.is_read:
        raise ValueError("the sources were not read: plan the build with read_all")
    if refused := part.disk_problems(store, store.root):
        raise TrtspecError("; ".join(each.message for each in refused), hint=DISK_HINT)
    with store.holding([step.key for step in part.plan.steps], build.recipe.name):
        results = execute(part.plan, store, observer, part.artifact.devices)
    _remember_sources(part, store)
    done = {step.key for step in part.plan.steps}
    remaining = [step.name for step in build.plan.steps if step.key not in done]
    return PartialBuildResult(results, remaining, time.perf_counter() - started)


def _publish(build: Build, out: Path, results: Sequence[StepResult]) -> Literal["published", "unchanged"]:
    entries = {result.key: result.entry for result in results}
    records, files = [], {}
    for directory, step in build.artifact.steps.items():
        entry = entries[step.key]
        for file in entry.files:
            path = f"{directory}/{file.path}" if directory else file.path
            records.append(file.model_copy(update={"path": path}))
            files[path] = entry.files_dir / file.path
    tools = {"trtspec": __version__, "python": platform.python_version(), "numpy": version("numpy")}
    manifest = Manifest(
        recipe=build.recipe.without_directories(),
        steps=tuple(StepRecord(name=result.name, key=result.key) for result in results),
        files=tuple(sorted(records, key=lambda record: record.path)),
        tools={**tools, **build.artifact.tools},
        gpu=dict(build.artifact.gpu),
        backend=BackendRecord(name=build.recipe.engine.backend, why=build.recipe.engine.backend_why),
        memory=tuple(device_memory(device) for device in build.memory()),
        target_key=build.target_key,
    )
    status = publish_artifact(out, files, manifest)
    remember_published(out, manifest)
    record_source_locations(
        manifest, {role: each.model for role, each in build.recipe.models.items() if not each.revision}
    )
    return status


def device_memory(device: MemoryPlan) -> DeviceMemory:
    """Return a device's memory for the manifest, which excludes the memory of this machine."""
    return DeviceMemory.model_validate({name: getattr(device, name) for name in DeviceMemory.model_fields})


def _remember_sources(build: Build, store: Store) -> None:
    """Save the metadata of hub models for later plans without the files."""
    read = {
        path: (digest, *stat)
        for files in build.files
        for path, (_, digest), stat in zip(files.paths, files.digests, files.stats, strict=True)
    }
    for role, _, asked in recipe_models(build.context):
        source = build.context.sources.get(role)
        is_known = source and all(path in read for path in source.weight_files)
        if source and asked.revision and not source.absent and is_known:
            with suppress(TrtspecError):  # on a full disk a later plan may have to download again
                store_source(asked, source, {path.name: read[path] for path in source.weight_files}, store)


def check_builds(builds: Sequence[tuple[LoadedRecipe, Path]], store: Store, until: str = "") -> list[CheckResult]:
    """Return the check results of each recipe; RecipeError with all problems that would end a build.

    Problems that depend on missing sources are found after the download. `until` limits the build (`Build.until`).
    """
    results = [check_recipe(loaded, will_prepare=True) for loaded, _ in builds]
    found = dict.fromkeys(
        each
        for (loaded, out), checked in zip(builds, results, strict=True)
        for each in (
            *checked.diagnostics,
            *(() if until else _output_problems(out)),
            *_machine_problems(loaded, checked, out, store, until),
        )
    )
    if any(each.severity == "error" for each in found):
        raise RecipeError(list(found))
    return results


def prepare_sources(loaded: LoadedRecipe, on_progress: OnProgress = lambda what, done, total: None) -> None:
    """Download and unpickle missing sources of a recipe for `plan_build`.

    `on_progress` gets a label, the bytes done and their total. RecipeError lists every model that is not available.
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


def plan_runnable(
    loaded: LoadedRecipe,
    checked: CheckResult,
    store: Store,
    on_progress: OnProgress = lambda what, done, total: None,
    on_read: Callable[[int, int], None] = lambda done, total: None,
    until: str = "",
) -> Build:
    """Return a build that can run, of a recipe that was just `checked`, at least until the steps of that name.

    Missing sources are downloaded unless their metadata are cached and the store has every step that reads them.
    RecipeError as for `prepare_sources` and `plan_build`, and if this machine lacks a tool or cannot get its image.
    """
    if checked.context:
        build = plan_build(loaded, checked=checked, read_all=True, on_read=on_read)
        _check_tools(loaded, build, store, until)
        if not (build.until(until) if until else build).needs_sources(store):
            return build
    prepare_sources(loaded, on_progress)
    build = plan_build(loaded, read_all=True, on_read=on_read)
    _check_tools(loaded, build, store, until)
    return build


def _check_tools(loaded: LoadedRecipe, build: Build, store: Store, until: str) -> None:
    """Raise RecipeError with the reasons why steps that have to run cannot run on this machine."""
    if lacks := (build.until(until) if until else build).missing_tools(store):
        raise RecipeError([loaded.located(each) for each in lacks])


def _output_problems(out: Path) -> Iterable[Diagnostic]:
    try:
        check_artifact_path(out)
    except TrtspecError as error:
        yield Diagnostic("", "place", error.message, error.hint).at(Mark(str(out)))


def _machine_problems(
    loaded: LoadedRecipe, checked: CheckResult, out: Path, store: Store, until: str
) -> list[Diagnostic]:
    """Return the tools and disk space that this machine lacks for a build, without reading large sources."""
    if checked.errors or checked.context is None:
        return []
    try:
        build = plan_build(loaded, checked=checked)
    except TrtspecError as error:
        message = f"{error.where}: {error.message}" if error.where else error.message
        return [loaded.located(Diagnostic("engine", "machine", message, error.hint))]
    if until:
        build, out = build.until(until), store.root
    found = build.missing_tools(store)
    if build.keys_are_final:  # otherwise the steps may be in the store
        found += build.disk_problems(store, out)
    return [loaded.located(each) for each in found]
