# SPDX-License-Identifier: Apache-2.0
"""`trtspec plan`: show the steps, memory and predicted speed-up of a recipe."""

from __future__ import annotations

import json as json_format
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

import trtspec
from trtspec.cli.options import Cell, Json, Recipe, Set
from trtspec.cli.progress import format_duration
from trtspec.cli.render import (
    combine_documents,
    print_command,
    print_json,
    print_line,
    show_chart,
    show_diagnostics,
    show_table,
)

if TYPE_CHECKING:
    from trtspec.planning.pipeline import Build
    from trtspec.store.store import Store


Document = dict[str, Any]


def show_predicted(predicted: Document, max_seq_len: int) -> None:
    """Show the predicted speed-up, or the reason why it is unknown."""
    if predicted["why_not"]:
        what = "no speed is predicted"
        if by_rate := predicted.get("speedup_by_acceptance_rate"):
            rates = ", ".join(f"{value}x at {rate}" for rate, value in by_rate.items())
            print_line(f"expected at batch 1 from model sizes, by acceptance rate: {rates}")
            what = "tokens/s and larger batches are not predicted"
        print_line(f"{what}: {predicted['why_not']}")
        return
    gpus = f"{predicted['gpus']} {predicted['gpu']}"
    texts = f"sequences of {predicted['context_tokens']} tokens, draft_len {predicted['draft_len']}"
    title = f"predicted speed-up on {gpus} by batch and acceptance rate; {texts}"
    show_table(title, *_table(predicted), right=range(1, 6))
    letters = {rate[-1]: f"acceptance rate {rate}" for rate in predicted["by_acceptance_rate"]}
    show_chart("speed-up by batch size; 1x is the target alone", "batch", _rows(predicted), letters)
    if predicted["gpu_price"] is not None:
        costs = {each["batch"]: each["dollars_per_million_tokens"] for each in predicted["batches"]}
        rows = [[str(batch), *(f"{dollars:.2f}" for dollars in cost.values())] for batch, cost in costs.items()]
        columns = ["batch", *costs[min(costs)]]
        show_table("dollars per million tokens, for GPUs without idle time", columns, rows, right=range(1, 6))
    for sentence in _sentences(predicted, max_seq_len):
        print_line(sentence)


def _table(predicted: Document) -> tuple[list[str], list[list[str]]]:
    by_rate = predicted["by_acceptance_rate"]
    rows = [
        [
            str(each["batch"]),
            f"{each['tokens_per_s']:.0f}",
            *(f"{speedup:.2f}x" for speedup in each["speedup"].values()),
        ]
        for each in predicted["batches"]
    ]
    rows.append(["break-even batch", "", *(str(each["break_even_batch"] or "-") for each in by_rate.values())])
    if any(each["best_draft_len"] for each in by_rate.values()):
        rows.append(["best draft_len", "", *(str(each["best_draft_len"] or "-") for each in by_rate.values())])
    return ["batch", "alone tok/s", *by_rate], rows


def _rows(predicted: Document) -> list[tuple[str, list[tuple[str, float]]]]:
    """Return the rows of the plot: the predicted batches and the break-even batches of each acceptance rate."""
    rows = {
        each["batch"]: [(rate[-1], value) for rate, value in each["speedup"].items()] for each in predicted["batches"]
    }
    for rate, each in predicted["by_acceptance_rate"].items():
        batch = each["break_even_batch"]
        if batch and batch not in {each["batch"] for each in predicted["batches"]}:
            rows.setdefault(batch, []).append((rate[-1], 1.0))
    return [(str(batch), marks) for batch, marks in sorted(rows.items())]


