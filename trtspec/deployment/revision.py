# SPDX-License-Identifier: Apache-2.0
"""A served revision of an artifact, staged in its own directory below deployments/NAME/revisions.

    revisions/N/artifact/      hard links to the artifact's files, unaffected by later builds
    revisions/N/served/        the server's files: a copy of the models, links to the rest
    revisions/N/server.json    process specs of the server and its HTTP front
    revisions/N/*.sock         private sockets of the server and its front

The token of the server's control APIs is in a file that only this user can read; stored commands have a placeholder.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from trtspec.backends.base import find_backend
from trtspec.backends.code_policy import check_code
from trtspec.backends.serving import FallbackBackend, ServingHooks
from trtspec.checkpoints.tokenizer import vet
from trtspec.core.errors import DeployError, DigestMismatch
from trtspec.core.files import copy_tree, private_directory, private_file, read_bounded
from trtspec.core.http import UNIX
from trtspec.core.http_hosts import VARIABLE, allowed_hosts
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord, staged_record
from trtspec.deployment.process_group import ProcessSpec, write_process_specs
from trtspec.serving.front import PROXY_SOCKET, proxy_command
from trtspec.serving.triton.hardening import hardening_options
from trtspec.serving.triton.names import DISCONNECTS
from trtspec.serving.triton.names import SOCKETS as SOCKET_NAMES
from trtspec.serving.triton.python_models.interruptions import DISCONNECTS_VARIABLE
from trtspec.serving.triton.server import ServerPorts, TritonServer, find_server
from trtspec.store.artifact import Artifact, manifest_sha256, verify_files
from trtspec.store.artifact_paths import BYTE_CODE, MANIFEST, PLUGINS, REPOSITORY, TOKENIZER

TOKEN_FILE = "token"
TOKEN_BYTES = 32
TOKEN_PLACEHOLDER = "<token>"  # placeholder for the token in stored commands


def new_token(root: Path) -> str:
    """Write a new random token, 64 hex digits, into a deployment's directory and return it."""
    token = secrets.token_hex(TOKEN_BYTES)
    with private_file(root / TOKEN_FILE) as file:
        file.write(token.encode())
    return token


def read_token(root: Path) -> str:
    """Return the token in a deployment's directory; raises DeployError if it is unreadable."""
    try:
        return read_bounded(root / TOKEN_FILE, 2 * TOKEN_BYTES).decode()
    except (OSError, ValueError):
        hint = "deploy it again"
        raise DeployError("the deployment's token cannot be read", where=str(root / TOKEN_FILE), hint=hint) from None


RUNS = (REPOSITORY, PLUGINS)  # directories of an artifact with executable files
INSTALLED = (Path("/opt/tritonserver/backends"),)  # as in Triton's containers


def find_fallback_backend(server: TritonServer, serving: ServingHooks) -> FallbackBackend | None:
    """Return the fallback for a Triton backend that a tritonserver lacks, or None if it has the backend.

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
    """Copy the Python backend and a fallback backend below `stage`, and return the server that uses them.

    The repository is adapted to the fallback. Links are not sufficient: Triton rejects a Python-based backend whose
    library is a link out of the backend directory.
    """
    shutil.rmtree(stage, ignore_errors=True)
    python = next(place / "python" for place in _backend_dirs(server) if (place / "python").is_dir())
    for backend, source in (("python", python), (name, stand_in.folder)):
        copy_tree(source, stage / backend, without=BYTE_CODE)
    stand_in.adapt(repository)
    return replace(server, backends=stage)


def stage_repository(artifact: Artifact, serving: ServingHooks, stage: Path) -> Path:
    """Stage the files that a server reads below `stage`, and return the staged model repository.

    Models and compiled plugins are copied, and the rest is linked. Code is copied first and then checked, so that it
    cannot change in between; byte code is not copied. The copy also keeps Python's caches, which are written next to
    the models regardless of the environment, out of the artifact.
    """
    root, manifest = artifact.root, artifact.manifest
    if (root / TOKENIZER).is_dir():
        vet(root / TOKENIZER)  # the served models load it without a sandbox
    if stage.exists():
        shutil.rmtree(stage)
    private_directory(stage)
    copied = _copy_checked(artifact, stage / "copied")
    serving.stage(copied / REPOSITORY, stage / REPOSITORY, str(root))
    if (copied / PLUGINS).is_dir():
        (copied / PLUGINS).rename(stage / PLUGINS)
    shutil.rmtree(copied)
    for name in sorted({record.path.split("/")[0] for record in manifest.files} - {*RUNS}):
        (stage / name).symlink_to(root / name)
    (stage / MANIFEST).symlink_to(root / MANIFEST)  # the served models read the metrics' method label from it
    return stage / REPOSITORY


def _copy_checked(artifact: Artifact, out: Path) -> Path:
    """Copy an artifact's executable files to `out` and return `out`.

    Raises DigestMismatch if the copy differs from the manifest, and UntrustedCode for code that is not allowed.
    """
    root, manifest = artifact.root, artifact.manifest
    for name in RUNS:
        if (root / name).is_dir():
            copy_tree(root / name, out / name, without=BYTE_CODE, follow_links=False)
    own = tuple(record for record in manifest.files if record.path.startswith(tuple(f"{name}/" for name in RUNS)))
    if problems := verify_files(out, manifest.model_copy(update={"files": own})):
        raise DigestMismatch("; ".join(problems[:3]), where=str(root), hint="build it again")
    check_code(out, manifest)
    return out


def _backend_dirs(server: TritonServer) -> tuple[Path, ...]:
    beside = server.executable.resolve().parent.parent / "backends"
    return (server.backends,) if server.backends else (beside, *INSTALLED)


log = logging.getLogger(__name__)

SERVER, FRONT = "tritonserver", "HTTP front"
SOCKETS = "<sockets>"  # placeholder for the socket directory in a server's command
FRONT_START_S = 60.0
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}


def revision_dir(journal: DeploymentJournal, revision: int) -> Path:
    return journal.root / "revisions" / str(revision)


def server_url(journal: DeploymentJournal, revision: int) -> str:
    """Return the URL of the private socket of a revision's server, which bypasses its front."""
    return f"{UNIX}{revision_dir(journal, revision) / SOCKET_NAMES['http']}"


