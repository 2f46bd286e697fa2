# SPDX-License-Identifier: Apache-2.0
"""Plan and run the steps of a training, with progress bars."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from trtspec.planning.pipeline import Build, open_store, plan_build
from trtspec.planning.prebuild import prepare_sources
from trtspec.recipe.load import LoadedRecipe
from trtspec.store.executor import Observer, execute
from trtspec.store.plan import StepPlan
from trtspec.store.step import Step


class TrainingProgress(Observer, Protocol):
    """Shows the progress of the steps, including downloads and hashing of their sources."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the downloaded bytes of a source."""

    def reading(self, done: int, total: int) -> None:
        """Show the hashed bytes of sources."""


ProgressFactory = Callable[[], AbstractContextManager[TrainingProgress]]


def plan_recipe(loaded: LoadedRecipe, watching: ProgressFactory) -> Build:
    """Return the build of a recipe after downloading and reading all its sources."""
    with watching() as bars:
        prepare_sources(loaded, bars.preparing)
        return plan_build(loaded, read_all=True, on_read=bars.reading)


def run_steps(steps: list[Step], build: Build, watching: ProgressFactory) -> list[Path]:
    """Run steps and their dependencies for a build; return the directory with the files of each step."""
    plan, store = StepPlan(steps), open_store()
    with watching() as bars, store.holding([step.key for step in plan.steps], build.recipe.name):
        found = {result.key: result for result in execute(plan, store, bars)}
    return [found[step.key].entry.files_dir for step in steps]
