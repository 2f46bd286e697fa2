# SPDX-License-Identifier: Apache-2.0
"""The attestations of an artifact in its directory `attestations/`; `attached` has those at its image manifest.

    attestations/provenance.json        SLSA provenance: an in-toto statement, unsigned
    attestations/bom.cdx.json           CycloneDX bill of materials, unsigned
    attestations/KIND-HEX.sigstore.json a signed statement; HEX begins the SHA-256 of the file

They are not part of the artifact's manifest, because they are made later and contain times. They are read as untrusted
input.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.core.errors import SignatureRefused, TrtspecError
from trtspec.core.files import describe_read_error, read_bounded, replace_file
from trtspec.store.artifact_paths import ATTESTATIONS
from trtspec.store.signatures.envelope import (
    BOM,
    MAX_BYTES,
    PROVENANCE,
    SIGNATURE,
    parse_bundle,
    parse_statement,
)

BUNDLE_SUFFIX = ".sigstore.json"
DOCUMENTS = {PROVENANCE: "provenance.json", BOM: "bom.cdx.json"}  # unsigned documents by predicate type
KINDS = {SIGNATURE: "signature", PROVENANCE: "provenance", BOM: "bom"}
MAX_BUNDLES = 64


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


def _read(path: Path) -> bytes:
    try:
        return read_bounded(path, MAX_BYTES, follow=False)
    except OSError as error:
        raise TrtspecError(describe_read_error(error), where=str(path)) from None
