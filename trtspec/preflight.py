# SPDX-License-Identifier: Apache-2.0
"""What would end a build, found before it downloads, reads or makes anything: the recipe, the place, the machine.

Knows no rule of its own; it asks whoever would fail later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from trtspec.artifacts.publish import check_place
from trtspec.check import CheckResult, check_recipe
from trtspec.diagnostics import Diagnostic, Mark, RecipeError
from trtspec.errors import TrtspecError
from trtspec.graph.store import Store
from trtspec.pipeline import plan_build
from trtspec.recipe.load import LoadedRecipe


def check_builds(builds: Sequence[tuple[LoadedRecipe, Path]], store: Store) -> list[CheckResult]:
    """Return what `check` finds of each recipe; raises RecipeError with everything that would end its build to a place.

    What depends on a source that is not here yet shows once it is.
    """
    results = [check_recipe(loaded, will_prepare=True) for loaded, _ in builds]
    found = dict.fromkeys(
        each
        for (loaded, out), checked in zip(builds, results, strict=True)
        for each in (*checked.diagnostics, *_place_problems(out), *_machine_problems(loaded, checked, out, store))
    )
    if any(each.severity == "error" for each in found):
        raise RecipeError(list(found))
    return results


def _place_problems(out: Path) -> Iterable[Diagnostic]:
    try:
        check_place(out)
    except TrtspecError as error:
        yield Diagnostic("", "place", error.message, error.hint).at(Mark(str(out)))


def _machine_problems(loaded: LoadedRecipe, checked: CheckResult, out: Path, store: Store) -> list[Diagnostic]:
    """Return what this machine lacks for a build: tools, room. Large sources are not read for it."""
    if checked.errors or checked.context is None:
        return []
    try:
        build = plan_build(loaded, checked=checked)
    except TrtspecError as error:
        message = f"{error.where}: {error.message}" if error.where else error.message
        return [loaded.located(Diagnostic("engine", "machine", message, error.hint))]
    found = build.lacks(store)
    if build.is_read:  # else its steps may be in the store, whatever their keys look like
        found += build.disk_problems(store, out)
    return [loaded.located(each) for each in found]
