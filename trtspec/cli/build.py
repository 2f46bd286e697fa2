# SPDX-License-Identifier: Apache-2.0
"""`trtspec build`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli.options import Cell, Json, Recipe, Set

if TYPE_CHECKING:
    from trtspec.planning.pipeline import BuildResult


def build(
    recipe: Recipe,
    set_: Set = None,
    cell: Cell = None,
    out: Annotated[Path | None, typer.Option(help="Artifact directory (default: build/NAME).")] = None,
    json: Json = False,
) -> None:
    """Build an artifact from a recipe.

    Steps that were built before are reused.

    Example: trtspec build recipes/quickstart.yaml
    """
    from trtspec.cli.progress import build_bars
    from trtspec.cli.render import combine_documents, print_json, print_line, show_diagnostics
    from trtspec.core.errors import TrtspecError
    from trtspec.planning.pipeline import check_builds, default_artifact_dir, open_store, plan_runnable, run_build
    from trtspec.recipe.load import load_matrix

    recipes = load_matrix(recipe, set_ or (), cell or ())
    if out and len(recipes) > 1:
        message = f"the recipe has {len(recipes)} cells, but --out names one directory"
        raise TrtspecError(message, hint="omit --out, or select one cell with --variant")
    documents, store = [], open_store()
    builds = [(loaded, out or default_artifact_dir(loaded.recipe)) for loaded in recipes]
    for (loaded, place), checked in zip(builds, check_builds(builds, store), strict=True):
        with build_bars(store.rates.seconds_of) as bars:
            planned = plan_runnable(loaded, checked, store, bars.preparing, bars.reading)
            show_diagnostics(planned.diagnostics)
            built = run_build(planned, place, store, bars)
        documents.append({"name": loaded.recipe.name, **describe(built)})
        if not json:
            done = "nothing to do" if built.status == "unchanged" else "built"
            print_line(f"{built.artifact}: {done} ({built.seconds:.2f} s)", "green")
            print_line(f"manifest sha256:{built.manifest}")
    if json:
        print_json(combine_documents(documents))


def describe(built: BuildResult) -> dict[str, Any]:
    """Return the document of `build --json`."""
    steps = [
        {"name": step.name, "key": step.key, "status": step.status, "seconds": round(step.seconds, 4)}
        for step in built.steps
    ]
    return {
        "format_version": 1,
        "artifact": str(built.artifact),
        "manifest": f"sha256:{built.manifest}",
        "status": built.status,
        "steps": steps,
        "seconds": round(built.seconds, 4),
    }


panel = "Build"
everyday = 3
command = build
