# SPDX-License-Identifier: Apache-2.0
"""`trtspec build-job`: write a job of a Kubernetes cluster that builds a recipe and pushes the artifacts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli.deploy import parse_pairs
from trtspec.cli.layout import pluralize
from trtspec.cli.options import Cell, Json, Set
from trtspec.cli.render import note, print_result, show_diagnostics, write_output


def build_job(
    recipe: Annotated[
        Path, typer.Argument(metavar="RECIPE", help="Recipe file, or name of a shipped recipe.", show_default=False)
    ],
    image: Annotated[
        str, typer.Option(metavar="NAME@sha256:...", help="Image with trtspec and the builder, by digest.")
    ],
    push: Annotated[
        str, typer.Option(metavar="LOCATION", help="Location of the artifacts; {name} is the recipe's name.")
    ],
    kind: Annotated[str, typer.Option(help="Kind of job: kubernetes (one for each cell) or ray.")] = "kubernetes",
    set_: Set = None,
    cell: Cell = None,
    option: Annotated[
        list[str] | None, typer.Option("--option", metavar="KEY=VALUE", help="Setting of the job; repeatable.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output file (default: stdout).")] = None,
    json: Json = False,
) -> None:
    """Write a Kubernetes Job or RayJob that builds a recipe and pushes the artifacts.

    Resources and nodes follow from the plan of each cell. Nothing is started.

    Example: trtspec build-job recipe.yaml --image "$IMAGE" --push oci://registry.example.com/team/model:v1
    """
    from trtspec.deployment.build_jobs.job import find_kind, make_build_job
    from trtspec.deployment.containers import as_yaml

    found = find_kind(kind)
    pairs = parse_pairs("--option", option or ())
    job, warnings = make_build_job(recipe, image, push, pairs, overrides=set_ or (), variants=cell or ())
    show_diagnostics(warnings)
    documents = found.render(job)
    text = as_yaml(*documents, head=f"Builds {', '.join(each.name for each in job.cells)}: kubectl apply -f FILE")
    if out is not None:
        write_output(out, text, "the job", parents=True)
    cells = [{"name": each.name, "address": each.address, "step_gpus": each.step_gpus} for each in job.cells]
    print_result(
        {"format_version": 1, "kind": kind, "name": job.name, "cells": cells, "objects": documents},
        lambda: note(f"{out}: {pluralize(len(cells), 'build')}") if out else sys.stdout.write(text),
        as_json=json,
    )


panel = "Build"
command = build_job
