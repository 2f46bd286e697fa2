# SPDX-License-Identifier: Apache-2.0
"""`trtspec build`: build an artifact from a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import trtspec
from trtspec.cli.options import Cell, Json, On, Recipes, Set, parse_seconds
from trtspec.cli.progress import build_bars, fleet_table
from trtspec.cli.render import (
    combine_documents,
    note,
    print_json,
    print_line,
    print_result,
    show_diagnostics,
    show_table,
)
from trtspec.core.errors import TrtspecError
from trtspec.core.paths import store_dir

if TYPE_CHECKING:
    from trtspec.cli.progress import BuildBars
    from trtspec.fleet.scheduler import CellRun, StepRun
    from trtspec.planning.cells import CellResult, FleetResult
    from trtspec.recipe.load import LoadedRecipe
    from trtspec.store.executor import StepResult


DEFAULT_POOL = "local"


def build(
    recipe: Recipes,
    set_: Set = None,
    cell: Cell = None,
    out: Annotated[Path | None, typer.Option(help="Artifact directory (default: build/NAME).")] = None,
    until: Annotated[
        str | None,
        typer.Option(metavar="STEP", help="Stop after these steps, e.g. convert; their results stay in the store."),
    ] = None,
    on: On = None,
    strict: Annotated[bool, typer.Option("--strict", help="Build nothing if a cell fits no node.")] = False,
    wait_for_nodes: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Wait this long for a node that fits, e.g. 10m on a growing cluster."),
    ] = None,
    json: Json = False,
) -> None:
    """Build an artifact from a recipe.

    Steps that were built before are reused. The cells of a matrix, and several recipes, share their equal steps.

    Example: trtspec build recipes/quickstart.yaml
    """
    recipes = [one for each in recipe for one in trtspec.load_recipes(each, overrides=set_ or (), variants=cell or ())]
    if out and until:
        raise TrtspecError("--until writes no artifact", hint="omit --out")
    if out and len(recipes) > 1:
        message = f"the recipe has {len(recipes)} cells, but --out names one directory"
        raise TrtspecError(message, hint="omit --out, or select one cell with --variant")
    if out and on:
        raise TrtspecError("--on builds each artifact at build/NAME", hint="omit --out")
    if len(recipes) > 1 or on:
        wait_s = parse_seconds(wait_for_nodes, "--wait-for-nodes") if wait_for_nodes else 0.0
        build_on_pool(recipes, on or DEFAULT_POOL, until or "", wait_s, strict=strict, json=json)
        return
    if strict or wait_for_nodes:
        raise TrtspecError("--strict and --wait-for-nodes require --on", hint="e.g. --on ray")
    from trtspec.store.records import StepRates

    (loaded,) = recipes
    with build_bars(StepRates(store_dir()).estimated_seconds) as bars:
        document = {"name": loaded.recipe.name, **build_alone(loaded, out, until, bars)}
    print_result(combine_documents([document]), lambda: show(document), as_json=json)


def build_on_pool(
    recipes: Sequence[LoadedRecipe], on: str, until: str, wait_s: float, *, strict: bool, json: bool
) -> None:
    """Build several recipes on a pool and show the table of cells; raise TrtspecError if any of them failed."""
    from trtspec.fleet.scheduler import Limits
    from trtspec.planning.cells import Events, FleetRequest, build_cells
    from trtspec.planning.pipeline import open_store

    limits = Limits(wait_s=wait_s, strict=strict)
    with fleet_table() as shown:
        events = Events(shown, shown.preparing, shown.reading, show_diagnostics)
        found = build_cells(FleetRequest(recipes, on, until, limits), open_store(), events)
    documents = [describe_cell(cell, until) for cell in found.cells]
    if json:
        keys = [
            {**describe_run(run), "builds": run.builds, "losses": run.losses, "cells": run.cells}
            for run in found.steps.values()
        ]
        print_json({**combine_documents(documents), "keys": keys, "seconds": round(found.seconds, 4)})
    else:
        for document in documents:
            if document["status"] not in ("failed", "unplaceable"):
                show(document)
        show_cells(found)
    for cell in found.failed:
        show_failed_run(cell.run, next((each.node for each in cell.steps if each.failure and each.node), ""))
    if found.failed:
        raise typer.Exit(max(cell.run.failure.exit_code if cell.run.failure else 1 for cell in found.failed))


def build_alone(loaded: LoadedRecipe, out: Path | None, until: str | None, bars: BuildBars) -> dict[str, Any]:
    """Build the artifact of one recipe, or only its steps up to `until`; return the JSON document of `build --json`."""
    callbacks: dict[str, Any] = {
        "observer": bars,
        "on_prepare": bars.preparing,
        "on_read": bars.reading,
        "on_warnings": show_diagnostics,
    }
    if until:
        part = trtspec.build_until(loaded, until, **callbacks)
        place: dict[str, Any] = {"artifact": None, "manifest": None, "status": "partial"}
        return describe(place, part.steps, part.seconds, remaining=part.remaining)
    built = trtspec.build(loaded, out=out, **callbacks)
    place = {"artifact": str(built.artifact), "manifest": f"sha256:{built.manifest}", "status": built.status}
    return describe(place, built.steps, built.seconds)


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


def describe(place: Mapping[str, Any], steps: Sequence[StepResult], seconds: float, **further: Any) -> dict[str, Any]:
    """Return the JSON document of a build in this process, with the name, key, status and seconds of each step."""
    described = [
        {"name": step.name, "key": step.key, "status": step.status, "seconds": round(step.seconds, 4)} for step in steps
    ]
    return {"format_version": 1, **place, "steps": described, **further, "seconds": round(seconds, 4)}


def describe_cell(cell: CellResult, until: str) -> dict[str, Any]:
    """Return the JSON document of one cell of a build on a pool; `error` is present if it has no artifact."""
    run = cell.run
    document: dict[str, Any] = {
        "format_version": 1,
        "name": run.cell.name,
        "artifact": str(cell.artifact) if cell.artifact else None,
        "manifest": f"sha256:{cell.manifest}" if cell.manifest else None,
        "status": cell.status or ("partial" if run.status == "built" else run.status),
        "steps": [describe_run(each, run.cell.name) for each in cell.steps],
        **({"remaining": []} if until else {}),
        "seconds": round(run.seconds, 4),
    }
    if run.failure:
        error = {"step": run.step, "where": run.failure.where, "message": run.failure.message, "hint": run.failure.hint}
        document["error"] = {"cell": run.cell.where, **error}
    return document


def describe_run(run: StepRun, cell: str = "") -> dict[str, Any]:
    """Return the JSON document of a step of a build on a pool.

    A step that several `cell`s share is built for the first of them, and a hit for the others.
    """
    is_shared = bool(cell) and run.status == "built" and cell != run.cells[0]
    return {
        "name": run.step.name,
        "key": run.step.key,
        "status": "hit" if is_shared else run.status or run.state,
        "node": run.node,
        "seconds": round(run.seconds, 4),
    }


def show_cells(found: FleetResult) -> None:
    """Show the table of cells."""
    rows = [
        (
            cell.run.cell.name,
            cell.status or cell.run.status,
            f"{sum(each.status == 'built' for each in cell.steps)} of {len(cell.steps)}",
            ", ".join(dict.fromkeys(each.node for each in cell.steps if each.node)) or "-",
            f"{cell.run.seconds:.2f} s",
        )
        for cell in found.cells
    ]
    show_table("", ("cell", "status", "steps built", "nodes", "time"), rows, right=(2, 4))


def show_failed_run(run: CellRun, node: str) -> None:
    """Show the position in the recipe, the step, the node and the error of a cell that failed."""
    if run.failure is None:
        return
    at = f" on {node}" if node else ""
    where = f"{run.failure.where}: " if run.failure.where else ""
    step = f"{run.step}{at}: " if run.step and run.status == "failed" else ""
    note(f"error: {run.cell.where}: {run.cell.name}: {step}{where}{run.failure.message}", "red")
    if run.failure.hint:
        note(f"hint: {run.failure.hint}")


panel = "Build"
everyday = 3
command = build
