# SPDX-License-Identifier: Apache-2.0
"""The pipeline that `trtspec ci` writes, independent of the CI system: its jobs and their commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trtspec.backends.base import AUTO, find_backend, in_process_backend
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import find_extension
from trtspec.recipe.load import load_matrix
from trtspec.recipe.schema import Engine

PACKAGE, ATTRIBUTE = "trtspec.planning.ci", "SYSTEM"
CACHE = ".trtspec-cache"
KEY_OF_PLAN = "import json, sys; print(json.load(sys.stdin)['steps'][-1]['key'])"
HEADER = "# Written by `trtspec ci {system}`; to update it, run the command again.\n"


@dataclass(frozen=True)
class PipelineOptions:
    """The parts of a pipeline that a project chooses.

    Attributes:
        python: the Python version of all jobs.
        install: the arguments of `pip install`; "" for trtspec with the extras that builds and tests need.
        cpu_runner, gpu_runner: label of the runners, "" for the system's default; the second is for backends whose
            engine needs a GPU.
        branch: the branch whose pushes start the pipeline.
        keep_days: how long artifacts are kept.
        timeout_minutes: the limit of each build job.
    """

    python: str = "3.12"
    install: str = ""
    cpu_runner: str = ""
    gpu_runner: str = "gpu"
    branch: str = "main"
    keep_days: int = 14
    timeout_minutes: int = 360


@dataclass(frozen=True)
class BuildJob:
    """The build and the verification of one recipe, or of one variant of a matrix.

    Attributes:
        name: the recipe's name, which is unique in a pipeline.
        recipe: path of the recipe file, relative to the project's root.
        variant: the variant's name, or "" if the file has a single recipe.
        needs_gpu: whether the engine runs on a GPU only.
    """

    name: str
    recipe: str
    variant: str
    needs_gpu: bool

    @property
    def artifact(self) -> str:
        """Return the directory of the artifact."""
        return f"build/{self.name}"

    def runner(self, options: PipelineOptions) -> str:
        """Return the label of the job's runner, "" for the default."""
        return options.gpu_runner if self.needs_gpu else options.cpu_runner

    def command(self, command: str, *more: str) -> str:
        """Return a command on the recipe as a shell text."""
        variant = ["--variant", self.variant] if self.variant else []
        return shlex.join(["trtspec", command, self.recipe, *variant, *more])

    def build(self) -> str:
        """Return the command that builds the artifact and saves the result."""
        return self.command("build", "--json") + " > build.json"

    def verify(self) -> str:
        """Return the command that compares the artifact with its target and evaluates the gates."""
        return shlex.join(["trtspec", "verify", self.artifact, "--undecided", "fail"])

    def report(self, form: str, out: str = "") -> str:
        """Return the command that writes a report in a format, to a file or to standard output."""
        into = ["--out", out] if out else []
        return shlex.join(["trtspec", "report", self.artifact, "--results", "build.json", "--format", form, *into])

    def pack(self) -> str:
        """Return the command that packs the artifact, because upload actions lose links and permissions."""
        return shlex.join(["tar", "-C", "build", "-cf", f"{self.name}.tar", self.name])


@dataclass(frozen=True)
class Pipeline:
    """The recipes to check and the artifacts to build."""

    recipes: tuple[str, ...]
    jobs: tuple[BuildJob, ...]
    options: PipelineOptions

    def install(self) -> str:
        """Return the command that installs trtspec."""
        packages = self.options.install or f"trtspec[{in_process_backend()[0]},triton]"
        return shlex.join(["python", "-m", "pip", "install", *shlex.split(packages)])

    def checks(self) -> list[str]:
        """Return the commands that check all recipes."""
        return [shlex.join(["trtspec", "check", recipe]) for recipe in self.recipes]


System = Callable[[Pipeline], dict[str, Any]]


def make_pipeline(recipes: Sequence[Path], options: PipelineOptions, root: Path) -> Pipeline:
    """Return the pipeline of some recipe files of the project at `root`.

    Raises TrtspecError for a file outside the project or two recipes with one name, and RecipeError for an
    invalid recipe.
    """
    jobs: dict[str, BuildJob] = {}
    paths = [_relative(path, root) for path in recipes]
    for path, relative in zip(recipes, paths, strict=True):
        loaded = load_matrix(path)
        for each in loaded:
            name = each.recipe.name
            if name in jobs:
                raise TrtspecError(f"two recipes are called {name}", where=relative, hint="change `name`")
            jobs[name] = BuildJob(name, relative, name if len(loaded) > 1 else "", _needs_gpu(each.recipe.engine))
    return Pipeline(tuple(paths), tuple(jobs.values()), options)


def render_pipeline(system: str, pipeline: Pipeline) -> str:
    """Return the YAML text of a pipeline; raises TrtspecError for an unknown CI system."""
    make: System = find_extension(PACKAGE, ATTRIBUTE, system, "CI system")
    text = yaml.dump(make(pipeline), Dumper=_Dumper, sort_keys=False, width=1000, allow_unicode=True)
    return HEADER.format(system=system) + re.sub(r"^'on':", "on:", text, flags=re.MULTILINE)


def _relative(path: Path, root: Path) -> str:
    try:
        relative = path.resolve().relative_to(root.resolve()).as_posix()
        if "$" not in relative:  # CI systems expand variables and expressions, also in quotes
            return relative
        raise TrtspecError("a CI system would expand $ in the path", where=str(path), hint="rename the file")
    except ValueError:
        raise TrtspecError(
            "the recipe is outside the project", where=str(path), hint=f"run it in {path.parent}"
        ) from None


def _needs_gpu(engine: Engine) -> bool:
    """Return whether a recipe's engine runs on a GPU only; `auto` selects one that does if the recipe names a GPU."""
    if engine.backend == AUTO:
        return engine.gpu is not None
    return engine.device != "cpu" and not find_backend(engine.backend).in_process


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks and lists indented, as these files are written by hand."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)
