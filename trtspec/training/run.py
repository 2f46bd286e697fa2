# SPDX-License-Identifier: Apache-2.0
"""From a recipe and prompts to a judged draft: the only module here that knows the order of steps.

split -> answer -> measure before, train -> convert what was trained -> measure after -> judge -> publish
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from trtspec.artifacts.paths import checkpoint
from trtspec.backends.choose import in_process
from trtspec.errors import TrtspecError
from trtspec.files import copy_tree, exchange, sync, sync_directories
from trtspec.graph.digest import DigestCache
from trtspec.graph.executor import Observer, StepResult, execute
from trtspec.graph.files import FileReader, Files
from trtspec.graph.plan import Plan
from trtspec.graph.store import Store
from trtspec.paths import cache_dir
from trtspec.pipeline import Build, open_store, plan_build
from trtspec.preflight import prepare_sources
from trtspec.prompts.load import read_prompts
from trtspec.proposal.choice import relative_model
from trtspec.recipe.load import LoadedRecipe, load_recipe
from trtspec.registry import names
from trtspec.steps.convert import ConvertCheckpoint
from trtspec.torch_engine.settings import EngineSettings
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.measure_draft import MeasureDraft, judges, read_counts
from trtspec.training.result import Result
from trtspec.training.settings import TrainSettings
from trtspec.training.split_prompts import SplitPrompts
from trtspec.training.texts import TEXTS, read_texts
from trtspec.training.train_draft import RECORD, TrainDraft
from trtspec.training.verdict import Verdict

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


class Bars(Observer, Protocol):
    """Shows how the steps go on, from the downloads and digests of their sources on."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """So many bytes of a source are here."""

    def reading(self, done: int, total: int) -> None:
        """So many bytes of sources are hashed."""


def run(asked: Asked, watching: Callable[[], AbstractContextManager[Bars]]) -> Result:
    """Train the recipe's draft, and publish it where it is better; raises TrtspecError for what cannot be done."""
    loaded = _load(asked)
    out = asked.out or Path("drafts") / loaded.recipe.name
    _check_place(out)
    with watching() as bars:
        prepare_sources(loaded, bars.preparing)
        build = plan_build(loaded, read_all=True, on_read=bars.reading)
    with watching() as bars:
        store, steps = open_store(), _steps(asked, build)
        results = _execute([steps.before, steps.train], store, bars, loaded)
        trained = results[steps.train.key].entry.files_dir
        after = _after(asked, steps, trained)
        results |= _execute([after], store, bars, loaded)
    texts = judges(read_texts(results[steps.train.texts.key].entry.files_dir / TEXTS))
    counts = [read_counts(results[step.key].entry.files_dir) for step in (steps.before, after)]
    record = json.loads((trained / RECORD).read_text())
    found = Result(loaded.recipe.name, steps.train.method, out, Verdict.of(texts, *counts), record)
    if found.published:
        _publish(trained, out, found)
    return found


def section_with(asked: Asked, draft: Path) -> dict[str, Any]:
    """Return the recipe's `speculation` with a draft in a directory, as a recipe beside it writes the path."""
    speculation = load_recipe(asked.recipe, asked.overrides).recipe.speculation
    section = speculation.model_dump(exclude_defaults=True, mode="json")
    model = relative_model(str(draft.absolute()), asked.recipe.absolute().parent)
    return section | {"draft": _drafting(section["draft"], model)}


def _drafting(section: dict[str, Any], model: str) -> dict[str, Any]:
    return {"model": model} | {key: value for key, value in section.items() if key not in ("model", *NO_PLACE)}


@dataclass(frozen=True)
class _Steps:
    before: MeasureDraft
    train: TrainDraft


def _load(asked: Asked, *overrides: str) -> LoadedRecipe:
    """Return the recipe, for the engine in this process whatever its own is; raises TrtspecError without a draft."""
    loaded = load_recipe(asked.recipe, [*asked.overrides, f"engine.backend={in_process()[0]}", *overrides])
    speculation = loaded.recipe.speculation
    known = names("trtspec.training.drafts")
    if speculation.draft is None or speculation.method not in known:
        message = f"method {speculation.method} has no draft that can be trained; those of {', '.join(known)} can"
        raise TrtspecError(message, where=str(asked.recipe), hint="name a recipe with one, or --set speculation.method")
    return loaded


