# SPDX-License-Identifier: Apache-2.0
"""The documents of a signature: a Sigstore bundle that contains a signed in-toto statement in a DSSE envelope.

Sources: sigstore/protobuf-specs:protos/sigstore_bundle.proto@v0.5.1,
secure-systems-lab/dsse:protocol.md@v1.0.2, in-toto/attestation:spec/v1/statement.md@v1.2.0, and
sigstore/cosign:cmd/cosign/cli/sign/sign.go@v3.1.2 for the statement of a signature. Documents are read as untrusted
input, strictly: base64 has one form, and unknown keys of a bundle are errors.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from trtspec.core.diagnostics import first_invalid
from trtspec.core.errors import SignatureRefused

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SIGNATURE = "https://sigstore.dev/cosign/sign/v1"  # the predicate type of a signature
PROVENANCE = "https://slsa.dev/provenance/v1"
BOM = "https://cyclonedx.org/bom"
MAX_BYTES = 16 << 20


def _decode(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError("expected base64")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("not valid base64") from None
    if base64.b64encode(data).decode() != text:  # unused bits could be changed without a trace
        raise ValueError("not canonical base64")
    return data


Base64 = Annotated[bytes, BeforeValidator(_decode)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Signature(_Part):
    sig: Base64
    keyid: str = ""


class Envelope(_Part):
    """A DSSE envelope with one signature."""

    payload: Base64
    payloadType: Literal["application/vnd.in-toto+json"]  # noqa: N815 - the names of the specification
    signatures: Annotated[tuple[_Signature, ...], Field(min_length=1, max_length=1)]

    @property
    def signed(self) -> tuple[bytes, bytes]:
        """Return the signature and the payload."""
        return self.signatures[0].sig, self.payload


class _KeyHint(_Part):
    hint: Annotated[str, Field(max_length=200)]


class _Certificate(_Part):
    rawBytes: Base64  # noqa: N815


class _Material(_Part):
    publicKey: _KeyHint | None = None  # noqa: N815
    certificate: _Certificate | None = None
    tlogEntries: tuple[Any, ...] = ()  # noqa: N815 - verified by the sigstore package
    timestampVerificationData: dict[str, Any] | None = None  # noqa: N815

    @model_validator(mode="after")
    def _has_one_kind(self) -> _Material:
        if (self.publicKey is None) == (self.certificate is None):
            raise ValueError("expected either publicKey or certificate")
        return self


class Bundle(_Part):
    """A Sigstore bundle, version 0.3, with a signed statement."""

    mediaType: Literal["application/vnd.dev.sigstore.bundle.v0.3+json"]  # noqa: N815
    verificationMaterial: _Material  # noqa: N815
    dsseEnvelope: Envelope  # noqa: N815

    @property
    def key_hint(self) -> str:
        """Return the hint of the public key, or "" for a keyless signature."""
        return self.verificationMaterial.publicKey.hint if self.verificationMaterial.publicKey else ""


class Subject(BaseModel):
    """A document that a statement is about; unknown keys are ignored, as the specification requires."""

    model_config = ConfigDict(frozen=True)

    name: str = ""
    digest: dict[str, str]
    annotations: dict[str, Any] = {}


class Statement(BaseModel):
    """An in-toto statement; `predicate` depends on `predicateType`."""

    model_config = ConfigDict(frozen=True)

    type: Literal["https://in-toto.io/Statement/v1"] = Field(alias="_type")
    subject: Annotated[tuple[Subject, ...], Field(min_length=1, max_length=1000)]
    predicateType: str  # noqa: N815
    predicate: dict[str, Any] | None = None

    def find_subject(self, sha256: str) -> Subject | None:
        """Return the subject with a SHA-256, in hex, or None."""
        return next((each for each in self.subject if each.digest.get("sha256") == sha256), None)


@dataclass(frozen=True)
class SubjectName:
    """A subject to sign: its name and its SHA-256, in hex."""

    name: str
    sha256: str


def render_statement(
    subjects: Sequence[SubjectName],
    predicate_type: str,
    predicate: Mapping[str, Any],
    annotations: Mapping[str, str] | None = None,
) -> bytes:
    """Return an in-toto statement; the annotations belong to each subject, as in cosign's statements."""
    more = {"annotations": dict(annotations)} if annotations else {}
    rendered = [{"name": each.name, "digest": {"sha256": each.sha256}, **more} for each in subjects]
    return dump(
        {"_type": STATEMENT_TYPE, "subject": rendered, "predicateType": predicate_type, "predicate": dict(predicate)}
    )


def render_bundle(statement: bytes, signature: bytes, hint: str) -> bytes:
    """Return the bundle of a statement that was signed with a key."""
    return dump(
        {
            "mediaType": BUNDLE_TYPE,
            "verificationMaterial": {"publicKey": {"hint": hint}, "tlogEntries": []},
            "dsseEnvelope": {
                "payload": base64.b64encode(statement).decode(),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"sig": base64.b64encode(signature).decode()}],
            },
        }
    )


def pre_authentication(payload: bytes) -> bytes:
    """Return the bytes that are signed for a payload: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def dump(document: object) -> bytes:
    """Return JSON with sorted keys and without spaces, so that equal documents have equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def parse_bundle(where: str, data: bytes) -> Bundle:
    """Parse a bundle; raises SignatureRefused if it is not one of version 0.3 with a signed statement."""
    return cast(Bundle, _parse(Bundle, "a Sigstore bundle with a signed statement", where, data))


def parse_statement(where: str, data: bytes) -> Statement:
    """Parse the payload of an envelope; raises SignatureRefused for any other document."""
    return cast(Statement, _parse(Statement, "an in-toto statement", where, data))


def _parse(form: Any, what: str, where: str, data: bytes) -> Any:
    try:
        return form.model_validate(json.loads(data))
    except ValidationError as error:
        raise SignatureRefused(f"not {what}: {first_invalid(error)}", where=where) from None
    except (ValueError, RecursionError):
        raise SignatureRefused(f"not {what}: not valid JSON", where=where) from None
