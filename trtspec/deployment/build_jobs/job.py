# SPDX-License-Identifier: Apache-2.0
"""A build job: the cells of a recipe with their needs, and the settings. Kinds of jobs render it as objects.

The needs come from the plan of each cell, so no weights are read, and neither a GPU nor the engine's builder is
required here.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import DeployError
from trtspec.core.gpus import GPUS, Gpu
from trtspec.core.image_references import IMAGE_BY_DIGEST
from trtspec.core.registry import find_extension
from trtspec.deployment.containers import check_label, parse_settings, setting
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.unbuilt import plan_workload
from trtspec.planning.cells import step_requirement
from trtspec.planning.pipeline import Build, plan_build
from trtspec.recipe.load import STDIN, LoadedRecipe, change_paths, find_recipe, load_matrix, merged_text
from trtspec.recipe.yaml_tree import plain
from trtspec.store.registries.repository import is_location

KINDS = "trtspec.deployment.build_jobs.kinds"
NAME = "{name}"  # in the address of `--push`: the recipe's name
MAX_NAME_CHARS = 47  # KubeRay's limit; the name ends with 9 characters of a digest
RECIPES, FILES = "/recipe", "/files"
RECIPE_FILE = "recipe.yaml"
MAX_RECIPE_BYTES = 900 << 10  # a ConfigMap has at most 1 MiB
SCRATCH_BYTES = 4 << 30
MAX_S = 7 * 86400
IMAGE_HINT = "--image NAME@sha256:...: the serving image, or another one with trtspec and the engine's builder"


@dataclass(frozen=True)
class BuildJobSettings:
    """Settings of a build job; their names are the keys of `--option`."""

    namespace: str = setting("default", "namespace")
    cache: str = setting("", "claim for the store and the downloads (default: the pod's own disk)")
    files: str = setting("", "CLAIM[/DIR] with the recipe's directory, if the recipe names local files")
    pull_secret: str = setting("", "Secret of the type kubernetes.io/dockerconfigjson for images and artifacts")
    env_secret: str = setting("", "Secret with environment variables, such as HF_TOKEN")
    remote: str = setting("", "team store, as TRTSPEC_REMOTE")
    gpu_product: str = setting("", "value of the node label nvidia.com/gpu.product")
    verify: str = setting("yes", "yes or no: verify the artifact before the push (not with kind ray)")
    workers: int = setting(4, "maximum number of Ray workers of a kind")
    retries: int = setting(2, "restarts after a failure")
    deadline_s: int = setting(21600, "time limit in seconds")
    keep_s: int = setting(86400, "seconds until a finished job is deleted")

    def check(self) -> None:
        """Raise DeployError for an invalid value."""
        claim, _, directory = self.files.partition("/")
        optional = {"cache": self.cache, "files": claim, "pull-secret": self.pull_secret, "env-secret": self.env_secret}
        for option, text in {
            "namespace": self.namespace,
            **{key: each for key, each in optional.items() if each},
        }.items():
            check_label(option, text)
        if ".." in directory.split("/"):
            raise DeployError(f"option files: {self.files!r} is not CLAIM[/DIR]")
        if self.remote and not is_location(self.remote):
            raise DeployError(f"option remote: {self.remote!r} is not an address", hint="as s3://BUCKET/PREFIX")
        if self.gpu_product and not re.fullmatch(r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?", self.gpu_product, re.ASCII):
            raise DeployError(f"option gpu-product: {self.gpu_product!r} is not a label value", hint="as NVIDIA-H200")
        if self.verify not in ("yes", "no"):
            raise DeployError(f"option verify: {self.verify!r} is not yes or no")
        if not 1 <= self.workers <= 1000 or self.retries > 100:
            raise DeployError("a number is out of range", hint="allowed: workers 1 to 1000, retries 0 to 100")
        if not 60 <= self.deadline_s <= MAX_S or self.keep_s > MAX_S:
            hint = f"allowed: deadline-s 60 to {MAX_S}, keep-s 0 to {MAX_S}"
            raise DeployError("a number is out of range", hint=hint)


@dataclass(frozen=True)
class BuildCell:
    """A recipe, or a cell of its matrix, and what its build needs.

    Attributes:
        name: the recipe's name; its artifact is build/NAME.
        address: the location that the artifact is pushed to.
        gpu: the GPU model that it is built for, if it is known.
        step_gpus, verify_gpus: the number of GPUs that a step needs at most, and that verification needs.
        labels: labels that a node must have for the step with the most GPUs (fleet/labels.py).
        memory_bytes: host memory, which includes `shm_bytes` of shared memory.
        disk_bytes: disk space for sources, all steps and the artifact.
    """

    name: str
    address: str
    gpu: Gpu | None
    step_gpus: int
    verify_gpus: int
    labels: Mapping[str, str]
    memory_bytes: int
    shm_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class BuildJob:
    """A recipe's cells to build in a cluster.

    `recipe_text` is the recipe for a ConfigMap, or "" if the recipe is in the claim of the setting `files`.
    """

    name: str
    image: str
    settings: BuildJobSettings
    recipe_path: str
    recipe_text: str
    is_matrix: bool
    cells: tuple[BuildCell, ...]

    def build_command(self, *names: str) -> list[str]:
        """Return the command that builds the cells of these names."""
        variants = [f"--variant={name}" for name in names] if self.is_matrix else []
        return ["trtspec", "build", self.recipe_path, *variants]


@dataclass(frozen=True)
class BuildJobKind:
    """A kind of build job: `render` returns its documents; raises DeployError for an unsuitable job."""

    render: Callable[[BuildJob], list[dict[str, Any]]]


def find_kind(name: str) -> BuildJobKind:
    """Return a kind by name; raises TrtspecError with the known names if it is unknown."""
    kind: BuildJobKind = find_extension(KINDS, "KIND", name, "kind of build job")
    return kind


def make_build_job(
    recipe: Path,
    image: str,
    push: str,
    options: Mapping[str, str],
    *,
    overrides: Sequence[str] = (),
    variants: Sequence[str] = (),
) -> tuple[BuildJob, list[Diagnostic]]:
    """Plan the cells of a recipe; return the job and the warnings.

    `push` is the address of the artifacts, with {name} for the recipe's name. Raises RecipeError for an invalid recipe
    and DeployError for invalid options.
    """
    settings = parse_settings(BuildJobSettings, options)
    settings.check()
    if recipe == STDIN:
        raise DeployError("a build job requires a recipe file, not standard input", hint="save the recipe")
    recipe = find_recipe(recipe)
    if not re.fullmatch(IMAGE_BY_DIGEST, image):
        raise DeployError(f"{image!r} is not an image with a digest", hint=IMAGE_HINT)
    loaded = load_matrix(recipe, overrides, variants)
    addresses = _addresses(push, [each.recipe.name for each in loaded])
    builds = [plan_build(each, read_at_most=0) for each in loaded]
    cells = tuple(map(_cell, loaded, builds, addresses))
    path, text = _recipe(recipe, loaded, settings, overrides)
    identity = json.dumps([path, text, image, addresses, asdict(settings)]).encode()
    name = f"{_label(recipe.stem)}-{hashlib.sha256(identity).hexdigest()[:8]}"
    is_matrix = len(load_matrix(recipe, overrides)) > 1
    diagnostics = [diagnostic for build in builds for diagnostic in build.diagnostics]
    return BuildJob(name, image, settings, path, text, is_matrix, cells), diagnostics


def _label(text: str) -> str:
    """Return a text as the beginning of a name that starts with a letter, as KubeRay requires."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    label = label if re.match("[a-z]", label) else f"build-{label}"
    return label[: MAX_NAME_CHARS - 9].rstrip("-")


