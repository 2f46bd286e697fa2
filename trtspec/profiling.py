# SPDX-License-Identifier: Apache-2.0
"""Builds what may draft for a recipe's target, and has it measured."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from trtspec.backends.base import Backend
from trtspec.backends.choose import in_process
from trtspec.checkpoint.prepare import find_source
from trtspec.checkpoint.trtllm import load_checkpoint
from trtspec.diagnostics import RecipeError
from trtspec.errors import TrtspecError
from trtspec.generation.request import Result
from trtspec.graph.executor import Observer
from trtspec.measure.artifact import TARGET, OpenArtifact, artifact_prompts, open_artifact
from trtspec.measure.parity import check_parity
from trtspec.measure.profile.candidate import Candidate, OnProgress, measure, say
from trtspec.measure.profile.document import Profile
from trtspec.measure.profile.recommend import recommend
from trtspec.measure.report import Check
from trtspec.measure.sources import find_source as find_origin
from trtspec.methods.base import find_method, methods
from trtspec.paths import cache_dir
from trtspec.pipeline import open_store, plan_build, run_build
from trtspec.preflight import prepare_sources
from trtspec.prompts.prompt import Prompt
from trtspec.proposal.choice import relative_model
from trtspec.proposal.given import open_checkpoint
from trtspec.proposal.ways import ways
from trtspec.recipe.load import LoadedRecipe, load_recipe
from trtspec.recipe.schema import ModelSource

BATCHES = (1, 4, 16, 64)


@dataclass(frozen=True)
class Limits:
    """How much is tried; see the command's options."""

    samples: int
    max_tokens: int
    max_draft_len: int
    concurrency: int
    seed: int


@dataclass(frozen=True)
class Asked:
    """What the command was asked for."""

    recipe: Path
    overrides: list[str]
    prompts: Path | None
    drafts: list[str] | None
    methods: list[str] | None
    limits: Limits


@dataclass(frozen=True)
class Wanted:
    """What is to be tried: a method, the recipe's section of its draft, and its options."""

    method: str
    source: dict[str, Any] | None
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.method} ({self.source['model']})" if self.source else self.method

    def section(self, max_draft_len: int) -> dict[str, Any]:
        """Return the recipe's `speculation` that drafts as much as is tried."""
        section: dict[str, Any] = {"method": self.method, "options": self.options}
        if lens := find_method(self.method).draft_lens:
            section["draft_len"] = max(lens[0], min(lens[-1], max_draft_len))
        return section | ({"draft": self.source} if self.source else {})


