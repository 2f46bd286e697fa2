# SPDX-License-Identifier: Apache-2.0
"""Planning and building of recipes; the order of the build is defined here only.

check all recipes -> download sources -> the backend's artifact plan -> run its steps -> publish. A partial build stops
before the last step and leaves its results in the store, where another machine can continue.
"""

from __future__ import annotations

import hashlib
import logging
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from trtspec.backends.base import ArtifactPlan, Backend, engine_arguments, find_backend
from trtspec.backends.common.cache_source import store_source
from trtspec.backends.common.convert import ConvertCheckpoint
from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext, RemoteProbe, recipe_models
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
from trtspec.store.files import FileReader, Files, find_files, hub_digest
from trtspec.store.plan import DiskNeed, StepPlan, StepStatus, disk_need, lacking_disk, plan_disk, plan_status
from trtspec.store.remote import Start
from trtspec.store.step import StepProgress
from trtspec.store.store import Store
from trtspec.store.team.environment import open_remote

log = logging.getLogger(__name__)

# A plan reads unknown sources up to this size in bytes; a build also reads larger ones, before its first step.
READ_WHILE_PLANNING = 1 << 27
DISK_HINT = "free disk space, or set TRTSPEC_CACHE and --out to other disks"
SUPPOSED_ACCEPTANCE = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Build:
    """A recipe that passed its check: its file, the context, the warnings, and the artifact plan."""

    loaded: LoadedRecipe
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
        """Return True if all sources were read."""
        return all(files.is_read for files in self.files)

    @property
    def keys_are_final(self) -> bool:
        """Return whether everything that step keys depend on is known."""
        return self.is_read and self.artifact.keys_are_final

    @property
    def target_key(self) -> str:
        """Return the key of the converted target without embedded draft heads; "" if nothing is converted."""
        target = self.artifact.steps.get(checkpoint("target"))
        return target.bare_key if isinstance(target, ConvertCheckpoint) else ""

    @property
    def files(self) -> list[Files]:
        """Return the files outside the store that steps read."""
        return [files for step in self.plan.steps for files in find_files(step)]

    def hashes_sources(self, store: Store) -> bool:
        """Return True if the build can run before all its sources are read: its steps hash them.

        The store must not have a remote store, nor an entry with such a step's shape: a key with the digests may find
        an output there.
        """
        unread, keys = [step for step in self.plan.steps if any(files.unread for files in find_files(step))], set[str]()
        if store.remote or self.weights_absent or not all(step.HASHES_SOURCES for step in unread):
            return False
        if any(hub_digest(path) for step in unread for files in find_files(step) for path in files.unread):
            return False  # to be compared with the hub's digest, which needs the bytes in order
        for step in self.plan.steps:  # dependencies come first
            if step in unread or any(each.key in keys for each in step.dependencies):
                keys.add(step.key)
        return not store.has_shapes(step for step in self.plan.steps if step.key in keys)

    def with_results(self, results: Sequence[StepResult]) -> Build:
        """Return the build with the final keys of its steps; `results` are those of all steps of the plan."""
        final = {step.key: result.step for step, result in zip(self.plan.steps, results, strict=True)}
        steps = {place: final[step.key] for place, step in self.artifact.steps.items()}
        return replace(self, artifact=replace(self.artifact, steps=steps))

    def until(self, name: str) -> Build:
        """Return the part of the build up to the steps called `name`, such as convert-target; it cannot be published.

        `name` may also be the first part of several step names, such as convert. Raises TrtspecError if no step
        matches.
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
        """Return True if a source has files that are not on this machine, so that steps cannot read them."""
        return any(source.absent for source in self.context.sources.values())

    def needs_sources(self, store: Store) -> bool:
        """Return True if a step that is not in the store reads a file that is not on this machine."""
        absent = {source.root / name for source in self.context.sources.values() for name in source.absent}
        missing = [status.step for status in self.status(store) if status.status == "miss"] if absent else []
        return any(path in absent for step in missing for files in find_files(step) for path in files.paths)

    def fetch_for_sources(self, store: Store, on_progress: OnProgress) -> None:
        """Fetch from the team store what only a machine with all sources could build instead."""
        if self.weights_absent:
            for each in self.status(store):
                if each.status == "remote":
                    store.fetch(each.step, _fetching(on_progress))

    @property
    def downloads(self) -> list[dict[str, Any]]:
        """Return the models with files that are not on this machine, with the bytes to download."""
        sources = self.context.sources
        return [
            {"model": asked.model, "revision": asked.revision, "bytes": sum(each[1] for each in absent.values())}
            for role, _, asked in recipe_models(self.context)
            if role in sources and (absent := sources[role].absent)
        ]

    def disk(self, store: Store, out: Path) -> list[DiskNeed]:
        """Return the needed and the free disk space in the store, at `out`, and in the hub cache."""
        needs = plan_disk(self.status(store), store, out)
        if downloads := sum(each["bytes"] for each in self.downloads):
            needs.append(disk_need("hub cache", hub_cache_dir(), downloads))
        return needs

    def status(self, store: Store) -> list[StepStatus]:
        """Return the status of each step: a cache hit or a miss, and the reason."""
        return plan_status(self.plan, store)

    def missing_tools(self, store: Store) -> list[Diagnostic]:
        """Return diagnostics of the tools that this machine lacks for the steps that have to run."""
        missing = {status.key for status in self.status(store) if status.status == "miss"}
        steps = self.artifact.steps
        return list(dict.fromkeys(lack for name, lack in self.artifact.lacks.items() if steps[name].key in missing))

    def disk_problems(self, store: Store, out: Path) -> list[Diagnostic]:
        """Return an error for each file system without enough free space for the artifact and the remaining steps."""
        needs = plan_disk(self.status(store), store, out)
        return [Diagnostic("", "disk", need.message, DISK_HINT) for need in needs if not need.is_met]

    def disk_warnings(self, store: Store, out: Path) -> list[Diagnostic]:
        """Return a warning for each file system without enough free space, downloads included."""
        messages = lacking_disk(self.disk(store, out))
        return [Diagnostic("", "disk", message, DISK_HINT, "warning") for message in messages]

    def memory(self) -> list[MemoryPlan]:
        """Return the memory that serving needs on each device."""
        return self.backend.memory(self.context)

    def speculation(self) -> dict[str, object]:
        """Return the draft length, draft tokens, acceptance rule and engine build arguments as plain data."""
        speculation, shape = self.recipe.speculation, self.context.draft_shape
        return {
            "method": speculation.method,
            "draft_len": shape.max_depth,
            "draft_tokens": shape.max_tokens,
            "acceptance": speculation.acceptance,
            "build_arguments": engine_arguments(speculation.method, shape) if self.backend.converts else [],
        }

    def predicted(self, gpu_price: float | None = None) -> dict[str, object]:
        """Return the predicted effect of speculation (docs/planning.md), or "why_not" with the reason.

        `gpu_price` is in dollars per GPU and hour. The result is empty if nothing is drafted. With a draft model it
        also has the ratio of parameters, and the speed-up that follows from that ratio alone.
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
    """Result of a build; `manifest` is the SHA-256 of the artifact's manifest, and `seconds` is the duration."""

    artifact: Path
    manifest: str
    status: Literal["published", "unchanged"]
    steps: list[StepResult]
    seconds: float


