# SPDX-License-Identifier: Apache-2.0
"""Describe: an artifact in a registry without its weights, for servers that fetch it themselves.

The manifest and the small files of the model repository are fetched and verified. They are enough to render the files
of a cluster, whose machines fetch the rest by the digest found here.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.core.files import replace_file
from trtspec.core.hashing import bytes_segments
from trtspec.core.paths import cache_dir
from trtspec.store.artifact import Artifact, Manifest
from trtspec.store.artifact_paths import MANIFEST, REPOSITORY
from trtspec.store.registries.download import fetch_document
from trtspec.store.registries.http_client import Patience
from trtspec.store.registries.modelpack import Package
from trtspec.store.registries.pull import explain_os_errors, read_documents
from trtspec.store.registries.repository import Repository, opened_location

SCHEME = "oci:"
MAX_FILE_BYTES, MAX_FILES = 1 << 20, 500  # of a model repository; its configuration is smaller


@dataclass(frozen=True)
class RegistrySource:
    """The place of an artifact in a registry: `reference` is HOST/NAME@sha256:HEX, `tag` the tag that it had, or ""."""

    reference: str
    tag: str = ""

    @property
    def address(self) -> str:
        """Return the address for `trtspec pull`."""
        return f"oci://{self.reference}"


def describe_artifact(
    address: str, *, expected: str = "", patience: Patience | None = None
) -> tuple[Artifact, RegistrySource]:
    """Fetch the description of the artifact at oci://HOST/NAME:TAG; return it and the artifact's place by digest.

    `expected` is the required SHA-256 of the artifact's manifest, in hex. The description is a directory of the cache
    with manifest.json and the model repository, called after the manifest's SHA-256. Raises TrtspecError for a location
    that other machines cannot access, and like `pull_artifact`.
    """
    if not address.startswith(SCHEME):
        message = f"{address}: the machines of a cluster can only pull from a registry"
        raise TrtspecError(message, hint="push the artifact to oci://HOST/NAME:TAG")
    with opened_location(address, patience) as (repository, _):
        document, package, data, manifest = read_documents(repository, address, expected)
        root = cache_dir() / "described" / package.manifest.hex
        with explain_os_errors(root):
            _write_description(root, repository, package, manifest, data)
        digest = f"sha256:{hashlib.sha256(document).hexdigest()}"
        tag = "" if repository.reference.startswith("sha256:") else repository.reference
        source = RegistrySource(f"{repository.place}@{digest}", tag)
        return Artifact(root, manifest, package.manifest.hex), source


def _write_description(
    root: Path, repository: Repository, package: Package, manifest: Manifest, document: bytes
) -> None:
    """Write the files of a model repository, and manifest.json last; raises DigestMismatch for other files."""
    small = [each for each in manifest.files if each.path.startswith(f"{REPOSITORY}/") and each.size <= MAX_FILE_BYTES]
    for record in small[:MAX_FILES]:
        data = fetch_document(repository, repository.label, record.path, package.files[record.path])
        if bytes_segments(data) != record.segments:
            raise DigestMismatch(f"{record.path!a} differs from the artifact's manifest", where=repository.label)
        (root / record.path).parent.mkdir(parents=True, exist_ok=True)
        replace_file(root / record.path, data)
    root.mkdir(parents=True, exist_ok=True)
    replace_file(root / MANIFEST, document)