def stage_revision(
    journal: DeploymentJournal,
    revision: int,
    artifact: Artifact,
    ports: Mapping[str, int],
    host: str,
    drain_s: int,
    start_s: float,
    detached: bool,
) -> DeploymentRecord:
    """Check and stage an artifact for serving, and return its record; nothing is started.

    Raises DeployError if this machine cannot serve it, and DigestMismatch if its files differ from the manifest.
    """
    place, shm_prefix = revision_dir(journal, revision), f"trtspec_{secrets.token_hex(8)}_"
    server, serving = find_server(), find_backend(artifact.manifest.backend.name).serving()
    stand_in = find_fallback_backend(server, serving)
    serving.check_machine(artifact.root, artifact.manifest)
    if not (artifact.root / REPOSITORY).is_dir():
        raise DeployError(f"the artifact has no {REPOSITORY}", where=str(artifact.root), hint="build it again")
    shutil.rmtree(place, ignore_errors=True)
    private_directory(place)
    pinned = replace(artifact, root=hardlink_artifact(artifact, place / "artifact"))
    launch = serving.launch(pinned.root)
    launch = replace(launch, options=(*launch.options, *hardening_options(server, TOKEN_PLACEHOLDER)))
    repository = stage_repository(pinned, serving, place / "served")
    if stand_in:
        server = install_fallback(stand_in, server, serving.triton_backend, place / "backends", repository)
    bound = ServerPorts(ports["http"], ports["grpc"], ports["metrics"], host, SOCKETS)
    command = launch.command(server, repository, bound, shm_prefix, drain_s)
    log.info("run %s (%s), its output goes to %s", shlex.join(command), server.source, journal.log)
    environment = {**server.environment, **launch.environment, DISCONNECTS_VARIABLE: str(place / DISCONNECTS)}
    url = server_url(journal, revision)
    child = ProcessSpec(SERVER, command, url, environment, start_s, {"grpc": bound.grpc}, host)
    url, listens = f"{UNIX}{place / PROXY_SOCKET}", {"http": bound.http, "metrics": bound.metrics}
    doors, allowed = proxy_command(place, host, listens), {VARIABLE: ",".join(allowed_hosts())}
    front = ProcessSpec(FRONT, doors, url, allowed, FRONT_START_S, listens, host)
    write_process_specs(place / "server.json", [child, front])
    fields = {"host": host, "shm_prefix": shm_prefix, "detached": detached, "drain_s": drain_s, "front": True}
    return staged_record(journal.name, artifact, revision=revision, **ports, **fields)


def hardlink_artifact(artifact: Artifact, out: Path) -> Path:
    """Hard-link an artifact's files into `out` and return `out`, so that later builds do not replace them.

    On another file system, `out` is a symbolic link to the artifact and does follow later changes. Raises
    DigestMismatch if the artifact changed.
    """
    root = artifact.root.absolute()
    try:
        for name in (MANIFEST, *(record.path for record in artifact.manifest.files)):
            target = out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(root / name, target, follow_symlinks=False)
    except FileNotFoundError as error:
        raise DigestMismatch(f"{error.filename} is missing", where=str(root), hint="build it again") from None
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        shutil.rmtree(out)
        out.symlink_to(root)
    if manifest_sha256(out) != artifact.digest:
        raise DigestMismatch("the artifact was rebuilt during deployment", where=str(root), hint="deploy it again")
    return out


def remove_old_revisions(journal: DeploymentJournal, before: int, keep: set[int]) -> None:
    """Delete the staged files of revisions before `before`, except those in `keep`."""
    for place in (journal.root / "revisions").glob("*"):
        if place.name.isdigit() and int(place.name) < before and int(place.name) not in keep:
            shutil.rmtree(place, ignore_errors=True)


def next_revision(journal: DeploymentJournal) -> int:
    staged = (int(place.name) for place in (journal.root / "revisions").glob("*") if place.name.isdigit())
    noted = (int(entry.get("revision", 0)) for entry in journal.entries())
    return max([0, *staged, *noted]) + 1
