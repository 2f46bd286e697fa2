# SPDX-License-Identifier: Apache-2.0
"""From a recipe and prompts to a judged draft: the only module here that knows the order of steps.

split -> answer -> measure before, train (here, or take what was trained elsewhere) -> convert what was trained
-> measure after -> judge -> publish
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from trtspec.errors import TrtspecError
from trtspec.files import copy_tree, exchange, sync, sync_directories
from trtspec.graph.executor import Observer, StepResult, execute
from trtspec.graph.plan import Plan
from trtspec.graph.store import Store
from trtspec.pipeline import Build, open_store, plan_build
from trtspec.preflight import prepare_sources
from trtspec.recipe.load import LoadedRecipe
from trtspec.registry import names
from trtspec.training.measure_draft import MeasureDraft, judges, read_counts
from trtspec.training.plans import Asked, load_for_training, measure_after, measure_before, train_here
from trtspec.training.result import Result
from trtspec.training.take_draft import TakeDraft
from trtspec.training.texts import TEXTS, read_texts
from trtspec.training.train_draft import RECORD, TrainDraft
from trtspec.training.verdict import Verdict


class Bars(Observer, Protocol):
    """Shows how the steps go on, from the downloads and digests of their sources on."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """So many bytes of a source are here."""

    def reading(self, done: int, total: int) -> None:
        """So many bytes of sources are hashed."""


Watching = Callable[[], AbstractContextManager[Bars]]
Training = Callable[[Asked, Build, MeasureDraft], TrainDraft | TakeDraft]


def run(asked: Asked, watching: Watching) -> Result:
    """Train the recipe's draft, and publish it where it is better; raises TrtspecError for what cannot be done."""
    return judge(asked, names("trtspec.training.drafts"), watching, train_here)


def judge(asked: Asked, able: Collection[str], watching: Watching, training: Training) -> Result:
    """Judge the draft that the step of `training` makes, and publish it where it is better.

    `able` are the methods whose drafts that can be.
    """
    loaded = load_for_training(asked, able)
    out = asked.out or Path("drafts") / loaded.recipe.name
    _check_place(out)
    build = plan_of(loaded, watching)
    with watching() as bars:
        store, before = open_store(), measure_before(asked, build)
        draft = training(asked, build, before)
        results = execute_steps([before, draft], store, bars, loaded)
        trained = results[draft.key].entry.files_dir
        after = measure_after(asked, able, before, trained)
        results |= execute_steps([after], store, bars, loaded)
    texts = judges(read_texts(results[before.texts.key].entry.files_dir / TEXTS))
    counts = [read_counts(results[step.key].entry.files_dir) for step in (before, after)]
    record = json.loads((trained / RECORD).read_text())
    found = Result(loaded.recipe.name, build.recipe.speculation.method, out, Verdict.of(texts, *counts), record)
    if found.published:
        _publish(trained, out, found)
    return found


def plan_of(loaded: LoadedRecipe, watching: Watching) -> Build:
    """Return the plan of a recipe whose sources are all here and read."""
    with watching() as bars:
        prepare_sources(loaded, bars.preparing)
        return plan_build(loaded, read_all=True, on_read=bars.reading)


def execute_steps(steps: Sequence[Any], store: Store, bars: Observer, loaded: LoadedRecipe) -> dict[str, StepResult]:
    """Execute steps and those before them, and return the results by their keys."""
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
