# SPDX-License-Identifier: Apache-2.0
"""`trtspec plan`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli.options import Cell, Json, Recipe, Set

if TYPE_CHECKING:
    from trtspec.planning.pipeline import Build
    from trtspec.store.store import Store

EXIT_WORK_PENDING = 2


def plan(
    recipe: Recipe,
    set_: Set = None,
    cell: Cell = None,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Exit with 2 if steps have to be built.")
    ] = False,
    gpu_price: Annotated[
        float | None,
        typer.Option(
            "--gpu-price", metavar="DOLLARS", min=0, help="Price of a GPU hour, to estimate the cost of tokens."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show the steps, memory and predicted speed-up of a recipe.

    Does not build.

    Example: trtspec plan recipes/quickstart.yaml
    """
    from trtspec.cli.render import combine_documents, print_json, show_diagnostics
    from trtspec.planning.pipeline import open_store, plan_build
    from trtspec.recipe.load import load_matrix

    store = open_store()
    documents = []
    for loaded in load_matrix(recipe, set_ or (), cell or ()):
        build = plan_build(loaded)
        documents.append(describe(build, store, gpu_price))
        show_diagnostics(build.diagnostics)
        if not json:
            show(documents[-1], build)
    if json:
        print_json(combine_documents(documents))
    work = any(step["status"] == "miss" for document in documents for step in document["steps"])
    raise typer.Exit(EXIT_WORK_PENDING if detailed_exitcode and work else 0)


def describe(build: Build, store: Store, gpu_price: float | None = None) -> dict[str, Any]:
    """Return the document of `plan --json`."""
    from trtspec.planning.pipeline import default_artifact_dir

    unread = "" if build.is_read else "; the key is provisional because the source is not hashed yet"
    statuses = build.status(store)
    steps = [
        {
            "name": status.name,
            "key": status.key,
            "status": status.status,
            "why": status.why + (unread if status.status == "miss" else ""),
            "command": list(status.step.command) if status.step.command else None,
            "key_parts": status.step.key_parts,
            "read_bytes": status.step.total_bytes,
            "write_bytes": status.step.output_bytes,
            "expected_seconds": store.rates.seconds_of(status.step) if status.status == "miss" else None,
        }
        for status in statuses
    ]
    return {
        "format_version": 1,
        "name": build.recipe.name,
        "recipe": build.recipe.without_directories().as_dict(),
        "backend": {"name": build.recipe.engine.backend, "why": build.recipe.engine.backend_why},
        "speculation": build.speculation(),
        "keys_are_final": build.is_read,
        "steps": steps,
        "memory": {"gpus": [{**asdict(device), "total_bytes": device.total_bytes} for device in build.memory()]},
        "downloads": build.downloads,
        "disk": [
            {**asdict(need), "path": str(need.path)} for need in build.disk(store, default_artifact_dir(build.recipe))
        ],
        "predicted": build.predicted(gpu_price),
        "notes": list(build.artifact.notes),
        **build.artifact.facts,
    }


def _speculative_config(document: dict[str, Any]) -> str:
    """Return the engine's speculative_config, or "" if it is part of a build command."""
    for name in ("model_yaml", "model_json"):
        if config := document.get(name, {}).get("speculative_config"):
            return f"; speculative_config {json.dumps(config)}"
    return ""


def show(document: dict[str, Any], build: Build) -> None:
    """Show the plan."""
    from trtspec.cli.predicted import show_predicted
    from trtspec.cli.render import print_command, print_line, show_table
    from trtspec.store.disk_space import format_bytes

    backend = document["backend"]
    version = f" {build.recipe.engine.version}" if build.recipe.engine.version else ""
    print_line(f"{document['name']}: {backend['name']} engine{version}, because {backend['why']}")
    drafting = document["speculation"]
    if drafting["draft_tokens"]:
        config = _speculative_config(document)
        lossy = "" if drafting["acceptance"] == "exact" else f", {drafting['acceptance']} acceptance: lossy"
        many = f"{drafting['draft_tokens']} draft tokens per step, at most {drafting['draft_len']} in sequence"
        print_line(f"{drafting['method']}: {many}{lossy}{config}")
    for note in document["notes"]:
        print_line(note)
    steps = document["steps"]
    show_table("", ("step", "", "why", "key"), [(s["name"], s["status"], s["why"], s["key"][:12]) for s in steps])
    for step in steps:
        if step["command"]:
            print_command(step["name"], shlex.join(step["command"]))
    parts = ("weights", "kv_cache", "draft", "activation")
    for memory in document["memory"]["gpus"]:
        sizes = ", ".join(f"{part.replace('_', ' ')} {format_bytes(memory[f'{part}_bytes'])}" for part in parts)
        of = f" of {format_bytes(memory['limit_bytes'])}" if memory["limit_bytes"] else ""
        print_line(f"memory on {memory['id']}: {format_bytes(memory['total_bytes'])}{of} ({sizes})")
    if any(not memory["limit_bytes"] for memory in document["memory"]["gpus"]):
        print_line("GPU memory is unknown; set engine.gpu, e.g. --set engine.gpu=h200")
    for each in document["downloads"]:
        print_line(f"download of {each['model']}: {format_bytes(each['bytes'])}")
    for need in document["disk"]:
        sizes = f"{format_bytes(need['needed_bytes'])} to write, {format_bytes(need['free_bytes'])} free"
        is_short = need["needed_bytes"] > need["free_bytes"]
        short = "NOT ENOUGH " if is_short else ""
        print_line(f"{short}disk for the {need['what']}: {sizes} at {need['path']}", "red" if is_short else "")
    if document["predicted"]:
        show_predicted(document["predicted"], build.recipe.engine.max_seq_len)
    missing = sum(step["status"] == "miss" for step in steps)
    print_line(f"{missing} of {len(steps)} steps to build{_expected(steps)}" if missing else "nothing to do")


def _expected(steps: Sequence[dict[str, Any]]) -> str:
    """Return the expected duration of the steps with a known throughput, or ""."""
    from trtspec.cli.progress import format_duration

    known = [step for step in steps if step["expected_seconds"] is not None]
    if not known:
        return ""
    names = ", ".join(step["name"] for step in known)
    seconds = sum(step["expected_seconds"] for step in known)
    return f"; {names}: about {format_duration(seconds)} at the throughput of earlier builds"


panel = "Build"
everyday = 2
command = plan