@dataclass(frozen=True)
class PartialBuildResult:
    """Result of a partial build; `remaining` lists the names of the steps that have not run."""

    steps: list[StepResult]
    remaining: list[str]
    seconds: float


def _fetching(on_progress: OnProgress) -> Start:
    """Return a function that starts the progress of a transfer from the team store."""

    class Fetching(StepProgress):
        def __init__(self, total_bytes: int) -> None:
            self._done, self._total = 0, total_bytes

        def advance(self, n_bytes: int) -> None:
            self._done += n_bytes
            on_progress("fetch from the team store", self._done, self._total)

    return Fetching


def open_store() -> Store:
    """Return the store of this machine, with the team store of the environment if there is one."""
    return Store(store_dir(), remote=open_remote())


def default_artifact_dir(recipe: Recipe | ResolvedRecipe) -> Path:
    return Path("build") / recipe.name


def plan_build(
    loaded: LoadedRecipe,
    *,
    checked: CheckResult | None = None,
    read_all: bool = False,
    for_build: bool = False,
    read_at_most: int | None = None,
    on_read: Callable[[int, int], None] = lambda done, total: None,
    remote_probe: RemoteProbe | None = None,
) -> Build:
    """Check a recipe and plan its build; raises RecipeError with all problems.

    `checked` is the result of an earlier check. Unknown sources of more than `read_at_most` bytes (by default
    READ_WHILE_PLANNING) are not hashed, unless `read_all` is set. `for_build` is set if the build is to be run, also
    without `read_all`. `on_read` is called with the bytes hashed so far and the total. `remote_probe` is that of the
    context.
    """
    checked = checked or check_recipe(loaded)
    context = checked.context
    if checked.errors or context is None:
        raise RecipeError(checked.diagnostics)
    context = replace(context, remote_probe=remote_probe) if remote_probe else context
    total, done, lock = sum(source.nbytes for source in context.sources.values()), 0, Lock()

    def on_bytes(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            on_read(done, total)

    log.info("%s: backend %s: %s", loaded.recipe.name, context.choice.name, context.choice.why)
    absent = {source.root / name: each for source in context.sources.values() for name, each in source.absent.items()}
    limit = READ_WHILE_PLANNING if read_at_most is None else read_at_most
    unread_above = None if read_all else limit
    reader = FileReader(open_store().digests, unread_above, on_bytes, absent, for_build=for_build or read_all)
    return Build(loaded, context, checked.diagnostics, find_backend(context.choice.name).plan(context, reader))


def run_build(build: Build, out: Path, store: Store, observer: Observer) -> BuildResult:
    """Run the steps that the store lacks and publish the artifact at `out`.

    Requires a build planned with `read_all`, or one that `Build.hashes_sources`. Raises TrtspecError if disk space is
    missing, and StepError if a step fails.
    """
    _check_readable(build, store)
    started = time.perf_counter()
    if refused := build.disk_problems(store, out):
        raise TrtspecError("; ".join(each.message for each in refused), hint=DISK_HINT)
    if problems := build.artifact.problems():
        raise StepError("; ".join(problems), hint="the installed version differs from engine.version")
    with store.holding([step.key for step in build.plan.steps], build.recipe.name):
        results = execute(build.plan, store, observer, build.artifact.devices)
        return publish_build(build.with_results(results), out, store, results, started)


def publish_build(build: Build, out: Path, store: Store, results: list[StepResult], started: float) -> BuildResult:
    """Publish the artifact of a build at `out` from the results of all its steps, in plan order.

    `started` is the time of the build's start by `time.perf_counter`. Raises TrtspecError if the artifact cannot be
    written.
    """
    ended = datetime.now(timezone.utc)
    status = _publish(build, out, results, (ended - timedelta(seconds=time.perf_counter() - started), ended))
    if status == "published":
        for result in results:
            if result.entry:
                store.restamp(result.key)
    _remember_sources(build, store)
    log.info("%s: %s", out, status)
    return BuildResult(out, manifest_sha256(out), status, results, time.perf_counter() - started)


def store_steps(build: Build, until: str, store: Store, observer: Observer) -> PartialBuildResult:
    """Run the steps of a build up to the steps called `until` into the store, without publishing an artifact."""
    started = time.perf_counter()
    part = build.until(until)
    _check_readable(part, store)
    if refused := part.disk_problems(store, store.root):
        raise TrtspecError("; ".join(each.message for each in refused), hint=DISK_HINT)
    with store.holding([step.key for step in part.plan.steps], build.recipe.name):
        results = execute(part.plan, store, observer, part.artifact.devices)
    _remember_sources(part.with_results(results), store)
    done = {step.key for step in part.plan.steps}
    remaining = [step.name for step in build.plan.steps if step.key not in done]
    return PartialBuildResult(results, remaining, time.perf_counter() - started)


def _check_readable(build: Build, store: Store) -> None:
    if not build.is_read and not build.hashes_sources(store):
        raise ValueError("the sources were not read: plan the build with read_all")


def _publish(
    build: Build, out: Path, results: Sequence[StepResult], times: tuple[datetime, datetime]
) -> Literal["published", "unchanged"]:
    outputs = {result.key: result for result in results}
    records, files = [], {}
    for directory, step in build.artifact.steps.items():
        entry = outputs[step.key].output
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
    _describe(build, out, manifest, results, times)
    remember_published(out, manifest)
    record_source_locations(
        manifest, {role: each.model for role, each in build.recipe.models.items() if not each.revision}
    )
    return status


def _describe(
    build: Build, out: Path, manifest: Manifest, results: Sequence[StepResult], times: tuple[datetime, datetime]
) -> None:
    """Write the provenance and the bill of materials that an artifact lacks."""
    from trtspec.planning.bom import render_bom
    from trtspec.planning.provenance import render_provenance
    from trtspec.store.signatures.attestations import Attestations, read_attestations, write_attestations
    from trtspec.store.signatures.envelope import BOM, PROVENANCE

    digest, present = hashlib.sha256(manifest.render()).hexdigest(), read_attestations(out).documents
    documents = {}
    if PROVENANCE not in present:
        documents[PROVENANCE] = render_provenance(
            build.loaded, build.context, build.files, manifest, digest, results, times
        )
    if BOM not in present:
        documents[BOM] = render_bom(build.context, build.files, manifest, digest)
    write_attestations(out, Attestations({}, documents))


def device_memory(device: MemoryPlan) -> DeviceMemory:
    """Return the manifest's record of a device's memory plan, without the memory limit of this machine."""
    return DeviceMemory.model_validate({name: getattr(device, name) for name in DeviceMemory.model_fields})


def _remember_sources(build: Build, store: Store) -> None:
    """Save the metadata of hub models in the store, so that later plans do not need their files."""
    read = {
        path: (digest, *stat)
        for files in build.files
        for path, (_, digest), stat in zip(files.paths, files.digests, files.stats, strict=True)
    }
    for role, _, asked in recipe_models(build.context):
        source = build.context.sources.get(role)
        is_known = source and all(path in read for path in source.weight_files)
        if source and asked.revision and not source.absent and is_known:
            with suppress(TrtspecError):  # on a full disk: a later plan may have to download the model again
                store_source(asked, source, {path.name: read[path] for path in source.weight_files}, store)


def check_builds(
    builds: Sequence[tuple[LoadedRecipe, Path]], store: Store, until: str = "", *, elsewhere: bool = False
) -> list[CheckResult]:
    """Check several recipes and this machine before any build; raises RecipeError with all problems found.

    Problems that only downloaded sources can show are found later. `until` limits the builds as in `Build.until`.
    With `elsewhere`, other machines run the steps, so the tools of this one do not matter.
    """
    results = [check_recipe(loaded, will_prepare=True) for loaded, _ in builds]
    found = dict.fromkeys(
        each
        for (loaded, out), checked in zip(builds, results, strict=True)
        for each in (
            *checked.diagnostics,
            *(() if until else _output_problems(out)),
            *(() if elsewhere else _machine_problems(loaded, checked, out, store, until)),
        )
    )
    if any(each.severity == "error" for each in found):
        raise RecipeError(list(found))
    return results


def prepare_sources(loaded: LoadedRecipe, on_progress: OnProgress = lambda what, done, total: None) -> None:
    """Download and unpickle the missing sources of a recipe.

    `on_progress` is called with a label, the bytes done and the total. Raises RecipeError with every unavailable model.
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
    *,
    elsewhere: bool = False,
    read_all: bool = False,
    remote_probe: RemoteProbe | None = None,
) -> Build:
    """Return a build that can run on this machine, at least up to the steps called `until`, of a `checked` recipe.

    Missing sources are downloaded, unless their metadata are cached and the store has every step that reads them.
    Raises RecipeError as `prepare_sources` and `plan_build` do, and if this machine lacks a tool or its image, unless
    the steps run `elsewhere`. With `read_all`, all keys are final. `remote_probe` is that of the context.
    """
    if checked.context:
        build = _plan_all(loaded, store, on_read, checked, read_all=read_all, remote_probe=remote_probe)
        if not elsewhere:
            _check_tools(loaded, build, store, until)
        part = build.until(until) if until else build
        part.fetch_for_sources(store, on_progress)
        if not part.needs_sources(store):
            return build
    prepare_sources(loaded, on_progress)
    build = _plan_all(loaded, store, on_read, read_all=read_all, remote_probe=remote_probe)
    if not elsewhere:
        _check_tools(loaded, build, store, until)
    return build


def _plan_all(
    loaded: LoadedRecipe,
    store: Store,
    on_read: Callable[[int, int], None],
    checked: CheckResult | None = None,
    *,
    read_all: bool,
    remote_probe: RemoteProbe | None,
) -> Build:
    """Return a build with all sources read, except, without `read_all`, for those that its steps hash."""
    plan = partial(plan_build, loaded, checked=checked, on_read=on_read, remote_probe=remote_probe)
    build = plan(for_build=True)
    if build.is_read or (not read_all and build.hashes_sources(store)):
        return build
    return plan(read_all=True)


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
    """Return diagnostics of the tools and disk space that this machine lacks, without reading large sources."""
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
