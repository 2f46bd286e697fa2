# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a policy: which signature of an artifact is accepted, and why the others are not.

Only the manifest's SHA-256 and the attestations are read, not the files of the artifact. A signature covers the files
through the digests in the manifest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from trtspec.core.diagnostics import escape_unprintable
from trtspec.core.errors import SignatureRefused
from trtspec.store.artifact_paths import MANIFEST
from trtspec.store.signatures.attestations import DOCUMENTS, KINDS, Attestations
from trtspec.store.signatures.envelope import (
    BOM,
    PROVENANCE,
    SIGNATURE,
    Bundle,
    Statement,
    Subject,
    SubjectName,
    dump,
    parse_bundle,
    parse_statement,
    render_statement,
)
from trtspec.store.signatures.policy import (
    AcceptedIdentity,
    AcceptedKey,
    Policy,
    matches,
    parse_age,
    parse_time,
)
from trtspec.store.signatures.provenance_rules import check_provenance

SIGNED_AT, LOCATION = "trtspec.signed", "trtspec.location"  # annotations of a statement's subject
MAX_SKEW = timedelta(minutes=5)  # by which the clock of a signer may be ahead
MAX_REASONS = 5


@dataclass(frozen=True)
class SignedArtifact:
    """An artifact to check: its manifest's SHA-256 in hex, its recipe's name, and its attestations.

    `location` is the address that it comes from, or "" for a directory.
    """

    manifest: str
    name: str
    attestations: Attestations
    location: str = ""


@dataclass(frozen=True)
class SignatureCheck:
    """One part of a policy that an artifact meets."""

    name: str
    detail: str


