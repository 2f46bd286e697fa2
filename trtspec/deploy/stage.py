# SPDX-License-Identifier: Apache-2.0
"""What a server is given of an artifact: a copy of its repository, with the rest linked beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

from trtspec.artifacts.paths import REPOSITORY
from trtspec.backends.serving import ServingHooks
from trtspec.errors import DeployError
from trtspec.triton.server import Server

INSTALLED = (Path("/opt/tritonserver/backends"),)  # where containers have them


def check_server(server: Server, needed: str) -> None:
    """Raise DeployError where a tritonserver lacks the backend that an artifact needs beside the Python backend."""
    if needed and not any((place / needed).is_dir() for place in _backend_places(server)):
        hint = f"start it in a container of Triton's that has the {needed} backend, with trtspec installed"
        raise DeployError(f"this tritonserver has no {needed} backend", where=str(server.executable), hint=hint)


def stage_repository(artifact: Path, serving: ServingHooks, stage: Path) -> Path:
    """Return a copy of the repository to serve, with the rest of the artifact linked beside it.

    Python writes its caches next to the models, whatever the environment says: the artifact stays as it was built.
    """
    repository = artifact / REPOSITORY
    if not repository.is_dir():
        raise DeployError(f"the artifact holds no {REPOSITORY}", where=str(artifact), hint="build it again")
    if stage.exists():
        shutil.rmtree(stage)
    stage.mkdir(parents=True)
    serving.stage(repository, stage / REPOSITORY, str(artifact))
    for path in artifact.iterdir():
        if path.name != REPOSITORY:
            (stage / path.name).symlink_to(path)
    return stage / REPOSITORY


def _backend_places(server: Server) -> tuple[Path, ...]:
    beside = server.executable.resolve().parent.parent / "backends"
    return (server.backends,) if server.backends else (beside, *INSTALLED)
