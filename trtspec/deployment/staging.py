# SPDX-License-Identifier: Apache-2.0
"""Staging of an artifact for a server: a copy of its model repository, and links to the rest."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from trtspec.backends.code_policy import check_code
from trtspec.backends.serving import FallbackBackend, ServingHooks
from trtspec.checkpoints.vetting import vet
from trtspec.core.errors import DeployError, DigestMismatch
from trtspec.core.files import copy_tree, private_directory
from trtspec.serving.triton.server import TritonServer
from trtspec.store.artifact_contents import BYTE_CODE
from trtspec.store.artifact_paths import MANIFEST, PLUGINS, REPOSITORY, TOKENIZER
from trtspec.store.manifest import Manifest, load_manifest, verify_files

RUNS = (REPOSITORY, PLUGINS)  # directories with executable files
INSTALLED = (Path("/opt/tritonserver/backends"),)  # as in Triton's containers


def find_fallback_backend(server: TritonServer, serving: ServingHooks) -> FallbackBackend | None:
    """Return the fallback for a backend that this tritonserver lacks, or None if it has the backend.

    Raises DeployError if no fallback exists or its requirements are not met.
    """
    needed = serving.triton_backend
    if not needed or any((place / needed).is_dir() for place in _backend_dirs(server)):
        return None
    lacks = f"this tritonserver lacks the {needed} backend"
    hint = f"deploy in a Triton container that has the {needed} backend and trtspec installed"
    try:
        if found := serving.stand_in():
            return found
    except DeployError as error:
        message = f"{lacks}, and its fallback is unavailable: {error.message}"
        raise DeployError(message, where=error.where, hint=f"{error.hint}; or {hint}") from None
    raise DeployError(lacks, where=str(server.executable), hint=hint)


def install_fallback(
    stand_in: FallbackBackend, server: TritonServer, name: str, stage: Path, repository: Path
) -> TritonServer:
    """Return the server with a backend directory below `stage` that has the Python backend and the fallback.

    Copies both there and adapts the repository. Triton rejects a Python-based backend whose library is a link out of
    the backend directory.
    """
    shutil.rmtree(stage, ignore_errors=True)
    python = next(place / "python" for place in _backend_dirs(server) if (place / "python").is_dir())
    for backend, source in (("python", python), (name, stand_in.folder)):
        copy_tree(source, stage / backend, without=BYTE_CODE)
    stand_in.adapt(repository)
    return replace(server, backends=stage)


def stage_repository(artifact: Path, serving: ServingHooks, stage: Path) -> Path:
    """Return a copy of the repository to serve, with compiled plugins copied and the rest linked.

    Code is copied first and then checked, so that it cannot change in between; byte code is not copied. The copy also
    keeps Python's caches, which are written next to the models regardless of the environment, out of the artifact.
    """
    check_repository(artifact)
    if (artifact / TOKENIZER).is_dir():
        vet(artifact / TOKENIZER)  # the served models load it without a sandbox
    if stage.exists():
        shutil.rmtree(stage)
    private_directory(stage)
    manifest = load_manifest(artifact)
    copied = _copy_checked(artifact, manifest, stage / "copied")
    serving.stage(copied / REPOSITORY, stage / REPOSITORY, str(artifact))
    if (copied / PLUGINS).is_dir():
        (copied / PLUGINS).rename(stage / PLUGINS)
    shutil.rmtree(copied)
    for name in sorted({record.path.split("/")[0] for record in manifest.files} - {*RUNS}):
        (stage / name).symlink_to(artifact / name)
    (stage / MANIFEST).symlink_to(artifact / MANIFEST)  # the served models read the metrics' method label from it
    return stage / REPOSITORY


def check_repository(artifact: Path) -> None:
    """Raise DeployError if the artifact lacks a model repository."""
    if not (artifact / REPOSITORY).is_dir():
        raise DeployError(f"the artifact has no {REPOSITORY}", where=str(artifact), hint="build it again")


def _copy_checked(artifact: Path, manifest: Manifest, out: Path) -> Path:
    """Copy executable files; raise DigestMismatch if the copy differs from the manifest or has foreign code."""
    for name in RUNS:
        if (artifact / name).is_dir():
            copy_tree(artifact / name, out / name, without=BYTE_CODE, follow_links=False)
    own = tuple(record for record in manifest.files if record.path.startswith(tuple(f"{name}/" for name in RUNS)))
    if problems := verify_files(out, manifest.model_copy(update={"files": own})):
        raise DigestMismatch("; ".join(problems[:3]), where=str(artifact), hint="build it again")
    check_code(out, manifest)
    return out


def _backend_dirs(server: TritonServer) -> tuple[Path, ...]:
    beside = server.executable.resolve().parent.parent / "backends"
    return (server.backends,) if server.backends else (beside, *INSTALLED)
