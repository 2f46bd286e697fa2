# SPDX-License-Identifier: Apache-2.0
"""Signing: statements about an artifact's manifest and its image manifest, in its directory or at its location."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from trtspec.core.errors import DigestMismatch, SignatureRefused, TrtspecError
from trtspec.store.artifact import load_artifact
from trtspec.store.artifact_paths import ATTESTATIONS, MANIFEST
from trtspec.store.registries.http_client import Patience
from trtspec.store.registries.modelpack import IMAGE_MANIFEST, Descriptor, parse_image_manifest, read_package
from trtspec.store.registries.pull import fetch_manifest
from trtspec.store.registries.push import predict_image
from trtspec.store.registries.referrers import list_referrers
from trtspec.store.registries.repository import opened_location
from trtspec.store.registries.transfer import OnProgress
from trtspec.store.signatures.attached import attach_bundle
from trtspec.store.signatures.attestations import (
    BUNDLE_SUFFIX,
    DOCUMENTS,
    Attestations,
    bundle_name,
    read_attestations,
    write_attestations,
)
from trtspec.store.signatures.envelope import (
    PROVENANCE,
    SIGNATURE,
    SubjectName,
    parse_bundle,
    parse_statement,
    render_statement,
)
from trtspec.store.signatures.evaluate import LOCATION, SIGNED_AT


class Signer(Protocol):
    """Signs statements; `name` identifies it in messages."""

    @property
    def name(self) -> str: ...

    def sign(self, statement: bytes) -> bytes:
        """Return the bundle of a signed statement."""


@dataclass(frozen=True)
class SignResult:
    """A signed artifact: the digests of its two manifests, "sha256:HEX", and the places of the new bundles."""

    artifact: str
    manifest: str
    digest: str
    signer: str
    signed_at: str
    bundles: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `trtspec sign --json`."""
        return {
            "format_version": 1,
            "artifact": self.artifact,
            "manifest": self.manifest,
            "digest": self.digest,
            "signer": self.signer,
            "signed_at": self.signed_at,
            "bundles": list(self.bundles),
        }


def sign_directory(
    root: Path,
    signer: Signer,
    *,
    location: str = "",
    expected: str = "",
    now: datetime | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> SignResult:
    """Sign the artifact in a directory, its provenance and its bill of materials; write the bundles into it.

    The subjects are its manifest and the image manifest that a push will store, so files that this machine has not
    hashed before are read. `location` is the only address that a policy with `same_location` accepts. Earlier bundles
    of the same key are removed. Raises DigestMismatch if a file differs from the manifest.
    """
    artifact = load_artifact(root, expected)
    image = predict_image(artifact, on_progress)
    subjects = [SubjectName(MANIFEST, artifact.digest), SubjectName(artifact.recipe.name, image.descriptor.hex)]
    at = _time(now)
    annotations = {SIGNED_AT: at, **({LOCATION: location} if location else {})}
    found = read_attestations(root)
    predicates: dict[str, Mapping[str, Any]] = {SIGNATURE: {}}
    predicates |= {kind: _predicate(kind, document, artifact.digest) for kind, document in found.documents.items()}
    statements = [render_statement(subjects, kind, each, annotations) for kind, each in predicates.items()]
    bundles = [signer.sign(statement) for statement in statements]
    write_attestations(root, Attestations({bundle_name(each): each for each in bundles}))
    _remove_earlier(root, found, bundles)
    folder = root / ATTESTATIONS
    return SignResult(
        artifact=str(root),
        manifest=f"sha256:{artifact.digest}",
        digest=image.descriptor.digest,
        signer=signer.name,
        signed_at=at,
        bundles=tuple(str(folder / bundle_name(each)) for each in bundles),
    )


def sign_location(
    address: str,
    signer: Signer,
    *,
    expected: str = "",
    now: datetime | None = None,
    patience: Patience | None = None,
) -> SignResult:
    """Sign the artifact at an address, and attach the signature there; its files are not fetched.

    Its provenance is not signed, because its origin is not known here. Raises TrtspecError if the location keeps no
    signatures.
    """
    with opened_location(address, patience) as (repository, _):
        document = repository.manifest()
        package = read_package(address, parse_image_manifest(address, document))
        _, manifest = fetch_manifest(repository, address, package, expected)
    subject = Descriptor(mediaType=IMAGE_MANIFEST, digest=_digest(document), size=len(document))
    at = _time(now)
    subjects = [SubjectName(MANIFEST, package.manifest.hex), SubjectName(manifest.recipe.name, subject.hex)]
    bundle = signer.sign(render_statement(subjects, SIGNATURE, {}, {SIGNED_AT: at, LOCATION: address}))
    with opened_location(address, patience, for_writing=True) as (repository, _):
        attached = attach_bundle(repository, subject, bundle)
    _check_attached(address, subject.digest, attached, patience)
    return SignResult(
        artifact=address,
        manifest=package.manifest.digest,
        digest=subject.digest,
        signer=signer.name,
        signed_at=at,
        bundles=(f"{repository.label}@{attached}",),
    )


def _check_attached(address: str, subject: str, attached: str, patience: Patience | None) -> None:
    with opened_location(address, patience) as (repository, _):
        if attached not in {each.digest for each in list_referrers(repository, subject)}:
            hint = "sign the artifact in its directory, then push it again"
            raise TrtspecError("the location did not keep the signature", where=address, hint=hint)


def _predicate(kind: str, document: bytes, manifest: str) -> Mapping[str, Any]:
    """Return the predicate of an unsigned document; raises DigestMismatch if it is about another artifact."""
    where = f"{ATTESTATIONS}/{DOCUMENTS[kind]}"
    if kind == PROVENANCE:
        statement = parse_statement(where, document)
        if statement.predicateType != kind or statement.find_subject(manifest) is None:
            raise DigestMismatch("the provenance is of another artifact", where=where, hint="build the artifact again")
        return statement.predicate or {}
    return parse_bom(where, document, manifest)


def parse_bom(where: str, document: bytes, manifest: str) -> Mapping[str, Any]:
    """Return a bill of materials; raises DigestMismatch unless its main component is the artifact."""
    import json

    try:
        parsed: Mapping[str, Any] = json.loads(document)
        hashes = parsed["metadata"]["component"]["hashes"]
        if {"alg": "SHA-256", "content": manifest} in hashes:
            return parsed
    except (ValueError, RecursionError, LookupError, TypeError):
        pass
    raise DigestMismatch("the bill of materials is of another artifact", where=where, hint="build the artifact again")


def _remove_earlier(root: Path, before: Attestations, bundles: list[bytes]) -> None:
    """Remove the earlier bundles of the key that has signed now."""
    hint = parse_bundle("", bundles[0]).key_hint
    new = {bundle_name(each) for each in bundles}
    for where, data in before.bundles.items():
        path = Path(where)
        if hint and path.name not in new and _key_hint(where, data) == hint and path.name.endswith(BUNDLE_SUFFIX):
            path.unlink(missing_ok=True)


def _key_hint(where: str, data: bytes) -> str:
    try:
        return parse_bundle(where, data).key_hint
    except SignatureRefused:
        return ""


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _time(now: datetime | None) -> str:
    return (now or datetime.now(timezone.utc)).astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
