# SPDX-License-Identifier: Apache-2.0
"""Attestations that are attached to the image manifest of an artifact, as OCI referrers; read as untrusted input."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.core.errors import TrtspecError
from trtspec.store.registries.modelpack import Descriptor, check_digest, parse_image_manifest
from trtspec.store.registries.referrers import KeepsReferrers, Referrer, attach_document, list_referrers
from trtspec.store.registries.repository import Repository
from trtspec.store.signatures.attestations import MAX_BUNDLES, Attestations, predicate_type
from trtspec.store.signatures.envelope import BOM, BUNDLE_TYPE, MAX_BYTES, PAYLOAD_TYPE, PROVENANCE, SIGNATURE

DOCUMENT_TYPES = {PROVENANCE: PAYLOAD_TYPE, BOM: "application/vnd.cyclonedx+json"}  # unsigned ones by predicate type
CONTENT, PREDICATE_TYPE = "dev.sigstore.bundle.content", "dev.sigstore.bundle.predicateType"


def attach_attestations(repository: Repository, subject: Descriptor, attestations: Attestations) -> int:
    """Attach attestations to an image manifest, as cosign does; return their number.

    Attached ones are not attached again. A location that does not keep referrers is left unchanged. Source of the
    annotations: sigstore/cosign:pkg/oci/remote/write.go@v3.1.2. The time of creation is left out, so that equal
    attestations are one referrer.
    """
    if not isinstance(repository, KeepsReferrers):
        return 0
    for data in attestations.bundles.values():
        attach_bundle(repository, subject, data)
    for kind, document in attestations.documents.items():
        attach_document(repository, subject, DOCUMENT_TYPES[kind], document)
    return len(attestations.bundles) + len(attestations.documents)


def attach_bundle(repository: Repository, subject: Descriptor, bundle: bytes) -> str:
    """Attach a signed statement to an image manifest; return the digest of the referrer's manifest."""
    annotations = {CONTENT: "dsse-envelope", PREDICATE_TYPE: predicate_type(bundle)}
    return attach_document(repository, subject, BUNDLE_TYPE, bundle, annotations)


def fetch_attestations(repository: Repository, digest: str) -> Attestations:
    """Fetch the attestations of the image manifest with a digest; referrers of other types are ignored."""
    bundles: dict[str, bytes] = {}
    documents: dict[str, bytes] = {}
    problems: list[str] = []
    kinds = {media_type: kind for kind, media_type in DOCUMENT_TYPES.items()}
    try:
        for referrer in list_referrers(repository, digest):
            where, kind = f"{repository.label}@{referrer.digest}", kinds.get(referrer.artifactType)
            if is_bundle(referrer) and len(bundles) < MAX_BUNDLES:
                bundles[where] = _fetch(repository, referrer, where)
            elif kind and kind not in documents:
                documents[kind] = _fetch(repository, referrer, where)
    except TrtspecError as error:
        problems.append(f"{error.where}: {error.message}" if error.where else error.message)
    return Attestations(bundles, documents, tuple(problems))


def is_bundle(referrer: Referrer) -> bool:
    """Return whether a referrer is a signed statement."""
    return referrer.artifactType == BUNDLE_TYPE


def is_signature(referrer: Referrer) -> bool:
    """Return whether a referrer is a signature, by its unverified annotations; other signed statements are not."""
    return is_bundle(referrer) and referrer.annotations.get(PREDICATE_TYPE, SIGNATURE) == SIGNATURE


def _fetch(repository: Repository, referrer: Referrer, where: str) -> bytes:
    manifest = parse_image_manifest(where, repository.manifest(referrer.digest), referrer.digest)
    if len(manifest.layers) != 1 or manifest.layers[0].size > MAX_BYTES:
        raise TrtspecError(f"expected one document of at most {MAX_BYTES:,} bytes", where=where)
    data = b"".join(_limited(repository.pieces(manifest.layers[0], 0), manifest.layers[0].size))
    check_digest(where, "an attestation", data, manifest.layers[0].digest)
    return data


def _limited(pieces: Iterator[bytes | memoryview], nbytes: int) -> Iterator[bytes]:
    for piece in pieces:
        yield bytes(piece[:nbytes])  # the next piece may have the same buffer
        nbytes -= len(piece)
        if nbytes < 0:
            return