@dataclass(frozen=True)
class AcceptedSignature:
    """The accepted signature: its signer, its time, its place, and what was checked."""

    signer: str
    signed_at: str
    bundle: str
    manifest: str
    checks: tuple[SignatureCheck, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `trtspec verify --signature --json`."""
        return {
            "format_version": 1,
            "ok": True,
            "manifest": f"sha256:{self.manifest}",
            "signer": self.signer,
            "signed_at": self.signed_at,
            "bundle": self.bundle,
            "checks": [asdict(each) for each in self.checks],
        }


@dataclass(frozen=True)
class _Signed:
    """A verified statement about the artifact."""

    where: str
    signer: str
    statement: Statement
    subject: Subject
    signed_at: datetime | None


def check_signature(artifact: SignedArtifact, policy: Policy, now: datetime | None = None) -> AcceptedSignature:
    """Return the signature that fulfils a policy; raises SignatureRefused with the reasons if none does."""
    now = now or datetime.now(timezone.utc)
    reasons = list(artifact.attestations.problems)
    signed: list[_Signed] = []
    for where, data in artifact.attestations.bundles.items():
        try:
            signed.append(_verify(where, data, artifact, policy))
        except SignatureRefused as error:
            reasons.append(f"{where}: {error.message}")
    _check_name(artifact, policy)

    def choose(kind: str, check: Callable[[_Signed], tuple[SignatureCheck, ...]]) -> tuple[_Signed, list[Any]]:
        """Return the first verified statement of a kind that passes `check`."""
        failed: list[str] = []
        for each in signed:
            if each.statement.predicateType == kind:
                try:
                    return each, [*check(each)]
                except SignatureRefused as error:
                    failed.append(f"{each.where}: {error.message}")
        raise _refusal(f"no accepted {KINDS[kind]}", artifact, [*failed, *reasons], policy)

    best, checks = choose(SIGNATURE, lambda each: _check_signed(each, artifact, policy, now))
    found = [SignatureCheck("signature", f"of {best.signer} over manifest sha256:{artifact.manifest}"), *checks]
    if policy.document.artifact.names:
        found.append(SignatureCheck("name", artifact.name))
    if (required := policy.document.provenance) is not None:
        found += choose(PROVENANCE, lambda each: _check_provenance(each, artifact, required))[1]
    if policy.document.bom:
        found += choose(BOM, lambda each: _check_bom(each, artifact))[1]
    at = _format(best.signed_at) if best.signed_at else ""
    return AcceptedSignature(best.signer, at, best.where, artifact.manifest, tuple(found))


def _verify(where: str, data: bytes, artifact: SignedArtifact, policy: Policy) -> _Signed:
    """Return the statement of a bundle that an accepted signer has signed about this artifact."""
    bundle = parse_bundle(where, data)
    signer, payload, signed_at = _find_signer(where, data, bundle, policy)
    statement = parse_statement(where, payload)
    if payload != bundle.dsseEnvelope.payload:
        raise SignatureRefused("two readers of the bundle disagree", where=where)
    subject = statement.find_subject(artifact.manifest)
    if subject is None:
        others = ", ".join(f"sha256:{each.digest.get('sha256', '?')[:12]}" for each in statement.subject[:2])
        raise SignatureRefused(f"it signs another artifact ({escape_unprintable(others)})", where=where)
    if signed_at is None and SIGNED_AT in subject.annotations:
        signed_at = _annotated_time(where, subject)
    return _Signed(where, signer, statement, subject, signed_at)


def _find_signer(where: str, data: bytes, bundle: Bundle, policy: Policy) -> tuple[str, bytes, datetime | None]:
    """Return the accepted signer of a bundle, the verified payload, and the time if a certificate proves it."""
    if bundle.key_hint:
        return _find_key(where, bundle, policy), bundle.dsseEnvelope.payload, None
    reason = "signed without a key, and the policy accepts no identity"
    for signer in policy.signers:
        if isinstance(signer, AcceptedIdentity):
            from trtspec.store.signatures.keyless import verify_keyless

            try:
                root = policy.trusted_root
                return signer.label, *verify_keyless(data, signer.issuer, signer.identity, root, where)
            except SignatureRefused as error:
                reason = error.message
    raise SignatureRefused(reason, where=where)


def _find_key(where: str, bundle: Bundle, policy: Policy) -> str:
    envelope = bundle.dsseEnvelope
    for signer in policy.signers:
        is_named = isinstance(signer, AcceptedKey) and signer.public.hint == bundle.key_hint
        if isinstance(signer, AcceptedKey) and is_named and signer.public.has_signed(*envelope.signed):
            if envelope.signatures[0].keyid not in ("", bundle.key_hint):
                raise SignatureRefused("the envelope names another key than the bundle", where=where)
            return signer.label
    raise SignatureRefused("not signed by a key of the policy, or changed since", where=where)


def _annotated_time(where: str, subject: Subject) -> datetime:
    try:
        return parse_time(str(subject.annotations[SIGNED_AT]))
    except Exception:
        raise SignatureRefused("its time is not valid", where=where) from None


def _check_name(artifact: SignedArtifact, policy: Policy) -> None:
    names = policy.document.artifact.names
    if names and not any(matches(artifact.name, each) for each in names):
        message = f"the policy does not accept artifacts called {artifact.name!r}"
        raise SignatureRefused(message, where=str(policy.path), hint=f"artifact.names accepts: {', '.join(names)}")


def _check_signed(
    signed: _Signed, artifact: SignedArtifact, policy: Policy, now: datetime
) -> tuple[SignatureCheck, ...]:
    return (*_check_time(signed, policy, now), *_check_location(signed, artifact, policy))


def _check_time(signed: _Signed, policy: Policy, now: datetime) -> tuple[SignatureCheck, ...]:
    rules, at = policy.document.signed, signed.signed_at
    if at is None and (rules.max_age or rules.not_before):
        raise SignatureRefused("it does not state its time, which the policy requires")
    if at is None:
        return ()
    if at > now + MAX_SKEW:
        raise SignatureRefused(f"signed in the future: {_format(at)}")
    if rules.max_age and now - at > parse_age(rules.max_age):
        raise SignatureRefused(f"signed at {_format(at)}, more than {rules.max_age} ago")
    if rules.not_before and at < parse_time(rules.not_before):
        raise SignatureRefused(f"signed at {_format(at)}, before {rules.not_before}")
    return (SignatureCheck("time", _format(at)),)


def _check_location(signed: _Signed, artifact: SignedArtifact, policy: Policy) -> tuple[SignatureCheck, ...]:
    if not policy.document.artifact.same_location:
        return ()
    if not artifact.location:
        return (SignatureCheck("location", "not checked: the artifact is a directory"),)
    at = str(signed.subject.annotations.get(LOCATION, ""))
    if not at:
        raise SignatureRefused("it names no location; sign with --location, or sign the location itself")
    repository, _, digest = artifact.location.partition("@")
    same = at == artifact.location or (bool(digest) and repository in (at, at.rpartition(":")[0]))
    if not same:
        raise SignatureRefused(f"signed for {escape_unprintable(at[:200])}, not for {artifact.location}")
    return (SignatureCheck("location", at),)


def _check_provenance(signed: _Signed, artifact: SignedArtifact, required: Any) -> tuple[SignatureCheck, ...]:
    predicate = signed.statement.predicate or {}
    unsigned = render_statement([SubjectName(MANIFEST, artifact.manifest)], PROVENANCE, predicate)
    _check_same(PROVENANCE, artifact, unsigned)
    details = check_provenance(predicate, required)
    return (SignatureCheck("provenance", "; ".join((f"of {signed.signer}", *details))),)


def _check_bom(signed: _Signed, artifact: SignedArtifact) -> tuple[SignatureCheck, ...]:
    _check_same(BOM, artifact, dump(signed.statement.predicate))
    return (SignatureCheck("bom", f"of {signed.signer}"),)


def _check_same(kind: str, artifact: SignedArtifact, expected: bytes) -> None:
    """Raise SignatureRefused if the unsigned copy of a document differs from the signed one."""
    if artifact.attestations.documents.get(kind, expected) != expected:
        raise SignatureRefused(f"{DOCUMENTS[kind]} differs from the signed document")


def _refusal(what: str, artifact: SignedArtifact, reasons: Sequence[str], policy: Policy) -> SignatureRefused:
    more = f"; and {len(reasons) - MAX_REASONS} more" if len(reasons) > MAX_REASONS else ""
    why = "; ".join(reasons[:MAX_REASONS]) + more if reasons else "it is not signed"
    return SignatureRefused(
        f"{what} of {artifact.name!r} (manifest sha256:{artifact.manifest[:12]}): {why}",
        where=artifact.location or None,
        hint=f"{policy.path} accepts: {', '.join(each.label for each in policy.signers)}; sign with `trtspec sign`",
    )


def _format(at: datetime) -> str:
    return at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
