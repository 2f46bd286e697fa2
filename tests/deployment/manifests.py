# SPDX-License-Identifier: Apache-2.0
"""Manifests for rendering tests: from the plan of a recipe, and from a recipe without a build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests._support.manifests import resolved
from trtspec.backends.common.steps import EmitRepository
from trtspec.core.hashing import segment_ranges
from trtspec.deployment.containers import ContainerWorkload, make_workload
from trtspec.deployment.options import DeployOptions
from trtspec.planning.pipeline import Build, device_memory
from trtspec.store.artifact import Artifact, BackendRecord, DeviceMemory, Manifest
from trtspec.store.artifact_paths import REPOSITORY
from trtspec.store.file_records import FileRecord

DIGEST = "a" * 64
IMAGE = f"registry.example/serving@sha256:{DIGEST}"
MEMORY = DeviceMemory(id="cpu", weights_bytes=1 << 30, kv_cache_bytes=1 << 28, draft_bytes=0, activation_bytes=1 << 20)


def manifest_of(build: Build) -> Manifest:
    """Return the manifest of a planned build, with the weight sizes of the plan."""
    steps = build.artifact.steps.items()
    sizes = {f"{directory}/weights": step.output_bytes for directory, step in steps if directory}
    return Manifest(
        recipe=build.recipe.without_directories(),
        steps=(),
        files=tuple(_record(path, size) for path, size in sizes.items()),
        tools={},
        gpu=dict(build.artifact.gpu),
        backend=BackendRecord(name=build.recipe.engine.backend, why="a test"),
        memory=tuple(device_memory(device) for device in build.memory()),
    )


def _record(path: str, size: int) -> FileRecord:
    return FileRecord(path=path, size=size, segments=(DIGEST,) * len(segment_ranges(size)))


def artifact_of(found: Manifest, root: Path = Path("/made")) -> Artifact:
    """Return an artifact with this manifest, without files."""
    return Artifact(root, found, DIGEST)


def workload_of(found: Manifest, name: str | None = None, **options: Any) -> ContainerWorkload:
    """Return the workload of an artifact with this manifest, for these deploy options."""
    return make_workload(artifact_of(found), DeployOptions(name=name, **options))


def repository_of(build: Build, out: Path) -> Path:
    """Return a build's model repository, written without the rest of the build."""
    step = build.artifact.steps[REPOSITORY]
    assert isinstance(step, EmitRepository)
    out.mkdir()
    step.emit(out)
    return out


def manifest(backend: str = "embedded", weights: int = 1 << 30, **sections: Any) -> Manifest:
    """Return the manifest of a recipe with the given number of weight bytes."""
    return Manifest(
        recipe=resolved(backend=backend, **sections),
        steps=(),
        files=(_record("checkpoints/target/rank0.safetensors", weights),),
        tools={},
        gpu={},
        backend=BackendRecord(name=backend, why="a test"),
        memory=(MEMORY,),
    )
