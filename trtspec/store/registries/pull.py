# SPDX-License-Identifier: Apache-2.0
"""Pull: fetch the files of an artifact that this machine lacks, verify them, and publish the artifact in one rename.

Each file is verified by the BLAKE3 segments of the artifact's manifest, which is verified by its SHA-256 in the image
manifest. The SHA-256 of a file only names its blob, so a pull does not compute it.
Fetched files are kept next to the artifact until it is complete, so that a killed pull continues:

    .NAME.partial/HEX          a complete file, called after its blob; verified again before it is used
    .NAME.partial/HEX.part     the beginning of a file
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Literal

from trtspec.core.errors import DigestMismatch, TrtspecError, describe_os_error_at, os_error_remedy
from trtspec.core.files import file_lock
from trtspec.core.hashing import PIECE_BYTES
from trtspec.core.paths import store_dir
from trtspec.store.artifact import (
    Artifact,
    Manifest,
    check_artifact_path,
    file_mismatch,
    load_artifact,
    parse_manifest,
    publish_artifact,
)
from trtspec.store.artifact_cache import remember_published
from trtspec.store.file_records import FileRecord
from trtspec.store.plan import format_bytes
from trtspec.store.registries.download import download_file, fetch_document
from trtspec.store.registries.http_client import Patience
from trtspec.store.registries.modelpack import Package, parse_image_manifest, read_package
from trtspec.store.registries.pulled import note_use, pulled_dir
from trtspec.store.registries.repository import Repository, is_location, opened_location
from trtspec.store.registries.transfer import Meter, OnProgress, buffer_bytes, transfer_all
from trtspec.store.signatures.attached import fetch_attestations
from trtspec.store.signatures.attestations import read_attestations, write_attestations
from trtspec.store.signatures.evaluate import AcceptedSignature, SignedArtifact, check_signature
from trtspec.store.signatures.policy import Policy
from trtspec.store.store import Store

LOCK_TIMEOUT_S = 600.0

Place = Callable[[Manifest, str], Path]  # the directory of an artifact with a manifest and its SHA-256


@dataclass(frozen=True)
class PullResult:
    """A pulled artifact: `digest` identifies its image manifest, `manifest` the artifact; both are "sha256:HEX".

    `fetched_bytes` is the number of bytes that this machine did not have, of `total_bytes`, `attestations` the number
    of fetched signatures and other attestations, and `signature` the one that a policy has accepted.
    """

    artifact: Path
    location: str
    digest: str
    manifest: str
    status: Literal["published", "unchanged"]
    files: int
    total_bytes: int
    fetched_bytes: int
    attestations: int = 0
    signature: AcceptedSignature | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `trtspec pull --json`."""
        return {
            "format_version": 1,
            "artifact": str(self.artifact),
            "location": self.location,
            "digest": self.digest,
            "manifest": self.manifest,
            "status": self.status,
            "files": self.files,
            "total_bytes": self.total_bytes,
            "fetched_bytes": self.fetched_bytes,
            "attestations": self.attestations,
            "signature": self.signature.as_dict() if self.signature else None,
        }


def by_name(manifest: Manifest, digest: str) -> Path:
    """Return the default directory of a pulled artifact: build/NAME, as for `trtspec build`."""
    return Path("build") / manifest.recipe.name


def by_digest(manifest: Manifest, digest: str) -> Path:
    """Return the directory in the cache for an artifact that is deployed from its location."""
    return pulled_dir() / digest


