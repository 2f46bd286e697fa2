# SPDX-License-Identifier: Apache-2.0
"""`trtspec ci`."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli.layout import pluralize
from trtspec.cli.options import Json
from trtspec.cli.render import note, print_json
from trtspec.core.errors import TrtspecError
from trtspec.core.files import replace_file


class CiSystem(str, Enum):
    """A CI system."""

    github = "github"
    gitlab = "gitlab"


def ci(
    system: Annotated[
        CiSystem, typer.Argument(metavar="SYSTEM", help="CI system: github or gitlab.", show_default=False)
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
    json: Json = False,
) -> None:
    """Write a CI pipeline that checks, builds and verifies recipes.

    Each recipe, or each variant of a matrix, is a job: it restores the store of steps, builds the artifact, evaluates
    its gates (undecided ones fail) and uploads the artifact, a JUnit report and a summary. Engines that need a GPU run
    on --gpu-runner.

    Example: trtspec ci github recipes/quickstart.yaml -o .github/workflows/trtspec.yml
    """
    from trtspec.planning.ci.base import PipelineOptions, make_pipeline, render_pipeline

    options = PipelineOptions(
        python=python, install=install, cpu_runner=cpu_runner, gpu_runner=gpu_runner, branch=branch
    )
    pipeline = make_pipeline(recipes, options, Path.cwd())
    text = render_pipeline(system.value, pipeline)
    if out is not None:
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            replace_file(out, text.encode())
        except OSError as error:
            raise TrtspecError(f"cannot write the pipeline: {error.strerror}", where=str(out)) from None
    if json:
        jobs = [{"name": job.name, "recipe": job.recipe, "needs_gpu": job.needs_gpu} for job in pipeline.jobs]
        print_json({"format_version": 1, "system": system.value, "jobs": jobs, "pipeline": text})
    elif out is None:
        sys.stdout.write(text)
    else:
        note(f"{out}: {pluralize(len(pipeline.jobs), 'build')}")


panel = "Build"
command = ci
