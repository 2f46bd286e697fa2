# SPDX-License-Identifier: Apache-2.0
"""Manifests for rendering tests, from a recipe without a build."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests._support.manifests import resolved
from trtspec.core.hashing import segment_ranges
from trtspec.deployment.containers import ContainerWorkload, make_workload
from trtspec.deployment.options import DeployOptions
from trtspec.store.artifact import Artifact, BackendRecord, DeviceMemory, Manifest
from trtspec.store.file_records import FileRecord

DIGEST = "a" * 64
IMAGE = f"registry.example/serving@sha256:{DIGEST}"
MEMORY = DeviceMemory(id="cpu", weights_bytes=1 << 30, kv_cache_bytes=1 << 28, draft_bytes=0, activation_bytes=1 << 20)


def _record(path: str, size: int) -> FileRecord:
    return FileRecord(path=path, size=size, segments=(DIGEST,) * len(segment_ranges(size)))


def artifact_of(found: Manifest, root: Path = Path("/made")) -> Artifact:
    """Return an artifact with this manifest, without files."""
    return Artifact(root, found, DIGEST)


def workload_of(found: Manifest, name: str | None = None, **options: Any) -> ContainerWorkload:
    """Return the workload of an artifact with this manifest, for these deploy options."""
    return make_workload(artifact_of(found), DeployOptions(name=name, **options))


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
