# SPDX-License-Identifier: Apache-2.0
"""From a recipe to a plan, and from a plan to an artifact: the only module that knows the order of steps.

prepare and read sources -> convert target, convert draft -> copy tokenizer, prompts -> emit repository -> publish
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
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
from trtspec.engines.memory import MemoryPlan, plan_memory
from trtspec.errors import CheckpointError
from trtspec.files import FileRecord
from trtspec.graph.digest import DigestCache
from trtspec.graph.executor import Observer, StepResult, execute
from trtspec.graph.plan import Plan, StepStatus, plan_status
from trtspec.graph.step import Step
from trtspec.graph.store import Store
from trtspec.methods.base import Extent, method_version
from trtspec.methods.speedup import expected_speedup
from trtspec.paths import cache_dir, default_prompts
from trtspec.recipe.diagnostics import RecipeError
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.resolve import ResolvedModel, ResolvedRecipe, resolve_recipe
from trtspec.recipe.schema import Recipe
from trtspec.steps.calibrate import Calibrate
from trtspec.steps.convert import ConvertCheckpoint, PartFiles
from trtspec.steps.copy import CopyFiles
from trtspec.steps.files import FileReader
from trtspec.steps.model import SourceModel, mapping_of, scheme_wanted
from trtspec.steps.repository import EmitRepository, read_models
from trtspec.triton.repository import RepositorySettings

# A plan may read this much of sources it has never seen; a build reads all of it.
READ_WHILE_PLANNING = 1 << 30
SUPPOSED_ACCEPTANCE = (0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Build:
    """A resolved recipe, and the steps whose files make its artifact, by their directory in it ("" is its root)."""

    recipe: ResolvedRecipe
    findings: Findings
    extent: Extent
    layout: Mapping[str, Step]

    @cached_property
    def plan(self) -> Plan:
        """Return the steps in order."""
        return Plan(self.layout.values())

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

    def memory(self) -> MemoryPlan:
        """Return what serving takes."""
        engine, target, draft, part = self.recipe.engine, self.findings.target, self.findings.draft, self.findings.part
        if target is None:
            raise ValueError("a build has a target")
        return plan_memory(
            target.config,
            draft.config if draft else None,
            rows=engine.max_batch_size,
            seq_len=engine.max_seq_len,
            num_tokens=engine.max_num_tokens,
            nodes=self.extent.nodes,
            part_parameters=part.part.num_parameters if part else 0,
            quantized=target.scheme(scheme_wanted(self.recipe.target)).is_quantized,
        )

    def speculation(self) -> dict[str, object]:
        """Return how much a step drafts, by which rule it is accepted, and what an engine build would be told."""
        speculation, method = self.recipe.speculation, self.findings.method
        return {
            "method": speculation.method,
            "draft_len": self.extent.depth,
            "draft_tokens": self.extent.nodes,
            "acceptance": speculation.acceptance,
            "build_arguments": method.build_arguments(self.extent) if method else [],
        }

    def predicted(self) -> dict[str, object]:
        """Return the speed-up to expect at batch 1 for some acceptance rates; empty without a draft model."""
        target, draft, draft_len = self.findings.target, self.findings.draft, self.recipe.speculation.draft_len
        if target is None or draft is None:
            return {}
        cost = draft.config.num_parameters / target.config.num_parameters
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
    method, options = findings.method, findings.options
    if findings.errors or findings.target is None or method is None or options is None or findings.backend is None:
        raise RecipeError(findings.problems)
    recipe = _fit(loaded.recipe, findings.target)
    draft_len = recipe.speculation.draft_len
    extent = method.extent(options, method.default_draft_len if draft_len is None else draft_len)
    resolved = resolve_recipe(
        recipe,
        target_dtype=findings.target.config.dtype,
        draft_dtype=(findings.draft or findings.target).config.dtype,
        backend=findings.backend[0],
        backend_why=findings.backend[1],
        draft_len=extent.depth,
        nodes=extent.nodes,
        options=options.model_dump(mode="json", exclude_none=True),
        acceptance=options.acceptance,
        draft_apart=findings.part is None,
    )
    models = [model for model in (findings.target, findings.draft, findings.part) if model]
    total, done, lock = sum(model.source.nbytes for model in models), 0, Lock()

    def on_bytes(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            on_read(done, total)

    digests = DigestCache(cache_dir() / "digests.json")
    reader = FileReader(digests, None if read_all else READ_WHILE_PLANNING, on_bytes)
    return Build(resolved, findings, extent, _layout(resolved, findings, reader))


def run_build(build: Build, out: Path, store: Store, observer: Observer) -> Built:
    """Bring every step into the store and publish the artifact at `out`."""
    started = time.perf_counter()
    results = execute(build.plan, store, observer)
    entries = {result.key: result.entry for result in results}
    records, files = [], {}
    for directory, step in build.layout.items():
        entry = entries[step.key]
        for file in entry.files:
            path = f"{directory}/{file.path}" if directory else file.path
            records.append(FileRecord(path=path, size=file.size, sha256=file.sha256))
            files[path] = entry.files_dir / file.path
    manifest = Manifest(
        recipe=build.recipe.as_dict(),
        steps=tuple(StepRecord(name=result.name, key=result.key) for result in results),
        files=tuple(sorted(records, key=lambda record: record.path)),
        tools={"trtspec": __version__, "python": platform.python_version(), "numpy": version("numpy")},
        gpu={},
        backend=Backend(name=build.recipe.engine.backend, why=build.recipe.engine.backend_why),
    )
    status = publish_artifact(out, files, manifest)
    if status == "published":
        for result in results:
            store.restamp(result.key)
    return Built(out, status, results, time.perf_counter() - started)


def _fit(recipe: Recipe, target: SourceModel) -> Recipe:
    """Lower the default length to what the target has positions for; what the recipe says itself was checked."""
    length = min(recipe.engine.max_seq_len, target.config.exact_positions)
    return recipe.model_copy(update={"engine": recipe.engine.model_copy(update={"max_seq_len": length})})


def _layout(recipe: ResolvedRecipe, findings: Findings, reader: FileReader) -> dict[str, Step]:
    layout: dict[str, Step] = {}
    for role, asked, model in (
        ("target", recipe.target, findings.target),
        ("draft", next(iter(recipe.speculation.drafts), None), findings.draft),
    ):
        if asked and model:
            parts = _parts(recipe, findings, reader) if role == "target" else ()
            layout[f"checkpoints/{role}"] = _convert(role, asked, model, parts, reader)
    if findings.target:
        source = findings.target.source
        layout["tokenizer"] = CopyFiles("tokenizer", reader.read(source.root, source.tokenizer_files))
    if recipe.gates.prompts:
        prompts = Path(recipe.gates.prompts)
        layout["prompts"] = CopyFiles("prompts", reader.read(prompts.parent, [prompts]))
    layout["model_repository"] = EmitRepository(_settings(recipe, layout), read_models())
    return layout


def _parts(recipe: ResolvedRecipe, findings: Findings, reader: FileReader) -> tuple[PartFiles, ...]:
    """Return what drafts from inside the target, if anything does."""
    if findings.part is None:
        return ()
    source, method = findings.part.source, recipe.speculation.method
    files = reader.read(source.root, [*source.documents, *source.weight_files])
    options = json.dumps(recipe.speculation.options, sort_keys=True)
    draft_len = recipe.speculation.draft_len
    return (PartFiles(method, method_version(method), options, draft_len, files, source.nbytes),)


def _convert(
    role: str, asked: ResolvedModel, model: SourceModel, parts: tuple[PartFiles, ...], reader: FileReader
) -> ConvertCheckpoint:
    source, wanted = model.source, scheme_wanted(asked)
    weights = reader.read(source.root, [*source.documents, *source.weight_files])
    calibration: tuple[Calibrate, ...] = ()
    if model.needs_calibration(wanted):
        settings = asked.quantization.calibration
        prompts = Path(settings.prompts) if settings.prompts else default_prompts()
        calibration = (
            Calibrate(
                role,
                weights,
                tokenizer=reader.read(source.root, source.tokenizer_files),
                prompts=reader.read(prompts.parent, [prompts]),
                samples=settings.samples,
                max_len=settings.max_len,
                nbytes=source.nbytes,
            ),
        )
    return ConvertCheckpoint(
        role,
        weights,
        model.family_version,
        asked.dtype,
        mapping=mapping_of(asked),
        scheme=model.scheme(wanted),
        calibration=calibration,
        parts=parts,
        allow_nonfinite=asked.allow_nonfinite,
        nbytes=source.nbytes + sum(part.nbytes for part in parts),
    )


def _settings(recipe: ResolvedRecipe, layout: Mapping[str, Step]) -> RepositorySettings:
    engine, serving, speculation = recipe.engine, recipe.serving, recipe.speculation
    return RepositorySettings(
        method=speculation.method,
        draft_len=speculation.draft_len,
        options=json.dumps(speculation.options, sort_keys=True),
        has_draft="checkpoints/draft" in layout,
        max_batch_size=engine.max_batch_size,
        max_input_len=engine.max_input_len,
        max_seq_len=engine.max_seq_len,
        max_num_tokens=engine.max_num_tokens,
        max_queue_size=serving.max_queue_size,
        max_queue_delay_us=serving.max_queue_delay_us,
        streaming=serving.streaming,
    )
