# SPDX-License-Identifier: Apache-2.0
"""`trtspec build`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import trtspec
from trtspec.cli.options import Cell, Json, Recipe, Set
from trtspec.cli.progress import build_bars
from trtspec.cli.render import combine_documents, print_json, print_line, show_diagnostics
from trtspec.core.errors import TrtspecError

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
    from trtspec.planning.pipeline import check_builds, default_artifact_dir, open_store

    recipes = trtspec.load_recipes(recipe, overrides=set_ or (), variants=cell or ())
    if out and len(recipes) > 1:
        message = f"the recipe has {len(recipes)} cells, but --out names one directory"
        raise TrtspecError(message, hint="omit --out, or select one cell with --variant")
    documents, store = [], open_store()
    if len(recipes) > 1:  # report the problems of all of them before the first is built
        check_builds([(loaded, default_artifact_dir(loaded.recipe)) for loaded in recipes], store)
    for loaded in recipes:
        with build_bars(store.rates.estimated_seconds) as bars:
            built = trtspec.build(
                loaded,
                out=out,
                observer=bars,
                on_prepare=bars.preparing,
                on_read=bars.reading,
                on_warnings=show_diagnostics,
            )
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
