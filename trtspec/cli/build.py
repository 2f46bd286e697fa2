# SPDX-License-Identifier: Apache-2.0
"""`trtspec build`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli.options import Cell, Json, Recipe, Set

if TYPE_CHECKING:
    from trtspec.pipeline import Built


def build(
    recipe: Recipe,
    set_: Set = None,
    cell: Cell = None,
    out: Annotated[Path | None, typer.Option(help="Where the artifact goes, instead of build/NAME.")] = None,
    json: Json = False,
) -> None:
    """Make the artifact of a recipe; what was made before is not made again.

    Example: trtspec build recipes/quickstart.yaml
    """
    from trtspec.cli.render import build_bars, one_or_many, print_json, say, show_diagnostics
    from trtspec.errors import TrtspecError
    from trtspec.pipeline import open_store, plan_build, prepare_sources, run_build
    from trtspec.recipe.load import load_matrix

    recipes = load_matrix(recipe, set_ or (), cell or ())
    if out and len(recipes) > 1:
        message = f"the recipe makes {len(recipes)} artifacts, --out names one place"
        raise TrtspecError(message, hint="leave it out, or choose one with --cell")
    documents = []
    for loaded in recipes:
        with build_bars() as bars:
            prepare_sources(loaded, bars.preparing)
            planned = plan_build(loaded, read_all=True, on_read=bars.reading)
            show_diagnostics(planned.diagnostics)
            built = run_build(planned, out or Path("build") / loaded.recipe.name, open_store(), bars)
        nothing = built.status == "unchanged"
        say(f"{built.artifact}: {'nothing to do' if nothing else 'built'} ({built.seconds:.2f} s)", "green")
        documents.append({"name": loaded.recipe.name, **describe(built)})
    if json:
        print_json(one_or_many(documents))


def describe(built: Built) -> dict[str, Any]:
    """Return the document of `build --json`."""
    steps = [
        {"name": step.name, "key": step.key, "status": step.status, "seconds": round(step.seconds, 4)}
        for step in built.steps
    ]
    return {
        "format_version": 1,
        "artifact": str(built.artifact),
        "status": built.status,
        "steps": steps,
        "seconds": round(built.seconds, 4),
    }


command = build
