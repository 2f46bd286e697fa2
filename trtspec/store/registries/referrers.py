# SPDX-License-Identifier: Apache-2.0
"""Referrers: documents that are attached to an image manifest, such as its signatures.

A referrer is an image manifest with one layer, the document, and with the `subject` that it belongs to. Registries list
them by subject. For locations that do not, an index of them is stored under the tag sha256-HEX of the subject. Sources:
opencontainers/distribution-spec:spec.md@v1.1.1 (listing referrers, referrers tag schema) and
opencontainers/image-spec:manifest.md@v1.1.1 (empty descriptor). Documents are read as untrusted input.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol, runtime_checkable

from pydantic import Field, ValidationError

from trtspec.core.errors import TrtspecError
from trtspec.store.registries.modelpack import IMAGE_MANIFEST, Descriptor, dump
from trtspec.store.registries.repository import Repository

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
EMPTY_TYPE, EMPTY = "application/vnd.oci.empty.v1+json", b"{}"
MAX_REFERRERS = 256
FALLBACK_TAG = r"sha256-[0-9a-f]{64}"
MAX_CONFLICTS = 8
SETTLE_S = 0.2


class Referrer(Descriptor):
    """The descriptor of a referrer's image manifest; unlike the other keys, `artifactType` may be missing."""

    artifactType: Annotated[str, Field(max_length=255)] = ""  # noqa: N815


@runtime_checkable
class KeepsReferrers(Protocol):
    """The additional methods of a repository that keeps referrers."""

    def attach(self, manifest: bytes, subject: str) -> None:
        """Store a referrer's image manifest, whose blobs are present; `subject` is the digest that it belongs to."""

    def referrers(self, digest: str) -> list[Referrer]:
        """Return the referrers of an image manifest, at most MAX_REFERRERS; it need not be present."""


def attach_document(
    repository: Repository,
    subject: Descriptor,
    artifact_type: str,
    data: bytes,
    annotations: Mapping[str, str] | None = None,
) -> str:
    """Attach a document to an image manifest; return the digest of the referrer's manifest.

    Equal documents have equal referrers, so attaching twice changes nothing. Raises TrtspecError if the location keeps
    no referrers.
    """
    if not isinstance(repository, KeepsReferrers):
        raise TrtspecError("this kind of location does not keep signatures", where=repository.label)
    manifest = render_referrer(subject, artifact_type, data, annotations or {})
    repository.upload_bytes(data)
    repository.upload_bytes(EMPTY)
    repository.attach(manifest, subject.digest)
    return f"sha256:{hashlib.sha256(manifest).hexdigest()}"


def list_referrers(repository: Repository, digest: str) -> list[Referrer]:
    """Return the referrers of an image manifest, or an empty list if the location does not keep them."""
    return repository.referrers(digest) if isinstance(repository, KeepsReferrers) else []


def render_referrer(subject: Descriptor, artifact_type: str, data: bytes, annotations: Mapping[str, str]) -> bytes:
    """Return the image manifest of a referrer."""
    document = {
        "schemaVersion": 2,
        "mediaType": IMAGE_MANIFEST,
        "artifactType": artifact_type,
        "config": describe(EMPTY_TYPE, EMPTY),
        "layers": [describe(artifact_type, data)],
        "subject": {"mediaType": subject.mediaType, "digest": subject.digest, "size": subject.size},
        "annotations": dict(annotations),
    }
    return dump(document)


def describe(media_type: str, data: bytes) -> dict[str, Any]:
    """Return the descriptor of a document."""
    return {"mediaType": media_type, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}


def describe_referrer(manifest: bytes) -> dict[str, Any]:
    """Return the descriptor of a referrer's manifest for an index, with its type and annotations."""
    document = json.loads(manifest)
    found = {**describe(IMAGE_MANIFEST, manifest), "artifactType": document["artifactType"]}
    return {**found, "annotations": document["annotations"]} if document["annotations"] else found


def fallback_tag(digest: str) -> str:
    """Return the tag under which an index of the referrers of an image manifest is stored."""
    return digest.replace(":", "-")


def is_fallback_tag(tag: str) -> bool:
    """Return whether a tag is the index of an image manifest's referrers, not an artifact."""
    return re.fullmatch(FALLBACK_TAG, tag) is not None


def parse_index(where: str, data: bytes) -> list[Referrer]:
    """Return the referrers in an image index; raises TrtspecError for any other document."""
    return read_referrers(_entries(where, data))


def _entries(where: str, data: bytes) -> list[dict[str, Any]]:
    try:
        return [entry for entry in json.loads(data)["manifests"] if isinstance(entry, dict)]
    except (ValueError, RecursionError, LookupError, TypeError):
        raise TrtspecError("the list of referrers is not valid", where=where) from None


def read_referrers(entries: Iterable[Mapping[str, Any]]) -> list[Referrer]:
    """Return the valid descriptors of image manifests, each once, at most MAX_REFERRERS."""
    found: dict[str, Referrer] = {}
    for entry in entries:
        try:
            referrer = Referrer.model_validate(entry)
        except ValidationError:
            continue
        if referrer.mediaType == IMAGE_MANIFEST and len(found) < MAX_REFERRERS:
            found.setdefault(referrer.digest, referrer)
    return list(found.values())


def add_to_index(where: str, manifest: bytes, read: Callable[[], bytes | None], write: Callable[[bytes], None]) -> None:
    """Add a referrer to the index of its subject, which `read` returns, or None, and `write` replaces.

    Registries replace an index unconditionally, so another client that has read the old one can undo this. The index is
    therefore read again after SETTLE_S, which is longer than such a client needs. Other entries are kept as they are.
    """
    entry = describe_referrer(manifest)
    for attempt in range(MAX_CONFLICTS):
        before = read()
        entries = _entries(where, before) if before is not None else []
        if any(each.get("digest") == entry["digest"] for each in entries):
            return
        write(render_index([*entries, entry]))
        time.sleep(SETTLE_S * (1 + attempt))
    if entry["digest"] not in [each.get("digest") for each in _entries(where, read() or b"")]:
        raise TrtspecError("other clients replaced the list of referrers again and again", where=where)


def render_index(entries: Sequence[Mapping[str, Any]]) -> bytes:
    """Return an image index of referrers."""
    return dump({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": list(entries)})
