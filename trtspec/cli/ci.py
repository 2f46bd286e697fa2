# SPDX-License-Identifier: Apache-2.0
"""`trtspec ci`: write a CI pipeline that checks, builds and verifies recipes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from trtspec.cli.layout import pluralize
from trtspec.cli.options import Json
from trtspec.cli.render import note, print_result, write_output


def ci(
    system: Annotated[
        Literal["github", "gitlab"],
        typer.Argument(metavar="SYSTEM", help="CI system: github or gitlab.", show_default=False),
    ],
    recipes: Annotated[
        list[Path], typer.Argument(metavar="RECIPE", help="Recipe files of this project.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output file (default: stdout).")] = None,
    python: Annotated[str, typer.Option(help="Python version of the jobs.")] = "3.12",
    install: Annotated[
        str, typer.Option(metavar="PACKAGES", help="Argument of pip install (default: trtspec with its extras).")
    ] = "",
    cpu_runner: Annotated[
        str, typer.Option(metavar="LABEL", help="Runner of jobs without a GPU (default: the system's).")
    ] = "",
    gpu_runner: Annotated[str, typer.Option(metavar="LABEL", help="Runner of engines that need a GPU.")] = "gpu",
    branch: Annotated[str, typer.Option(help="Branch whose pushes start the pipeline.")] = "main",
    sign: Annotated[bool, typer.Option("--sign", help="Sign artifacts with the identity of the CI job.")] = False,
    remote: Annotated[
        str,
        typer.Option(metavar="LOCATION", help="Team store, in place of the CI system's cache, e.g. oci://HOST/NAME."),
    ] = "",
    json: Json = False,
) -> None:
    """Write a CI pipeline that checks, builds and verifies recipes.

    Each recipe, or each variant of a matrix, is a job: it restores the store of steps, builds the artifact, evaluates
    its gates (undecided ones fail) and uploads the artifact, a JUnit report and a summary. Engines that need a GPU run
    on --gpu-runner.

    Example: trtspec ci github recipes/quickstart.yaml -o .github/workflows/trtspec.yml
    """
    from trtspec.planning.ci import make_pipeline, render_pipeline

    runners = {"cpu_runner": cpu_runner, "gpu_runner": gpu_runner}
    settings = {"python": python, "install": install, "branch": branch, "remote": remote, **runners}
    pipeline = make_pipeline(recipes, Path.cwd(), **settings, sign=sign)
    text = render_pipeline(system, pipeline)
    if out is not None:
        write_output(out, text, "the pipeline", parents=True)
    jobs = [{"name": job.name, "recipe": job.recipe, "needs_gpu": job.needs_gpu} for job in pipeline.jobs]
    print_result(
        {"format_version": 1, "system": system, "jobs": jobs, "pipeline": text},
        lambda: note(f"{out}: {pluralize(len(jobs), 'build')}") if out else sys.stdout.write(text),
        as_json=json,
    )


panel = "Build"
command = ci
