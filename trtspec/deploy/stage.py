# SPDX-License-Identifier: Apache-2.0
"""What a server is given of an artifact: a copy of its repository, with the rest linked beside it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from trtspec.artifacts.paths import REPOSITORY
from trtspec.backends.serving import ServingHooks, StandIn
from trtspec.errors import DeployError
from trtspec.triton.server import Server

INSTALLED = (Path("/opt/tritonserver/backends"),)  # where containers have them


def stand_in_for(server: Server, serving: ServingHooks) -> StandIn | None:
    """Return what serves where a tritonserver lacks the backend that an artifact needs; None where it lacks nothing.

    Raises DeployError where nothing does, or where what does lacks something itself.
    """
    needed = serving.triton_backend
    if not needed or any((place / needed).is_dir() for place in _backend_places(server)):
        return None
    lacks = f"this tritonserver has no {needed} backend"
    hint = f"start it in a container of Triton's that has the {needed} backend, with trtspec installed"
    try:
        if found := serving.stand_in():
            return found
    except DeployError as error:
        message = f"{lacks}, and what stands in for it needs more: {error.message}"
        raise DeployError(message, where=error.where, hint=f"{error.hint}; or {hint}") from None
    raise DeployError(lacks, where=str(server.executable), hint=hint)


def put_in_place(stand_in: StandIn, server: Server, name: str, stage: Path, repository: Path) -> Server:
    """Return the server with its Python backend and a stand-in copied below `stage`; adapts the repository.

    Triton refuses a Python-based backend whose library is a link out of the backends' directory.
    """
    shutil.rmtree(stage, ignore_errors=True)
    python = next(place / "python" for place in _backend_places(server) if (place / "python").is_dir())
    for backend, source in (("python", python), (name, stand_in.folder)):
        shutil.copytree(source, stage / backend, ignore=shutil.ignore_patterns("__pycache__"))
    stand_in.adapt(repository)
    return replace(server, backends=stage)


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
