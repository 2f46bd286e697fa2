# SPDX-License-Identifier: Apache-2.0
"""The attestations of an artifact: in its directory `attestations/`, or attached to its image manifest.

    attestations/provenance.json        SLSA provenance: an in-toto statement, unsigned
    attestations/bom.cdx.json           CycloneDX bill of materials, unsigned
    attestations/KIND-HEX.sigstore.json a signed statement; HEX begins the SHA-256 of the file

They are not part of the artifact's manifest, because they are made later and contain times. They are read as untrusted
input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.core.errors import SignatureRefused, TrtspecError
from trtspec.core.files import describe_read_error, read_bounded, replace_file
from trtspec.store.artifact_paths import ATTESTATIONS
from trtspec.store.signatures.envelope import (
    BOM,
    BUNDLE_TYPE,
    MAX_BYTES,
    PAYLOAD_TYPE,
    PROVENANCE,
    SIGNATURE,
    parse_bundle,
    parse_statement,
)

if TYPE_CHECKING:
    from trtspec.store.registries.modelpack import Descriptor
    from trtspec.store.registries.referrers import Referrer
    from trtspec.store.registries.repository import Repository

BUNDLE_SUFFIX = ".sigstore.json"
DOCUMENTS = {PROVENANCE: "provenance.json", BOM: "bom.cdx.json"}  # unsigned documents by predicate type
DOCUMENT_TYPES = {PROVENANCE: PAYLOAD_TYPE, BOM: "application/vnd.cyclonedx+json"}  # their media types
KINDS = {SIGNATURE: "signature", PROVENANCE: "provenance", BOM: "bom"}
MAX_BUNDLES = 64
CONTENT, PREDICATE_TYPE = "dev.sigstore.bundle.content", "dev.sigstore.bundle.predicateType"


@dataclass(frozen=True)
class Attestations:
    """Signed bundles by their place, for messages, and unsigned documents by predicate type.

    `problems` describes the attestations that a location lists but could not be fetched.
    """

    bundles: Mapping[str, bytes] = field(default_factory=dict)
    documents: Mapping[str, bytes] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


def read_attestations(root: Path) -> Attestations:
    """Read the attestations in an artifact's directory; raises TrtspecError for links and files that are too large."""
    folder = _folder(root)
    bundles = {str(path): _read(path) for path in sorted(folder.glob(f"*{BUNDLE_SUFFIX}"))[:MAX_BUNDLES]}
    paths = {kind: folder / name for kind, name in DOCUMENTS.items() if (folder / name).exists()}
    return Attestations(bundles, {kind: _read(path) for kind, path in paths.items()})


def write_attestations(root: Path, attestations: Attestations) -> None:
    """Write attestations into an artifact's directory, each file at once; others that are there remain.

    Raises TrtspecError if their directory is a link.
    """
    files = {bundle_name(data): data for data in attestations.bundles.values()}
    files |= {DOCUMENTS[kind]: data for kind, data in attestations.documents.items()}
    folder = _folder(root)
    if files:
        folder.mkdir(exist_ok=True)
    for name, data in files.items():
        replace_file(folder / name, data)


def _folder(root: Path) -> Path:
    folder = root / ATTESTATIONS
    if folder.is_symlink():
        raise TrtspecError("it is a symbolic link, which is not allowed here", where=str(folder))
    return folder


def bundle_name(data: bytes) -> str:
    """Return the name of a bundle's file: its kind and the beginning of its SHA-256."""
    kind = KINDS.get(predicate_type(data), "attestation")
    return f"{kind}-{hashlib.sha256(data).hexdigest()[:16]}{BUNDLE_SUFFIX}"


def predicate_type(bundle: bytes) -> str:
    """Return the predicate type of a bundle, unverified, or "" if it cannot be read."""
    with suppress(SignatureRefused):
        return parse_statement("", parse_bundle("", bundle).dsseEnvelope.payload).predicateType
    return ""


def attach_attestations(repository: Repository, subject: Descriptor, attestations: Attestations) -> int:
    """Attach attestations to an image manifest, as cosign does; return their number.

    Attached ones are not attached again. A location that does not keep referrers is left unchanged. Source of the
    annotations: sigstore/cosign:pkg/oci/remote/write.go@v3.1.2. The time of creation is left out, so that equal
    attestations are one referrer.
    """
    from trtspec.store.registries.referrers import KeepsReferrers, attach_document  # lazy: builds need no HTTP client

    if not isinstance(repository, KeepsReferrers):
        return 0
    for data in attestations.bundles.values():
        attach_bundle(repository, subject, data)
    for kind, document in attestations.documents.items():
        attach_document(repository, subject, DOCUMENT_TYPES[kind], document)
    return len(attestations.bundles) + len(attestations.documents)


def attach_bundle(repository: Repository, subject: Descriptor, bundle: bytes) -> str:
    """Attach a signed statement to an image manifest; return the digest of the referrer's manifest."""
    from trtspec.store.registries.referrers import attach_document

    annotations = {CONTENT: "dsse-envelope", PREDICATE_TYPE: predicate_type(bundle)}
    return attach_document(repository, subject, BUNDLE_TYPE, bundle, annotations)


def fetch_attestations(repository: Repository, digest: str) -> Attestations:
    """Fetch the attestations of the image manifest with a digest; referrers of other types are ignored."""
    from trtspec.store.registries.referrers import list_referrers

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
    from trtspec.store.registries.modelpack import check_digest, parse_image_manifest

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


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_BYTES, follow=False)
    except OSError as error:
        raise TrtspecError(describe_read_error(error), where=str(path)) from None
