# SPDX-License-Identifier: Apache-2.0
"""Planning and running the steps of a training, with bars that show how they go on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from trtspec.planning.pipeline import Build, open_store, plan_build
from trtspec.planning.prebuild import prepare_sources
from trtspec.recipe.load import LoadedRecipe
from trtspec.store.executor import Observer, execute
from trtspec.store.plan import Plan
from trtspec.store.step import Step


class Bars(Observer, Protocol):
    """Shows how the steps go on, from the downloads and digests of their sources on."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """So many bytes of a source are here."""

    def reading(self, done: int, total: int) -> None:
        """So many bytes of sources are hashed."""


Watching = Callable[[], AbstractContextManager[Bars]]


def plan_of(loaded: LoadedRecipe, watching: Watching) -> Build:
    """Return the build of a recipe whose sources are all here and read."""
    with watching() as bars:
        prepare_sources(loaded, bars.preparing)
        return plan_build(loaded, read_all=True, on_read=bars.reading)


def outputs_of(steps: list[Step], build: Build, watching: Watching) -> list[Path]:
    """Bring steps, and those before them, into the store for a build; return where the files of each are."""
    plan, store = Plan(steps), open_store()
    with watching() as bars, store.holding([step.key for step in plan.steps], build.recipe.name):
        found = {result.key: result for result in execute(plan, store, bars)}
    return [found[step.key].entry.files_dir for step in steps]
