# SPDX-License-Identifier: Apache-2.0
"""Rendered files of an artifact that is not built yet, from the plan of its recipe.

They differ from those of the artifact in one field, the digest of the manifest. UNBUILT, which takes its place, is not
a digest, so that a container with it refuses to serve; a comment at the top of the file explains it. No weights are
read.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from trtspec.backends.common.steps import EmitRepository
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import DeployError
from trtspec.deployment.base import check_renders, write_files
from trtspec.deployment.containers import WEIGHTS, ContainerWorkload, RenderedFiles, dns_label
from trtspec.deployment.options import DeployOptions
from trtspec.planning.pipeline import Build, device_memory, plan_build
from trtspec.recipe.load import LoadedRecipe
from trtspec.store.artifact_paths import REPOSITORY

UNBUILT = "DIGEST-OF-THE-MANIFEST"
COMMENT = f"""\
# Not built yet: replace {UNBUILT} by the digest that `trtspec build` prints (manifest sha256:...), or render
# again. Memory and start-up time are for {{gib:.1f}} GiB of checkpoints and engines, as planned.
"""


def render_recipe(
    loaded: LoadedRecipe, target: str, out: Path, options: DeployOptions
) -> tuple[list[str], list[Diagnostic]]:
    """Write the files that will serve a recipe's artifact below `out`; return their paths and the recipe's warnings.

    Raise RecipeError if the recipe cannot be built, and DeployError like `base.render`.
    """
    check_renders(target, options)
    build = plan_build(loaded, read_at_most=0)
    workload = plan_workload(build, options)
    with TemporaryDirectory() as place:
        repository = emit_repository(build, Path(place) / REPOSITORY)
        paths = write_files(workload, target, repository, out, lambda files: _mark(files, workload))
    return paths, build.diagnostics


def plan_workload(build: Build, options: DeployOptions) -> ContainerWorkload:
    """Return the workload of the artifact that a build will publish; the sizes of engines are estimates."""
    steps = build.artifact.steps.items()
    return ContainerWorkload(
        name=dns_label(options.name or build.recipe.name),
        recipe=build.recipe.without_directories(),
        backend=build.recipe.engine.backend,
        memory=tuple(device_memory(device) for device in build.memory()),
        weight_bytes=sum(step.output_bytes for directory, step in steps if f"{directory}/".startswith(WEIGHTS)),
        total_bytes=sum(step.output_bytes for _, step in steps),
        digest=options.manifest or UNBUILT,
        options=options,
    )


def emit_repository(build: Build, out: Path) -> Path:
    """Write a planned build's model repository and return `out`; some targets read the engine's arguments from it."""
    step = build.artifact.steps.get(REPOSITORY)
    if not isinstance(step, EmitRepository):
        backend = build.recipe.engine.backend
        raise DeployError(f"backend {backend} writes its model repository only in a build", hint="trtspec build RECIPE")
    out.mkdir()
    step.emit(out)
    return out


def _mark(files: RenderedFiles, workload: ContainerWorkload) -> RenderedFiles:
    """Return the files with a comment at the top of those that contain UNBUILT."""
    comment = COMMENT.format(gib=workload.weight_bytes / 2**30)
    return {path: comment + text if UNBUILT in text else text for path, text in files.items()}
