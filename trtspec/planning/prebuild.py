# SPDX-License-Identifier: Apache-2.0
"""Prepare builds: find problems before anything is downloaded or built, and download sources.

Calls the checks of the later stages and adds none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from trtspec.checkpoints.resolve import OnProgress, prepare_source
from trtspec.core.diagnostics import Diagnostic, Mark, RecipeError
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.planning.check.recipe import CheckResult, check_recipe
from trtspec.planning.pipeline import Build, plan_build
from trtspec.recipe.load import LoadedRecipe
from trtspec.store.publish_artifact import check_artifact_path
from trtspec.store.store import Store


def check_builds(builds: Sequence[tuple[LoadedRecipe, Path]], store: Store) -> list[CheckResult]:
    """Return the check results of each recipe; RecipeError with all problems that would end a build.

    Problems that depend on missing sources are found after the download.
    """
    results = [check_recipe(loaded, will_prepare=True) for loaded, _ in builds]
    found = dict.fromkeys(
        each
        for (loaded, out), checked in zip(builds, results, strict=True)
        for each in (*checked.diagnostics, *_output_problems(out), *_machine_problems(loaded, checked, out, store))
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
) -> Build:
    """Return a build that can run, of a recipe that was just `checked`.

    Missing sources are downloaded unless their metadata are cached and every step is in the store; large ones are
    hashed during conversion. RecipeError as for `prepare_sources` and `plan_build`.
    """
    if checked.context:
        build = plan_build(loaded, checked=checked, on_read=on_read)
        if not build.weights_absent or all(each.status == "hit" for each in build.status(store)):
            return build
    prepare_sources(loaded, on_progress)
    return plan_build(loaded, on_read=on_read)


def _output_problems(out: Path) -> Iterable[Diagnostic]:
    try:
        check_artifact_path(out)
    except TrtspecError as error:
        yield Diagnostic("", "place", error.message, error.hint).at(Mark(str(out)))


def _machine_problems(loaded: LoadedRecipe, checked: CheckResult, out: Path, store: Store) -> list[Diagnostic]:
    """Return the tools and disk space that this machine lacks for a build, without reading large sources."""
    if checked.errors or checked.context is None:
        return []
    try:
        build = plan_build(loaded, checked=checked)
    except TrtspecError as error:
        message = f"{error.where}: {error.message}" if error.where else error.message
        return [loaded.located(Diagnostic("engine", "machine", message, error.hint))]
    found = build.missing_tools(store)
    if build.is_read:  # otherwise keys are not final, and the steps may be in the store
        found += build.disk_problems(store, out)
    return [loaded.located(each) for each in found]
