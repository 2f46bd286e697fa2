# SPDX-License-Identifier: Apache-2.0
"""List the artifacts of a location, from the image manifests of its tags."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.store.registries.http_client import Patience
from trtspec.store.registries.modelpack import TITLE, parse_image_manifest, read_package
from trtspec.store.registries.referrers import list_referrers
from trtspec.store.registries.repository import Repository, opened_location
from trtspec.store.registries.transfer import OnProgress, transfer_all
from trtspec.store.signatures.attached import is_signature

MAX_SHOWN = 200


@dataclass(frozen=True)
class TaggedArtifact:
    """A tag: the recipe's name, the artifact's size and the digests ("sha256:HEX") of its two manifests.

    `signatures` is the number of attached signatures, which are not verified here.
    If a tag is not an artifact of trtspec, `problem` is the reason and the other values are empty.
    """

    tag: str
    name: str = ""
    bytes: int = 0
    digest: str = ""
    manifest: str = ""
    signatures: int = 0
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def list_artifacts(
    address: str,
    *,
    patience: Patience | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> list[TaggedArtifact]:
    """Return the artifacts of a location, sorted by tag: at most MAX_SHOWN; the tag in the address is ignored.

    `on_progress` gets (what, tags done, tags total). Raises TrtspecError if the location cannot be read.
    """
    with opened_location(address, patience) as (repository, opening):
        tags = repository.tags()[:MAX_SHOWN]
        on_progress("list", 0, len(tags))
        found = transfer_all(lambda tag: _describe(repository, tag), tags, opening.stopped, repository)
        on_progress("list", len(tags), len(tags))
        return found


def _describe(repository: Repository, tag: str) -> TaggedArtifact:
    try:
        data = repository.manifest(tag)
        manifest = parse_image_manifest(tag, data)
        package = read_package(tag, manifest)
    except TrtspecError as error:
        return TaggedArtifact(tag, problem=error.message)
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    name = manifest.annotations.get(TITLE, "")[:100]
    signatures = sum(map(is_signature, list_referrers(repository, digest)))
    return TaggedArtifact(tag, name, package.total_bytes, digest, package.manifest.digest, signatures)