class Bars(Observer, Protocol):
    """Shows how a build goes on, from the downloads and digests of its sources on."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """So many bytes of a source are here."""

    def reading(self, done: int, total: int) -> None:
        """So many bytes of sources are hashed."""


@dataclass(frozen=True)
class Screen:
    """Shows how the work goes on: builds, and what is counted."""

    building: Callable[[], AbstractContextManager[Bars]]
    counting: Callable[[], AbstractContextManager[OnProgress]]


def run(asked: Asked, screen: Screen) -> Profile:
    """Build every candidate, and measure it on what the target says; raises TrtspecError where none can be tried."""
    loaded = load_recipe(asked.recipe, asked.overrides)
    name, engine = in_process()
    cache_dir().mkdir(parents=True, exist_ok=True)
    left_out: dict[str, str] = {}
    with TemporaryDirectory(prefix="profile-", dir=cache_dir()) as folder:  # beside the store, which it links to
        candidates = []
        for number, wanted in enumerate(_wanted(loaded, asked, engine)):
            try:
                candidates.append(_build(asked, wanted, name, Path(folder) / str(number), screen))
            except RecipeError as error:
                left_out[wanted.name] = error.diagnostics[0].message
            except TrtspecError as error:
                left_out[wanted.name] = error.message
        if not candidates:
            raise TrtspecError("; ".join(f"{name}: {why}" for name, why in left_out.items()) or "nothing to try")
        return _measure(loaded, asked, candidates, left_out, screen)


def _measure(
    loaded: LoadedRecipe, asked: Asked, candidates: Sequence[Candidate], left_out: dict[str, str], screen: Screen
) -> Profile:
    prompts = artifact_prompts(candidates[0].root, asked.prompts)
    limits = asked.limits
    prompts = Random(limits.seed).sample(prompts, min(limits.samples, len(prompts)))
    most = max(limits.concurrency, loaded.recipe.engine.max_batch_size)
    batches = sorted({*(batch for batch in BATCHES if batch <= most), limits.concurrency})
    with screen.counting() as on_progress:
        with open_artifact(candidates[0].root) as artifact:
            texts, results = say(artifact, prompts, limits.max_tokens, on_progress)
            parity = _parity(artifact, prompts, results, on_progress)
        if not texts.said:
            raise TrtspecError("the target answers no prompt with two tokens", hint="name other --prompts")
        measured = [measure(candidate, texts, batches, on_progress) for candidate in candidates]
    return Profile(loaded.recipe.name, texts, measured, left_out, recommend(measured, limits.concurrency), parity)


def _parity(
    artifact: OpenArtifact, prompts: Sequence[Prompt], results: Sequence[Result], on_progress: OnProgress
) -> Check | None:
    """Return how far a quantized target says what its source says; None where nothing was quantized."""
    if not load_checkpoint(artifact.root / TARGET).quantization.algo:
        return None
    source = find_origin(artifact.root, artifact.manifest, None)
    return check_parity(artifact, source, prompts, results, on_progress)


def _wanted(loaded: LoadedRecipe, asked: Asked, engine: Backend) -> Iterator[Wanted]:
    """Yield the recipe's own speculation, methods that are named or need no draft, and drafts that are named."""
    own = loaded.recipe.speculation
    source = _section(own.draft) if own.draft else None
    if own.method != "none" and (asked.methods is None or own.method in asked.methods):
        yield Wanted(own.method, source, own.options)
    for name in asked.methods if asked.methods is not None else _needing_nothing(engine):
        if name in (own.method, "none"):
            continue
        needs = find_method(name).drafts_with != "nothing"
        if not needs or source:
            yield Wanted(name, source if needs else None, {})
    for written in asked.drafts or ():
        yield _of_draft(loaded, written)


def _needing_nothing(engine: Backend) -> list[str]:
    """Return the engine's methods that draft with nothing of their own, and need no option to be set."""
    found = []
    for name in engine.methods():
        method = methods()[name]
        if name == "none" or method.drafts_with != "nothing":
            continue
        try:
            method.parse({})
        except TrtspecError:
            continue
        found.append(name)
    return found


def _of_draft(loaded: LoadedRecipe, written: str) -> Wanted:
    """Return a draft with the method that suits it."""
    draft, target = open_checkpoint(written), find_source(loaded.recipe.target)
    way = ways(None, in_process()[0], target, draft.source, None)[0]
    return Wanted(way.method, _section(draft.asked), way.suggestion.options)


def _section(draft: ModelSource) -> dict[str, Any]:
    return draft.model_dump(exclude_defaults=True, mode="json")


def _build(asked: Asked, wanted: Wanted, engine: str, out: Path, screen: Screen) -> Candidate:
    section = wanted.section(asked.limits.max_draft_len)
    overrides = [*asked.overrides, f"engine.backend={engine}", f"speculation={json.dumps(section)}"]
    loaded = load_recipe(asked.recipe, overrides)
    with screen.building() as bars:
        prepare_sources(loaded, bars.preparing)
        build = plan_build(loaded, read_all=True, on_read=bars.reading)
        run_build(build, out, open_store(), bars)
    shown = wanted.source and _shown(wanted.source, asked.recipe.absolute().parent)
    return Candidate(wanted.method, shown, wanted.options, "draft_len" in section, out)


def _shown(section: dict[str, Any], base: Path) -> dict[str, Any]:
    """Return a recipe's section with its paths as a recipe in `base` writes them."""
    return {
        key: _shown(value, base)
        if isinstance(value, dict)
        else relative_model(value, base)
        if isinstance(value, str) and os.path.isabs(value)
        else value
        for key, value in section.items()
    }