def _steps(asked: Asked, build: Build) -> _Steps:
    if build.context.translates:
        message = "the draft's vocabulary is not the target's, whose tokens it is trained with"
        raise TrtspecError(message, where=str(asked.recipe), hint="train a draft with the target's tokenizer")
    target, draft = _converted(build)
    source = build.context.sources["draft"]
    reader = FileReader(DigestCache(cache_dir() / "digests.json"))
    home = build.context.sources["target"]
    tokenizer = reader.read(home.root, home.tokenizer_files)
    settings = replace(EngineSettings.from_recipe(build.recipe), schedule=())
    most = min(settings.max_input_len or settings.max_seq_len, settings.max_seq_len - asked.max_tokens)
    if most < 1:
        message = f"--max-tokens {asked.max_tokens} leaves no room for a prompt in {settings.max_seq_len} tokens"
        raise TrtspecError(message, hint="engine.max_seq_len bounds prompt and answer together")
    prompts = SplitPrompts(
        tokenizer,
        _file(reader, asked.prompts),
        tuple(_file(reader, path) for path in (asked.keep,) if path),
        tuple(_file(reader, path) for path in (asked.held_out,) if path),
        most,
        asked.settings.seed,
    )
    alone = replace(settings, method="none", draft_len=0, options={})
    answers = AnswerPrompts(target, tokenizer, prompts, alone.as_json(), asked.max_tokens, asked.sampled)
    files = reader.read(source.root, source.files)
    shape = build.context.draft_shape
    train = TrainDraft(target, files, answers, build.recipe.speculation.method, shape.max_depth, asked.settings)
    return _Steps(MeasureDraft("before", target, draft, answers, settings.as_json()), train)


def _after(asked: Asked, steps: _Steps, trained: Path) -> MeasureDraft:
    """Return the measurement of what was trained, read and checked as any draft of a recipe is."""
    section = load_recipe(asked.recipe, asked.overrides).recipe.speculation.draft
    if section is None:
        raise ValueError("a recipe that was trained for has a draft")
    written = _drafting(section.model_dump(exclude_defaults=True, mode="json"), str(trained))
    loaded = _load(asked, f"speculation.draft={json.dumps(written)}")
    target, draft = _converted(plan_build(loaded, read_all=True))
    return replace(steps.before, when="after", target=target, draft=draft)


def _converted(build: Build) -> tuple[ConvertCheckpoint, tuple[ConvertCheckpoint, ...]]:
    steps = [build.artifact.steps.get(checkpoint(role)) for role in ("target", "draft")]
    found = tuple(step for step in steps if isinstance(step, ConvertCheckpoint))
    return found[0], found[1:]


def _file(reader: FileReader, path: Path) -> Files:
    found = read_prompts(path).path  # which also finds the sets that come with trtspec
    return reader.read(found.absolute().parent, [found.absolute()])


def _execute(steps: Sequence[Any], store: Store, bars: Observer, loaded: LoadedRecipe) -> dict[str, StepResult]:
    plan = Plan(steps)
    with store.holding([step.key for step in plan.steps], loaded.recipe.name):
        return {result.key: result for result in execute(plan, store, bars)}


def _check_place(out: Path) -> None:
    if out.exists() and not (out / RECORD).is_file():
        raise TrtspecError("something else lies here", where=str(out), hint="name another --out")


def _publish(trained: Path, out: Path, found: Result) -> None:
    """Put the draft at `out` whole, in place of an earlier one."""
    new, old = (out.with_name(f".{out.name}.{word}-{os.getpid()}") for word in ("new", "old"))
    try:
        copy_tree(trained, new)
        for path in new.iterdir():
            path.chmod(0o644)
        (new / RECORD).write_text(json.dumps(found.as_dict(), indent=2) + "\n")
        sync_directories(new)
        if not out.exists():
            new.rename(out)
        elif not exchange(new, out):
            out.rename(old)
            new.rename(out)
        sync(out.parent)
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