def _sentences(predicted: Document, max_seq_len: int) -> Iterator[str]:
    if found := predicted["published"]:
        yield f"with the published acceptance: {found['speedup']}x at batch 1 ({found['source']})"
    if schedule := predicted["by_acceptance_rate"]["0.8"]["schedule"]:
        entries = ", ".join(f"{entry['draft_len']} up to {entry['max_batch']}" for entry in schedule)
        yield f"speculation.schedule at an acceptance rate of 0.8: draft_len {entries} requests"
    if (largest := predicted["largest_batch"]) is not None:
        yield f"the memory holds {largest} sequences of {max_seq_len} tokens"
    if placed := predicted["placement"]:
        yield f"the draft is fastest on {placed['best']}: {placed['why']}"


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
    from trtspec.planning.pipeline import default_artifact_dir, open_store

    store = open_store()
    documents = []
    for loaded in trtspec.load_recipes(recipe, overrides=set_ or (), variants=cell or ()):
        build = trtspec.plan(loaded)
        documents.append(describe(build, store, gpu_price))
        show_diagnostics(build.diagnostics)
        show_diagnostics(build.disk_warnings(store, default_artifact_dir(build.recipe)))
        if not json:
            show(documents[-1], build)
    if json:
        print_json(combine_documents(documents))
    work = any(step["status"] == "miss" for document in documents for step in document["steps"])
    raise typer.Exit(EXIT_WORK_PENDING if detailed_exitcode and work else 0)


def describe(build: Build, store: Store, gpu_price: float | None = None) -> dict[str, Any]:
    """Return the JSON document of `trtspec plan --json`; `gpu_price` is in dollars per hour."""
    from trtspec.planning.pipeline import default_artifact_dir

    unread = "" if build.is_read else "; the key is provisional because the source is not hashed yet"
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
            "expected_seconds": store.rates.estimated_seconds(status.step) if status.status == "miss" else None,
        }
        for status in build.status(store)
    ]
    return {
        "format_version": 1,
        "name": build.recipe.name,
        "recipe": build.recipe.without_directories().as_dict(),
        "backend": {"name": build.recipe.engine.backend, "why": build.recipe.engine.backend_why},
        "speculation": build.speculation(),
        "keys_are_final": build.keys_are_final,
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


def show(document: dict[str, Any], build: Build) -> None:
    from trtspec.store.plan import format_bytes

    backend = document["backend"]
    version = f" {build.recipe.engine.version}" if build.recipe.engine.version else ""
    print_line(f"{document['name']}: {backend['name']} engine{version}, because {backend['why']}")
    drafting = document["speculation"]
    if drafting["draft_tokens"]:
        configs = [document.get(name, {}).get("speculative_config") for name in ("model_yaml", "model_json")]
        config = "".join(f"; speculative_config {json_format.dumps(each)}" for each in configs if each)
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
    if placement := document.get("placement"):
        print_command("launch", _launch(placement))
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
        print_line(f"disk for the {need['what']}: {sizes} at {need['path']}")
    if document["predicted"]:
        show_predicted(document["predicted"], build.recipe.engine.max_seq_len)
    missing, remote = (sum(step["status"] == each for step in steps) for each in ("miss", "remote"))
    fetched = f"{remote} of {len(steps)} steps to fetch from the team store" if remote else ""
    built = f"{missing} of {len(steps)} steps to build{_expected(steps)}" if missing else ""
    print_line("; ".join(filter(None, [fetched, built])) or "nothing to do")


def _launch(placement: Document) -> str:
    """Return the shell command that serves the engines from the artifact's directory, on Triton's default ports."""
    ports = {"http_port": 8000, "grpc_port": 8001, "metrics_port": 8002}
    words = [word.format(repository="model_repository", **ports) for word in placement["command"]]
    environment = [f"{name}={value}" for name, value in placement["environment"].items()]
    return shlex.join([*environment, *words])


def _expected(steps: Sequence[dict[str, Any]]) -> str:
    """Return the expected duration of the steps with a known throughput, or ""."""
    known = [step for step in steps if step["expected_seconds"] is not None]
    if not known:
        return ""
    names = ", ".join(step["name"] for step in known)
    seconds = sum(step["expected_seconds"] for step in known)
    return f"; {names}: about {format_duration(seconds)} at the throughput of earlier builds"


panel = "Build"
everyday = 2
command = plan