def pull_artifact(
    address: str,
    place: Place = by_name,
    *,
    expected: str = "",
    policy: Policy | None = None,
    patience: Patience | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> PullResult:
    """Pull the artifact at an address into the directory that `place` returns; files that this machine has are reused.

    `expected` is the required SHA-256 of the artifact's manifest, in hex. `on_progress` gets (what, bytes done, bytes
    total). Raises SignatureRefused, before a file is fetched, if no signature fulfils the policy, DigestMismatch if the
    location has other bytes than its documents promise, and TrtspecError if it cannot be read or does not contain an
    artifact. After an error the directory is unchanged.
    """
    with opened_location(address, patience) as (repository, opening):
        document, package, data, manifest = read_documents(repository, address, expected)
        digest = f"sha256:{hashlib.sha256(document).hexdigest()}"
        attestations = fetch_attestations(repository, digest)
        signed = SignedArtifact(package.manifest.hex, manifest.recipe.name, attestations, address)
        signature = check_signature(signed, policy) if policy else None
        out = Path(os.path.realpath(place(manifest, package.manifest.hex)))
        check_artifact_path(out)
        with explain_os_errors(out), _staging(out) as staging:
            pull = _Pull(package, manifest, repository, out, staging, opening.stopped, on_progress)
            status = pull.run(data)
        opening.known.learn([(each.digest, "") for each in pull.fetched], repository.place)
        remember_published(out, manifest)
        write_attestations(out, attestations)
        return PullResult(
            artifact=out,
            location=address,
            digest=digest,
            manifest=package.manifest.digest,
            status=status,
            files=len(package.files) + 1,
            total_bytes=sum(record.size for record in manifest.files),
            fetched_bytes=sum(record.size for record in pull.fetched),
            attestations=len(attestations.bundles) + len(attestations.documents),
            signature=signature,
        )


def read_documents(repository: Repository, address: str, expected: str) -> tuple[bytes, Package, bytes, Manifest]:
    """Return the image manifest, the files that it lists, and the artifact's manifest as bytes and parsed; verified.

    Raises like `pull_artifact`.
    """
    document = repository.manifest()
    image = parse_image_manifest(address, document)
    package = read_package(address, image)
    fetch_document(repository, address, "the model configuration", image.config)  # only verified
    data, manifest = fetch_manifest(repository, address, package, expected)
    return document, package, data, manifest


def read_manifest(address: str, patience: Patience | None = None) -> Manifest:
    """Return the manifest of the artifact at an address, without its files; raises like `pull_artifact`."""
    with opened_location(address, patience) as (repository, _):
        return read_documents(repository, address, "")[3]


def local_artifact(
    artifact: str | os.PathLike[str],
    expected: str = "",
    *,
    policy: Policy | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> tuple[Path, str]:
    """Return the directory of an artifact, and the SHA-256 that its manifest has to have from now on, or "".

    The artifact at a location is pulled into the cache. Its directory there is called after its manifest, so that a new
    artifact never changes a served one. Raises like `pull_artifact`, SignatureRefused also for a directory.
    """
    if isinstance(artifact, str) and is_location(artifact):
        pulled = pull_artifact(artifact, by_digest, expected=expected, policy=policy, on_progress=on_progress)
        note_use(pulled.artifact)
        return pulled.artifact, pulled.manifest.removeprefix("sha256:")
    if policy:
        return Path(artifact), check_directory(Path(artifact), policy, expected).manifest
    return Path(artifact), expected


def check_directory(root: Path, policy: Policy, expected: str = "") -> AcceptedSignature:
    """Return the signature that fulfils a policy, of an artifact in a directory; its files are not read.

    Raises SignatureRefused if none does, and like `load_artifact`.
    """
    artifact = load_artifact(root, expected)
    signed = SignedArtifact(artifact.digest, artifact.recipe.name, read_attestations(root))
    return check_signature(signed, policy)


def check_location(
    address: str, policy: Policy, expected: str = "", *, patience: Patience | None = None
) -> AcceptedSignature:
    """Return the signature that fulfils a policy, of the artifact at an address; its files are not fetched.

    Raises SignatureRefused if none does, and like `pull_artifact`.
    """
    with opened_location(address, patience) as (repository, _):
        document = repository.manifest()
        package = read_package(address, parse_image_manifest(address, document))
        _, manifest = fetch_manifest(repository, address, package, expected)
        digest = f"sha256:{hashlib.sha256(document).hexdigest()}"
        attestations = fetch_attestations(repository, digest)
        return check_signature(
            SignedArtifact(package.manifest.hex, manifest.recipe.name, attestations, address), policy
        )


def fetch_manifest(repository: Repository, where: str, package: Package, expected: str = "") -> tuple[bytes, Manifest]:
    """Return the artifact's own manifest, as bytes and parsed, which lists the same files as the image manifest.

    Raises DigestMismatch if it does not, or if its SHA-256 is not `expected`, unless that is empty.
    """
    data = fetch_document(repository, where, "manifest.json", package.manifest)
    if expected and package.manifest.hex != expected:
        message = f"this is not the requested artifact: its manifest is {package.manifest.digest}, expected sha256:"
        raise DigestMismatch(f"{message}{expected}", where=where)
    manifest = parse_manifest(where, data)
    check_same_files(where, package, manifest)
    return data, manifest


def check_same_files(where: str, package: Package, manifest: Manifest) -> None:
    """Raise DigestMismatch unless an image manifest and an artifact's manifest list the same paths and sizes."""
    listed = {record.path: record.size for record in manifest.files}
    layers = {path: layer.size for path, layer in package.files.items()}
    differing = sorted(path for path in {*listed, *layers} if listed.get(path) != layers.get(path))
    if differing:
        message = f"the image manifest and the artifact's manifest differ in {differing[0]!a}"
        raise DigestMismatch(message, where=where, hint="push the artifact again")


class _Pull:
    """One pull: reuse, fetch and verify all files, and publish the artifact; `fetched` are the fetched contents."""

    def __init__(
        self,
        package: Package,
        manifest: Manifest,
        repository: Repository,
        out: Path,
        staging: Path,
        stopped: Event,
        on_progress: OnProgress,
    ) -> None:
        self.fetched: list[FileRecord] = []
        self._package, self._manifest, self._repository = package, manifest, repository
        self._out, self._staging, self._stopped, self._buffer_bytes = out, staging, stopped, PIECE_BYTES
        self._meter = Meter("pull", sum(record.size for record in manifest.files), stopped, on_progress)

    def run(self, document: bytes) -> Literal["published", "unchanged"]:
        distinct = list({record.digest: record for record in self._manifest.files}.values())
        with ExitStack() as stack:
            present, keys = self._find_present(distinct, stack)
            missing = sorted((each for each in distinct if each.digest not in present), key=lambda each: -each.size)
            self._meter(sum(record.size for record in self._manifest.files) - sum(each.size for each in missing))
            self._check_space(missing)
            self._buffer_bytes = buffer_bytes(each.size for each in missing)
            fetched = transfer_all(self._fetch, missing, self._stopped, self._repository)
            self.fetched = missing
            paths = present | {record.digest: path for record, path in zip(missing, fetched, strict=True)}
            files = {record.path: paths[record.digest] for record in self._manifest.files}
            status = publish_artifact(self._out, files, self._manifest, document)
            shutil.rmtree(self._staging)
            for key, store in keys.items():
                store.restamp(key)
        return status

    def _find_present(self, records: list[FileRecord], stack: ExitStack) -> tuple[dict[str, Path], dict[str, Store]]:
        """Return verified files of this machine by BLAKE3 digest, and the store entries that they are part of."""
        found = {each.digest: path for each in records if (path := self._staged(each))}
        with suppress(TrtspecError):
            found |= _list_files(load_artifact(self._out), [each for each in records if each.digest not in found])
        rest = {each.digest for each in records if each.digest not in found and each.size}
        if not rest or not store_dir().is_dir():
            return found, {}
        store, keys = Store(store_dir()), dict[str, Store]()
        for entry in store.entries():
            here = {file.digest: entry.files_dir / file.path for file in entry.files if file.digest in rest}
            if here:
                stack.enter_context(store.uses.holding([entry.key]))
                if store.get(entry.key).entry:
                    found |= here
                    rest -= {*here}
                    keys[entry.key] = store
        return found, keys

    def _staged(self, record: FileRecord) -> Path | None:
        path = self._staging / self._package.files[record.path].hex
        if path.is_file() and file_mismatch(self._staging, record.model_copy(update={"path": path.name})) is None:
            return path
        path.unlink(missing_ok=True)
        return None

    def _check_space(self, missing: list[FileRecord]) -> None:
        parts = [self._part(record) for record in missing]
        needed = sum(each.size for each in missing) - sum(part.stat().st_size for part in parts if part.is_file())
        if (free := shutil.disk_usage(self._staging).free) < needed:
            message = f"{format_bytes(needed)} are missing, and {format_bytes(free)} are free"
            raise TrtspecError(message, where=str(self._out), hint="free disk space, or choose another directory")

    def _part(self, record: FileRecord) -> Path:
        return self._staging / f"{self._package.files[record.path].hex}.part"

    def _fetch(self, record: FileRecord) -> Path:
        part = self._part(record)
        download_file(self._repository, self._package.files[record.path], record, part, self._meter, self._buffer_bytes)
        os.rename(part, part.with_suffix(""))
        return part.with_suffix("")


def _list_files(artifact: Artifact, records: list[FileRecord]) -> Mapping[str, Path]:
    """Return the files of an artifact that have the contents of records, verified, by digest."""
    own = {record.digest: record for record in artifact.manifest.files}
    return {
        each.digest: artifact.root / own[each.digest].path
        for each in records
        if each.digest in own and file_mismatch(artifact.root.resolve(), own[each.digest]) is None
    }


@contextmanager
def _staging(out: Path) -> Iterator[Path]:
    """Provide the directory of fetched files, which remains after an error; one process uses it at a time."""
    from filelock import Timeout

    out.parent.mkdir(parents=True, exist_ok=True)
    lock = file_lock(out.with_name(f".{out.name}.pull.lock"), timeout_s=LOCK_TIMEOUT_S)
    try:
        lock.acquire()
    except Timeout:
        message = "another process pulls an artifact into this directory"
        raise TrtspecError(message, where=str(out), hint="wait until it has ended") from None
    try:
        staging = out.with_name(f".{out.name}.partial")
        staging.mkdir(mode=0o700, exist_ok=True)
        yield staging
    finally:
        lock.release()


@contextmanager
def explain_os_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if (refused := describe_os_error_at(error, str(out))) is None:
            raise
        hint = "free disk space or fix permissions, then pull again; fetched files are kept"
        raise TrtspecError(refused, where=str(out), hint=os_error_remedy(error) or hint) from error
