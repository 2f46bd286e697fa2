# SPDX-License-Identifier: Apache-2.0
"""Push: upload the files of an artifact that a location lacks, then its manifest, which makes it visible at once.

A file that this machine has uploaded before, or that has the size of a file in the repository, is looked up by its
SHA-256 first. Any other file is uploaded, hashed and compared with the artifact's manifest in one reading.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from trtspec.core.errors import DigestMismatch, TrtspecError, describe_os_error_at, os_error_remedy
from trtspec.core.files import read_bounded
from trtspec.store.artifact import MAX_BYTES, Artifact, load_artifact
from trtspec.store.artifact_paths import MANIFEST
from trtspec.store.registries.blobs import BlobIndex
from trtspec.store.registries.http_client import Patience
from trtspec.store.registries.modelpack import (
    IMAGE_MANIFEST,
    TITLE,
    Descriptor,
    parse_image_manifest,
    render_config,
    render_layer,
    render_manifest,
)
from trtspec.store.registries.repository import Repository, opened_location
from trtspec.store.registries.transfer import Meter, OnProgress
from trtspec.store.registries.upload import Uploads, checked_sha256
from trtspec.store.signatures.attached import attach_attestations
from trtspec.store.signatures.attestations import read_attestations

MAX_HINTS = 8  # tags whose manifests are read for the sizes of present files


@dataclass(frozen=True)
class PushResult:
    """A pushed artifact: `digest` identifies its image manifest, `manifest` the artifact; both are "sha256:HEX".

    `sent_bytes` is the number of bytes that the location did not have, of `total_bytes`, and `attestations` the number
    of attached signatures and other attestations.
    """

    location: str
    digest: str
    manifest: str
    files: int
    total_bytes: int
    sent_bytes: int
    attestations: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `trtspec push --json`."""
        return {
            "format_version": 1,
            "location": self.location,
            "digest": self.digest,
            "manifest": self.manifest,
            "files": self.files,
            "total_bytes": self.total_bytes,
            "sent_bytes": self.sent_bytes,
            "attestations": self.attestations,
        }


def push_artifact(
    root: Path,
    address: str,
    *,
    expected: str = "",
    patience: Patience | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> PushResult:
    """Push the artifact in a directory to an address; what the location has is not sent again.

    `expected` is the required SHA-256 of the artifact's manifest, in hex. `on_progress` gets (what, bytes done, bytes
    total). Raises DigestMismatch if a file differs from the manifest, and TrtspecError if the location does not accept
    the artifact. After an error nothing is visible at the address that was not visible before.
    """
    if re.match("(oci|s3):/|(file|hf):", str(root)) and not root.exists():
        raise TrtspecError("push takes a directory", where=str(root), hint="pull the artifact first")
    artifact = load_artifact(root, expected)
    with opened_location(address, patience, for_writing=True) as (repository, opening):
        try:
            return _Push(artifact, address, repository, opening.known, opening.stopped, on_progress).run()
        except OSError as error:
            if (refused := describe_os_error_at(error, address)) is None:
                raise
            hint = "free disk space or fix permissions, then push again"
            raise TrtspecError(refused, where=address, hint=os_error_remedy(error) or hint) from error


class _Push:
    """One push: the layers of all files, then the configuration and the image manifest."""

    def __init__(
        self,
        artifact: Artifact,
        address: str,
        repository: Repository,
        known: BlobIndex,
        stopped: Event,
        on_progress: OnProgress,
    ) -> None:
        self._artifact, self._address, self._repository, self._known = artifact, address, repository, known
        self._stopped = stopped
        self._total = sum(record.size for record in artifact.manifest.files)
        meter = Meter("push", self._total, stopped, on_progress)
        self._uploads = Uploads(repository, known, meter)

    def run(self) -> PushResult:
        records, root = self._artifact.manifest.files, self._artifact.root
        if any(map(self._uploads.needs_upload, records)):
            self._uploads.sizes = present_sizes(self._repository)
        sha256 = self._uploads.bring_all({root / record.path: record for record in records}, self._stopped)
        return self._publish(render_image(self._artifact, sha256))

    def _publish(self, image: Image) -> PushResult:
        for data in (image.document, image.config):
            self._repository.upload_bytes(data)
        # before the tag, so that the artifact is never visible without its signatures
        attached = attach_attestations(self._repository, image.descriptor, read_attestations(self._artifact.root))
        self._repository.publish(image.manifest)
        return PushResult(
            location=self._address,
            digest=image.descriptor.digest,
            manifest=f"sha256:{self._artifact.digest}",
            files=len(self._artifact.manifest.files) + 1,
            total_bytes=self._total,
            sent_bytes=self._uploads.sent_bytes,
            attestations=attached,
        )


@dataclass(frozen=True)
class Image:
    """The documents of an artifact in a registry: its own manifest, the model configuration and the image manifest."""

    document: bytes
    config: bytes
    manifest: bytes

    @property
    def descriptor(self) -> Descriptor:
        """Return the descriptor of the image manifest."""
        digest = f"sha256:{hashlib.sha256(self.manifest).hexdigest()}"
        return Descriptor(mediaType=IMAGE_MANIFEST, digest=digest, size=len(self.manifest))


def render_image(artifact: Artifact, sha256: Mapping[str, str]) -> Image:
    """Return the documents of an artifact, from the SHA-256 of its files by their BLAKE3 digest, both in hex.

    Raises DigestMismatch if the manifest on disk is not the loaded one any more.
    """
    document = read_bounded(artifact.root / MANIFEST, MAX_BYTES, follow=False)
    if (digest := hashlib.sha256(document).hexdigest()) != artifact.digest:
        raise DigestMismatch("the manifest was replaced meanwhile", where=str(artifact.root))
    files = [render_layer(record.path, sha256[record.digest], record.size) for record in artifact.manifest.files]
    layers = [render_layer(MANIFEST, digest, len(document)), *files]
    config = render_config(artifact.recipe, [layer["digest"] for layer in layers])
    return Image(document, config, render_manifest(config, layers, {TITLE: artifact.recipe.name}))


def predict_image(artifact: Artifact, on_progress: OnProgress = lambda what, done, total: None) -> Image:
    """Return the documents that a push of an artifact stores; only files that this machine does not know are read.

    `on_progress` gets (what, bytes done, bytes total). Raises DigestMismatch if a file differs from the manifest.
    """
    known, records = BlobIndex(), {record.digest: record for record in artifact.manifest.files}
    found = {digest: sha256 for digest in records if (sha256 := known.sha256(digest))}
    missing = [record for digest, record in records.items() if digest not in found]
    done, total = 0, sum(record.size for record in missing)
    for record in missing:
        found[record.digest] = checked_sha256(artifact.root / record.path, record)
        done += record.size
        on_progress("hash", done, total)
    known.learn((record.digest, found[record.digest]) for record in missing)
    return render_image(artifact, found)


def present_sizes(repository: Repository) -> set[int]:
    """Return the sizes of files in the latest artifacts of a repository, which only decide what is looked up first."""
    sizes: set[int] = set()
    with suppress(TrtspecError):
        tags = repository.tags()
        first = [repository.reference] if repository.reference in tags else []
        for tag in [*first, *(tag for tag in reversed(tags) if tag not in first)][:MAX_HINTS]:
            with suppress(TrtspecError):
                manifest = parse_image_manifest(tag, repository.manifest(tag))
                sizes |= {layer.size for layer in manifest.layers}
    return sizes
