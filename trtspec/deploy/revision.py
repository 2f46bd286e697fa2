# SPDX-License-Identifier: Apache-2.0
"""One artifact as a deployment serves it, in a directory of its own below deployments/NAME/revisions.

revisions/N/artifact/      the artifact, its files linked: it stays what it was, whatever is built in its place
revisions/N/served/        what the server reads: a copy of the models, links to the rest
revisions/N/server.json    how the server is started
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shlex
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.artifacts.manifest import Manifest, load_manifest
from trtspec.artifacts.paths import MANIFEST
from trtspec.backends.base import find_backend
from trtspec.deploy.address import reachable
from trtspec.deploy.children import Child, write_children
from trtspec.deploy.journal import DeploymentJournal, Record
from trtspec.deploy.stage import check_repository, put_in_place, stage_repository, stand_in_for
from trtspec.deploy.token import PLACEHOLDER
from trtspec.errors import DigestMismatch
from trtspec.files import private_directory
from trtspec.hashing import file_sha256
from trtspec.triton.client import Client
from trtspec.triton.closing import closing_options
from trtspec.triton.server import Ports, find_server

log = logging.getLogger(__name__)

SERVER = "tritonserver"
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}


@dataclass(frozen=True)
class Prepared:
    """A revision that can be started."""

    place: Path
    manifest: Manifest
    server: Child
    shm_prefix: str

    @property
    def artifact(self) -> Path:
        """Return the artifact as it was when it was deployed."""
        return self.place / "artifact"


def place_of(journal: DeploymentJournal, revision: int) -> Path:
    """Return the directory of a revision."""
    return journal.root / "revisions" / str(revision)


def prepare(
    journal: DeploymentJournal,
    revision: int,
    artifact: Path,
    ports: Ports,
    drain_s: int,
    start_s: float,
    expected: str = "",
) -> Prepared:
    """Check and stage an artifact, so that a server of it can be started; nothing runs yet.

    Raises DeployError where this machine cannot serve it, DigestMismatch where it is not what was built, or where the
    SHA-256 of its manifest is not `expected`.
    """
    place, shm_prefix = place_of(journal, revision), f"trtspec_{secrets.token_hex(8)}_"
    server, manifest = find_server(), load_manifest(artifact, expected)
    serving = find_backend(manifest.backend.name).serving()
    stand_in = stand_in_for(server, serving)
    serving.check_machine(artifact, manifest)
    check_repository(artifact)
    shutil.rmtree(place, ignore_errors=True)
    private_directory(place)
    pinned = pin(artifact.absolute(), manifest, place / "artifact")
    launch = serving.launch(pinned)
    launch = replace(launch, options=(*launch.options, *closing_options(server, PLACEHOLDER)))
    repository = stage_repository(pinned, serving, place / "served")
    if stand_in:
        server = put_in_place(stand_in, server, serving.triton_backend, place / "backends", repository)
    command = launch.command(server, repository, ports, shm_prefix, drain_s)
    log.info("run %s (%s), its output goes to %s", shlex.join(command), server.source, journal.log)
    environment = {**server.environment, **launch.environment}
    url = Client(ports.http, reachable(ports.host)).where
    child = Child(SERVER, command, url, environment, start_s)
    write_children(place / "server.json", [child])
    return Prepared(place, manifest, child, shm_prefix)


def record_of(
    journal: DeploymentJournal,
    revision: int,
    artifact: Path,
    prepared: Prepared,
    ports: Ports,
    detached: bool,
    drain_s: int,
) -> Record:
    """Return the record of a deployment of this revision, whose supervisor is not known yet."""
    manifest = prepared.manifest
    return Record(
        name=journal.name,
        state="staged",
        artifact=str(artifact.absolute()),
        pid=0,
        started=None,
        http=ports.http,
        grpc=ports.grpc,
        metrics=ports.metrics,
        shm_prefix=prepared.shm_prefix,
        detached=detached,
        manifest=file_sha256(prepared.artifact / MANIFEST),
        backend=manifest.backend.name,
        method=manifest.recipe.speculation.method,
        host=ports.host,
        drain_s=drain_s,
        revision=revision,
    )


def pin(artifact: Path, manifest: Manifest, out: Path) -> Path:
    """Return a tree of links to an artifact's files, which nobody's next build replaces.

    On another file system it is a link to the artifact itself, which is then as good as what lies there.
    """
    try:
        for name in (MANIFEST, *(record.path for record in manifest.files)):
            target = out / name
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(artifact / name, target, follow_symlinks=False)
    except FileNotFoundError as error:
        raise DigestMismatch(f"{error.filename} is missing", where=str(artifact), hint="build it again") from None
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        shutil.rmtree(out)
        out.symlink_to(artifact)
    if load_manifest(out) != manifest:
        raise DigestMismatch("it was built again meanwhile", where=str(artifact), hint="deploy it again")
    return out


def throw_away(journal: DeploymentJournal, before: int, keep: set[int]) -> None:
    """Throw away what was staged of the revisions before one, but for those to keep."""
    for place in (journal.root / "revisions").glob("*"):
        if place.name.isdigit() and int(place.name) < before and int(place.name) not in keep:
            shutil.rmtree(place, ignore_errors=True)


def next_revision(journal: DeploymentJournal) -> int:
    """Return a number that no revision of this name had."""
    staged = (int(place.name) for place in (journal.root / "revisions").glob("*") if place.name.isdigit())
    noted = (int(entry.get("revision", 0)) for entry in journal.entries())
    return max([0, *staged, *noted]) + 1
