# SPDX-License-Identifier: Apache-2.0
"""sign, verify --signature, pull --signature and deploy --signature on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import Run
from tests.store.registries.artifacts import DRAFT, make_artifact
from tests.store.signatures.conftest import make_key


@pytest.fixture
def built(workplace: Path) -> Path:
    make_key(workplace / "key.pem")
    (workplace / "policy.yaml").write_text("schema: trtspec.signature-policy/1\nsigners: [{key: key.pub}]\n")
    return make_artifact(workplace / "built", 5000, 2000)


def test_sign_push_verify_and_pull(built: Path, trtspec: Run, workplace: Path) -> None:
    signed = trtspec("sign", built, "--key", "key.pem", "--json")
    assert signed.code == 0, signed.err
    document = signed.document
    verified = trtspec("verify", built, "--signature", "policy.yaml", "--json").document
    assert (verified["ok"], verified["manifest"], verified["signer"]) == (True, document["manifest"], "key.pub")
    pushed = trtspec("push", built, "file:models:v1")
    assert "attached  1 attestation" in pushed.out
    assert trtspec("push", built, "file:models:v1", "--json").document["digest"] == document["digest"]
    listed = trtspec("list", "file:models")
    assert listed.out.splitlines()[1].split()[-1] == "1"
    assert trtspec("verify", "file:models:v1", "--signature", "policy.yaml").out.endswith("signed by key.pub\n")
    pulled = trtspec("pull", "file:models:v1", "--signature", "policy.yaml")
    assert "signed    by key.pub" in pulled.out


def test_policy_refuses_with_its_own_exit_code(
    built: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch, workplace: Path
) -> None:
    trtspec("push", built, "file:models:v1")
    for words in (
        ("verify", built, "--signature", "policy.yaml"),
        ("pull", "file:models:v1", "--signature", "policy.yaml"),
        ("deploy", "file:models:v1", "--signature", "policy.yaml"),
        ("deploy", built, "--signature", "policy.yaml"),
    ):
        refused = trtspec(*words)
        assert refused.code == 114, words
        assert "it is not signed" in refused.err
        assert "hint: policy.yaml accepts: key.pub; sign with `trtspec sign`" in refused.err
    monkeypatch.setenv("TRTSPEC_SIGNATURE_POLICY", "policy.yaml")
    assert trtspec("deploy", built).code == trtspec("pull", "file:models:v1").code == 114
    assert not (workplace / "build").exists()
    monkeypatch.setenv("TRTSPEC_SIGNATURE_POLICY", "none.yaml")
    assert "the policy does not exist" in trtspec("pull", "file:models:v1").err


def test_deploy_of_a_signed_artifact_compares_its_files(built: Path, trtspec: Run) -> None:
    trtspec("sign", built, "--key", "key.pem")
    (built / DRAFT).write_bytes(b"x" * 2000)
    assert trtspec("verify", built, "--signature", "policy.yaml").code == 0  # reads no files
    refused = trtspec("deploy", built, "--signature", "policy.yaml")
    assert (refused.code, DRAFT in refused.err) == (102, True)


def test_sign_requires_one_kind_of_signer(built: Path, trtspec: Run) -> None:
    for words in ((), ("--key", "key.pem", "--keyless")):
        refused = trtspec("sign", built, *words)
        assert (refused.code, "sign either with --key or with --keyless" in refused.err) == (1, True)
    refused = trtspec("sign", "file:models:v1", "--key", "key.pem", "--location", "oci://example.com/a:b")
    assert "--location is for a directory" in refused.err
    refused = trtspec("sign", built, "--key", "key.pem", "--location", "team/tiny:v1")
    assert (refused.code, "error: --location: 'team/tiny:v1' is not the address" in refused.err) == (1, True)


def test_files_at_a_location_are_not_verified(built: Path, trtspec: Run) -> None:
    trtspec("push", built, "file:models:v1")
    refused = trtspec("verify", "file:models:v1")
    assert (refused.code, "only its signature can be verified there" in refused.err) == (1, True)


def test_systemd_unit_has_the_policy(
    built: Path, trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = trtspec("deploy", built, "--systemd", "--signature", "policy.yaml").out
    assert f"--signature {workplace}/policy.yaml" in unit
    monkeypatch.setenv("TRTSPEC_SIGNATURE_POLICY", "policy.yaml")
    assert trtspec("deploy", built, "--systemd").out == unit
