# SPDX-License-Identifier: Apache-2.0
"""From what a training was asked for to its steps: the recipe, its prompts and answers, and what measures a draft."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.artifacts.paths import checkpoint
from trtspec.backends.choose import in_process
from trtspec.backends.context import PlanContext
from trtspec.checkpoint.source import Source
from trtspec.errors import TrtspecError
from trtspec.graph.digest import DigestCache
from trtspec.graph.files import FileReader, Files
from trtspec.models.source_model import SourceModel
from trtspec.paths import cache_dir
from trtspec.pipeline import Build, plan_build
from trtspec.prompts.load import read_prompts
from trtspec.proposal.choice import relative_model
from trtspec.recipe.load import LoadedRecipe, load_recipe
from trtspec.steps.convert import ConvertCheckpoint
from trtspec.torch_engine.settings import EngineSettings
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.measure_draft import MeasureDraft
from trtspec.training.settings import TrainSettings
from trtspec.training.split_prompts import SplitPrompts
from trtspec.training.train_draft import TrainDraft

NO_PLACE = ("revision", "allow_pickle", "sha256")  # of a recipe's draft: what says where it came from


@dataclass(frozen=True)
class Asked:
    """What the command was asked for; `out` is where a draft that has become better goes."""

    recipe: Path
    overrides: list[str]
    prompts: Path
    keep: Path | None
    held_out: Path | None
    out: Path | None
    max_tokens: int
    sampled: int
    settings: TrainSettings


def load_for_training(asked: Asked, able: Collection[str], *overrides: str) -> LoadedRecipe:
    """Return the recipe, for the engine in this process whatever its own is.

    Raises TrtspecError where it has no draft, or its method is none of those that are `able`.
    """
    loaded = load_recipe(asked.recipe, [*asked.overrides, f"engine.backend={in_process()[0]}", *overrides])
    speculation = loaded.recipe.speculation
    if speculation.draft is None or speculation.method not in able:
        message = f"method {speculation.method} has no draft that can be trained; those of {', '.join(able)} can"
        raise TrtspecError(message, where=str(asked.recipe), hint="name a recipe with one, or --set speculation.method")
    return loaded


def section_with(asked: Asked, draft: Path) -> dict[str, Any]:
    """Return the recipe's `speculation` with a draft in a directory, as a recipe beside it writes the path."""
    speculation = load_recipe(asked.recipe, asked.overrides).recipe.speculation
    section = speculation.model_dump(exclude_defaults=True, mode="json")
    model = relative_model(str(draft.absolute()), asked.recipe.absolute().parent)
    return section | {"draft": _drafting(section["draft"], model)}


def _drafting(section: dict[str, Any], model: str) -> dict[str, Any]:
    return {"model": model} | {key: value for key, value in section.items() if key not in ("model", *NO_PLACE)}


def measure_before(asked: Asked, build: Build) -> MeasureDraft:
    """Return the measurement of the recipe's own draft on held-out prompts, and with it the steps that answer them."""
    target, draft = _converted(build)
    reader = file_reader()
    home = build.context.sources["target"]
    tokenizer = reader.read(home.root, home.tokenizer_files)
    settings = replace(EngineSettings.from_recipe(build.recipe), schedule=())
    prompts = SplitPrompts(
        tokenizer,
        _file(reader, asked.prompts),
        tuple(_file(reader, path) for path in (asked.keep,) if path),
        tuple(_file(reader, path) for path in (asked.held_out,) if path),
        _longest_prompt(asked, settings),
        asked.settings.seed,
    )
    alone = replace(settings, method="none", draft_len=0, options={})
    answers = AnswerPrompts(target, tokenizer, prompts, alone.as_json(), asked.max_tokens, asked.sampled)
    return MeasureDraft("before", target, draft, answers, settings.as_json())


def _longest_prompt(asked: Asked, settings: EngineSettings) -> int:
    most = min(settings.max_input_len or settings.max_seq_len, settings.max_seq_len - asked.max_tokens)
    if most < 1:
        message = f"--max-tokens {asked.max_tokens} leaves no room for a prompt in {settings.max_seq_len} tokens"
        raise TrtspecError(message, hint="engine.max_seq_len bounds prompt and answer together")
    return most


def train_here(asked: Asked, build: Build, before: MeasureDraft) -> TrainDraft:
    """Return the step that trains the recipe's draft on this machine."""
    files = files_of(build.context.sources["draft"])
    depth = build.context.draft_shape.max_depth
    return TrainDraft(before.target, files, before.texts, build.recipe.speculation.method, depth, asked.settings)


def measure_after(asked: Asked, able: Collection[str], before: MeasureDraft, trained: Path) -> MeasureDraft:
    """Return the measurement of what was trained, read and checked as any draft of a recipe is."""
    section = load_recipe(asked.recipe, asked.overrides).recipe.speculation.draft
    if section is None:
        raise ValueError("a recipe that was trained for has a draft")
    written = _drafting(section.model_dump(exclude_defaults=True, mode="json"), str(trained))
    loaded = load_for_training(asked, able, f"speculation.draft={json.dumps(written)}")
    target, draft = _converted(plan_build(loaded, read_all=True))
    return replace(before, when="after", target=target, draft=draft)


def _converted(build: Build) -> tuple[ConvertCheckpoint, tuple[ConvertCheckpoint, ...]]:
    steps = [build.artifact.steps.get(checkpoint(role)) for role in ("target", "draft")]
    found = tuple(step for step in steps if isinstance(step, ConvertCheckpoint))
    return found[0], found[1:]


def file_reader() -> FileReader:
    """Return a reader that remembers the digests of files."""
    return FileReader(DigestCache(cache_dir() / "digests.json"))


def files_of(source: Source) -> Files:
    """Return a source's files as a step's input."""
    return file_reader().read(source.root, source.files)


def _file(reader: FileReader, path: Path) -> Files:
    found = read_prompts(path).path  # which also finds the sets that come with trtspec
    return reader.read(found.absolute().parent, [found.absolute()])


def target_of(context: PlanContext) -> SourceModel:
    """Return the target that a draft is trained for."""
    if context.target is None:
        raise ValueError("the engine of this process runs targets of known families only")
    return context.target
