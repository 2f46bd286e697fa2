# SPDX-License-Identifier: Apache-2.0
"""Keyless signatures: a real one from Sigstore's public log is verified offline; signing fails without a token.

`public.sigstore.json` is the attestation of pypi-attestation-models 0.0.4a2, made by its publisher in GitHub Actions: a
record of the public log. Its trusted root is that of the package sigstore.
"""

from __future__ import annotations

import json
import random
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trtspec.core.errors import SignatureRefused, TrtspecError
from trtspec.store.signatures.attestations import Attestations
from trtspec.store.signatures.envelope import (
    SIGNATURE,
    SubjectName,
    parse_bundle,
    parse_statement,
    render_statement,
)
from trtspec.store.signatures.evaluate import SignedArtifact, check_signature
from trtspec.store.signatures.keyless import KeylessSigner, open_keyless_signer, verify_keyless
from trtspec.store.signatures.policy import load_policy

BUNDLE = (Path(__file__).parent / "public.sigstore.json").read_bytes()
ISSUER = "https://token.actions.githubusercontent.com"
REPOSITORY = "https://github.com/trailofbits/pypi-attestation-models"
ROOT = Path(str(files("sigstore"))) / "_store" / "https%3A%2F%2Ftuf-repo-cdn.sigstore.dev" / "trusted_root.json"
DIGEST = "c9709ce6fd5b67b59b4a28758cf14d3f411803c4b89b6068b1f1a8e4ee94c8ef"


def test_public_bundle_is_verified_for_its_identity() -> None:
    payload, at = verify_keyless(BUNDLE, ISSUER, f"{REPOSITORY}/*", ROOT, "bundle")
    statement = parse_statement("bundle", payload)
    assert statement.find_subject(DIGEST) is not None
    assert at.year == 2024
    assert parse_bundle("bundle", BUNDLE).key_hint == ""


@pytest.mark.parametrize(
    ("issuer", "identity"),
    [("https://gitlab.com", f"{REPOSITORY}/*"), (ISSUER, "https://github.com/other/*"), (ISSUER, REPOSITORY)],
)
def test_other_identities_are_refused(issuer: str, identity: str) -> None:
    with pytest.raises(SignatureRefused):
        verify_keyless(BUNDLE, issuer, identity, ROOT, "bundle")


def test_changed_bundles_are_refused() -> None:
    generator = random.Random(7)
    for _ in range(40):
        data = bytearray(BUNDLE)
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        try:
            payload, _ = verify_keyless(bytes(data), ISSUER, f"{REPOSITORY}/*", ROOT, "bundle")
        except SignatureRefused:
            continue
        # Sigstore leaves some fields of the log entry unverified, such as its index; what was signed is unchanged.
        assert payload == parse_bundle("", BUNDLE).dsseEnvelope.payload


def test_policy_with_an_identity(tmp_path: Path) -> None:
    """The bundle is no signature of an artifact, so it is verified but not accepted."""
    path = tmp_path / "policy.yaml"
    signer = {"issuer": ISSUER, "identity": f"{REPOSITORY}/*"}
    path.write_text(
        json.dumps({"schema": "trtspec.signature-policy/1", "signers": [signer], "trusted_root": str(ROOT)})
    )
    policy = load_policy(path)
    artifact = SignedArtifact(DIGEST, "models", Attestations({"public": BUNDLE}))
    with pytest.raises(SignatureRefused, match="no accepted signature") as error:
        check_signature(artifact, policy)
    assert "it is not signed" in error.value.message
    with pytest.raises(SignatureRefused, match="it signs another artifact"):
        check_signature(SignedArtifact("0" * 64, "models", Attestations({"public": BUNDLE})), policy)


def test_signing_outside_of_ci_names_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "BUILDKITE", "SIGSTORE_ID_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sigstore.oidc.detect_credential", lambda: None)
    with pytest.raises(TrtspecError, match="not a CI job with an identity token") as error:
        open_keyless_signer()
    assert "id-token: write" in str(error.value.hint)
    monkeypatch.setenv("TOKEN", "secret.token.value")
    with pytest.raises(TrtspecError, match="reading the identity token failed") as error:
        open_keyless_signer("env://TOKEN")
    assert "secret" not in str(error.value)
    with pytest.raises(TrtspecError, match="requires env://NAME"):
        open_keyless_signer("secret.token.value")


def test_statements_are_accepted_by_the_keyless_signer() -> None:
    """The package sigstore validates a statement before it signs; its services are replaced here."""
    seen = []

    def sign_dsse(statement: Any) -> SimpleNamespace:
        seen.append(json.loads(statement._contents))
        return SimpleNamespace(to_json=lambda: "{}")

    statement = render_statement([SubjectName("manifest.json", "a" * 64)], SIGNATURE, {}, {"trtspec.signed": "now"})
    assert KeylessSigner(SimpleNamespace(sign_dsse=sign_dsse), "job").sign(statement) == b"{}"
    assert seen == [json.loads(statement)]
    with pytest.raises(TrtspecError, match="signing failed"):
        KeylessSigner(SimpleNamespace(sign_dsse=sign_dsse), "job").sign(b'{"_type": "other"}')