def _addresses(push: str, names: Sequence[str]) -> list[str]:
    if not push.startswith("oci://") or (len(names) > 1 and NAME not in push):
        message = f"--push {push}: expected oci://HOST/NAME:TAG" + (
            ", with {name} for several cells" * (len(names) > 1)
        )
        raise DeployError(message, hint="e.g. oci://registry.example.com/team/{name}:v1")
    addresses = [push.replace(NAME, name) for name in names]
    if len({*addresses}) < len(addresses):
        raise DeployError(f"--push {push}: two cells have the same address", hint="add {name}")
    return addresses


def _cell(loaded: LoadedRecipe, build: Build, address: str) -> BuildCell:
    """Return the needs of a cell. Its memory is the memory for serving, which verification needs; steps need less."""
    engine, workload = build.recipe.engine, plan_workload(build, DeployOptions())
    if engine.build.image:
        message = f"{build.recipe.name}: engine.build.image runs docker, which pods do not have"
        raise DeployError(message, hint="--set engine.build.image=null, and an --image that contains trtllm-build")
    requirement = step_requirement(loaded, build, max(build.plan.steps, key=lambda step: step.num_devices))
    return BuildCell(
        name=build.recipe.name,
        address=address,
        gpu=GPUS.get(engine.gpu.lower()),
        step_gpus=requirement.devices,
        verify_gpus=len(workload.gpu_ids),
        labels=dict(requirement.labels),
        memory_bytes=workload.memory_bytes,
        shm_bytes=workload.shm_bytes,
        disk_bytes=SCRATCH_BYTES
        + sum(step.output_bytes for step in build.plan.steps)
        + sum(source.nbytes for source in build.context.sources.values()),
    )


def _recipe(
    path: Path, loaded: Sequence[LoadedRecipe], settings: BuildJobSettings, overrides: Sequence[str]
) -> tuple[str, str]:
    """Return the recipe's path in a pod, and its text if a ConfigMap contains it."""
    if settings.files:
        if overrides:
            raise DeployError("option files: the recipe comes from the claim, without --set", hint="omit --set")
        return f"{FILES}/{path.name}", ""
    local = _local_files(loaded)
    if local:
        message = f"the recipe names files of this machine, which pods do not have: {os.path.relpath(local[0])}"
        hint = "copy the recipe's directory to a claim: --option files=CLAIM/DIR; or name models of the hub"
        raise DeployError(message, where=str(path), hint=hint)
    text = merged_text(path, overrides)
    if len(text.encode()) > MAX_RECIPE_BYTES:
        raise DeployError("the recipe is too large for a ConfigMap", where=str(path), hint="--option files=CLAIM/DIR")
    return f"{RECIPES}/{RECIPE_FILE}", text


def _local_files(loaded: Sequence[LoadedRecipe]) -> list[str]:
    """Return the absolute paths in recipes."""
    found: list[str] = []

    def note(path: str) -> str:
        found.append(path)
        return path

    for each in loaded:
        change_paths(plain(each.tree), note)
    return found
