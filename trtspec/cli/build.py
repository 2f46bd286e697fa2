# SPDX-License-Identifier: Apache-2.0
"""`trtspec build`: build an artifact from a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import trtspec
from trtspec.cli.options import Cell, Json, Recipe, Set
from trtspec.cli.progress import build_bars
from trtspec.cli.render import combine_documents, print_json, print_line, show_diagnostics
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from trtspec.cli.progress import BuildBars
    from trtspec.planning.pipeline import BuildResult, PartialBuildResult
    from trtspec.recipe.load import LoadedRecipe
    from trtspec.store.executor import StepResult


def build(
    recipe: Recipe,
    set_: Set = None,
    cell: Cell = None,
    out: Annotated[Path | None, typer.Option(help="Artifact directory (default: build/NAME).")] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="STEP", help="Stop after these steps, e.g. convert; their results stay in the store."),
    ] = None,
    json: Json = False,
) -> None:
    """Build an artifact from a recipe.

    Steps that were built before are reused.

    Example: trtspec build recipes/quickstart.yaml
    """
    from trtspec.planning.pipeline import check_builds, default_artifact_dir, open_store

    recipes = trtspec.load_recipes(recipe, overrides=set_ or (), variants=cell or ())
    if out and until:
        raise TrtspecError("--until writes no artifact", hint="omit --out")
    if out and len(recipes) > 1:
        message = f"the recipe has {len(recipes)} cells, but --out names one directory"
        raise TrtspecError(message, hint="omit --out, or select one cell with --variant")
    documents, store = [], open_store()
    if len(recipes) > 1:  # report the problems of all of them before the first is built
        check_builds([(loaded, default_artifact_dir(loaded.recipe)) for loaded in recipes], store, until or "")
    for loaded in recipes:
        with build_bars(store.rates.estimated_seconds) as bars:
            document = build_part(loaded, until, bars) if until else build_artifact(loaded, out, bars)
        documents.append({"name": loaded.recipe.name, **document})
        if not json:
            show(documents[-1])
    if json:
        print_json(combine_documents(documents))


def build_artifact(loaded: LoadedRecipe, out: Path | None, bars: BuildBars) -> dict[str, Any]:
    """Build the artifact of one recipe; return the JSON document of `trtspec build --json`."""
    built = trtspec.build(
        loaded,
        out=out,
        observer=bars,
        on_prepare=bars.preparing,
        on_read=bars.reading,
        on_warnings=show_diagnostics,
    )
    return describe(built)


def build_part(loaded: LoadedRecipe, until: str, bars: BuildBars) -> dict[str, Any]:
    """Build the steps of one recipe up to `until`; return the JSON document of `trtspec build --until --json`."""
    built = trtspec.build_until(
        loaded,
        until,
        observer=bars,
        on_prepare=bars.preparing,
        on_read=bars.reading,
        on_warnings=show_diagnostics,
    )
    return describe_part(built)


def show(document: dict[str, Any]) -> None:
    """Show the location of a build's result and, for a partial build, the remaining steps."""
    if document["status"] != "partial":
        done = "nothing to do" if document["status"] == "unchanged" else "built"
        print_line(f"{document['artifact']}: {done} ({document['seconds']:.2f} s)", "green")
        print_line(f"manifest {document['manifest']}")
        return
    names = ", ".join(step["name"] for step in document["steps"])
    print_line(f"{document['name']}: {names}: in the store ({document['seconds']:.2f} s)", "green")
    print_line(f"remaining: {', '.join(document['remaining']) or 'nothing'}")


def describe(built: BuildResult) -> dict[str, Any]:
    """Return the JSON document of `trtspec build --json`."""
    return {
        "format_version": 1,
        "artifact": str(built.artifact),
        "manifest": f"sha256:{built.manifest}",
        "status": built.status,
        "steps": describe_steps(built.steps),
        "seconds": round(built.seconds, 4),
    }


def describe_part(built: PartialBuildResult) -> dict[str, Any]:
    """Return the JSON document of `trtspec build --until STEP --json`."""
    return {
        "format_version": 1,
        "artifact": None,
        "manifest": None,
        "status": "partial",
        "steps": describe_steps(built.steps),
        "remaining": built.remaining,
        "seconds": round(built.seconds, 4),
    }


def describe_steps(steps: Sequence[StepResult]) -> list[dict[str, Any]]:
    """Return the name, key, status and seconds of each step for the JSON document of a build."""
    return [
        {"name": step.name, "key": step.key, "status": step.status, "seconds": round(step.seconds, 4)} for step in steps
    ]


panel = "Build"
everyday = 3
command = build
