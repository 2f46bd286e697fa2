# SPDX-License-Identifier: Apache-2.0
"""Policies: their validation, and the signatures that they refuse, with reasons."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.store.registries.artifacts import make_artifact, write_artifact
from tests.store.signatures.policies import write_policy
from trtspec.core.diagnostics import RecipeError
from trtspec.core.errors import SignatureRefused, TrtspecError
from trtspec.store.artifact import load_artifact
from trtspec.store.registries.pull import check_directory, check_location, local_artifact, pull_artifact
from trtspec.store.registries.push import push_artifact
from trtspec.store.signatures.attestations import read_attestations
from trtspec.store.signatures.evaluate import AcceptedSignature, SignedArtifact, check_signature
from trtspec.store.signatures.keys import KeySigner
from trtspec.store.signatures.policy import Policy, find_policy, load_policy, matches, parse_age
from trtspec.store.signatures.sign import sign_directory

NOW = datetime(2026, 11, 28, 12, tzinfo=timezone.utc)


def check(root: Path, policy: Policy, now: datetime | None = None, location: str = "") -> AcceptedSignature:
    artifact = load_artifact(root)
    return check_signature(
        SignedArtifact(artifact.digest, artifact.recipe.name, read_attestations(root), location), policy, now
    )


def test_signature_is_accepted_without_the_files(signed: Path, policy: Policy) -> None:
    for path in signed.rglob("*.safetensors"):
        path.unlink()
    accepted = check_directory(signed, policy)
    assert accepted.signer.endswith("release.pub")
    assert [each.name for each in accepted.checks] == ["signature", "time"]


def test_unsigned_artifact_is_refused(built: Path, policy: Policy) -> None:
    with pytest.raises(SignatureRefused, match=r"no accepted signature of 'tiny' .*: it is not signed") as error:
        check_directory(built, policy)
    assert error.value.exit_code == 114
    assert "release.pub" in str(error.value.hint)


def test_signature_of_another_key_is_refused(built: Path, other_signer: KeySigner, policy: Policy) -> None:
    sign_directory(built, other_signer)
    with pytest.raises(SignatureRefused, match="not signed by a key of the policy"):
        check_directory(built, policy)


def test_signature_of_another_artifact_is_refused(signed: Path, policy: Policy, tmp_path: Path) -> None:
    other = make_artifact(tmp_path / "other", 5000, 2000, seed=5)
    (signed / "attestations").rename(other / "attestations")
    with pytest.raises(SignatureRefused, match="it signs another artifact"):
        check_directory(other, policy)


def test_changed_manifest_is_refused(signed: Path, policy: Policy) -> None:
    path = signed / "manifest.json"
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(TrtspecError):
        check_directory(signed, policy)


def test_name_has_to_be_accepted(signed: Path, keys: Path, tmp_path: Path) -> None:
    accepted = load_policy(write_policy(tmp_path, keys, "artifact: {names: ['ti*']}"))
    assert check_directory(signed, accepted).checks[-1].detail == "tiny"
    with pytest.raises(SignatureRefused, match="does not accept artifacts called 'tiny'"):
        check_directory(signed, load_policy(write_policy(tmp_path, keys, "artifact: {names: [other]}")))


@pytest.mark.parametrize(
    ("age", "rules", "reason"),
    [
        (timedelta(days=31), "max_age: 30d", "more than 30d ago"),
        (timedelta(hours=1), "not_before: 2026-11-28T11:30:00Z", "before 2026-11-28T11:30:00Z"),
        (timedelta(minutes=-10), "max_age: 30d", "signed in the future"),
    ],
)
def test_time_has_to_be_accepted(
    built: Path, signer: KeySigner, keys: Path, tmp_path: Path, age: timedelta, rules: str, reason: str
) -> None:
    policy = load_policy(write_policy(tmp_path, keys, f"signed: {{{rules}}}"))
    sign_directory(built, signer, now=NOW - age)
    with pytest.raises(SignatureRefused, match=reason):
        check(built, policy, NOW)
    sign_directory(built, signer, now=NOW - timedelta(minutes=1))
    assert check(built, policy, NOW).signed_at == "2026-11-28T11:59:00Z"


def test_location_has_to_be_the_signed_one(built: Path, signer: KeySigner, keys: Path, tmp_path: Path) -> None:
    policy = load_policy(write_policy(tmp_path, keys, "artifact: {same_location: true}"))
    address = f"file:{tmp_path}/layout:v2"
    sign_directory(built, signer)
    push_artifact(built, address)
    with pytest.raises(SignatureRefused, match="it names no location"):
        check_location(address, policy)
    sign_directory(built, signer, location=address)
    push_artifact(built, address)
    assert check_location(address, policy).checks[-1].detail == address
    push_artifact(built, f"file:{tmp_path}/layout:v3")
    with pytest.raises(SignatureRefused, match=r"signed for .*:v2, not for .*:v3"):
        check_location(f"file:{tmp_path}/layout:v3", policy)
    assert check_directory(built, policy).checks[-1].detail == "not checked: the artifact is a directory"
    at = "oci://example.com/team/tiny"
    sign_directory(built, signer, location=f"{at}:v1")
    assert check(built, policy, location=f"{at}@sha256:{'0' * 64}")
    assert check(built, policy, location=f"{at}:v1@sha256:{'0' * 64}")
    with pytest.raises(SignatureRefused, match="signed for"):
        check(built, policy, location=f"{at}:v2@sha256:{'0' * 64}")
    with pytest.raises(SignatureRefused, match="signed for"):
        check(built, policy, location=f"oci://example.com/other/tiny@sha256:{'0' * 64}")


def test_pull_and_deploy_refuse_before_files_are_fetched(
    built: Path, signer: KeySigner, policy: Policy, tmp_path: Path
) -> None:
    address = f"file:{tmp_path}/layout:v1"
    pushed = push_artifact(built, address)
    out = tmp_path / "out"
    with pytest.raises(SignatureRefused, match="it is not signed"):
        pull_artifact(address, lambda *_: out, policy=policy)
    with pytest.raises(SignatureRefused):
        local_artifact(address, policy=policy)
    with pytest.raises(SignatureRefused):
        local_artifact(built, policy=policy)
    assert not out.exists()
    assert not (tmp_path / ".out.partial").exists()
    sign_directory(built, signer)
    assert push_artifact(built, address).attestations == 1
    pulled = pull_artifact(address, lambda *_: out, policy=policy)
    assert pulled.signature is not None
    assert local_artifact(out, policy=policy) == (out, pushed.manifest.removeprefix("sha256:"))


def test_links_and_foreign_files_among_attestations(signed: Path, policy: Policy, tmp_path: Path) -> None:
    (signed / "attestations" / "notes.txt").write_text("ignored")
    (signed / "attestations" / "a.sigstore.json").write_text("{}")  # of somebody else: no reason to refuse
    assert check_directory(signed, policy)
    (signed / "attestations").rename(tmp_path / "elsewhere")
    (signed / "attestations").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TrtspecError, match="symbolic link"):
        check_directory(signed, policy)


def test_all_problems_of_a_policy_are_reported_with_their_positions(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "schema: trtspec.signature-policy/2\n"
        "signers:\n"
        "  - {key: 3}\n"
        "  - {identity: a}\n"
        "  - {issuer: i, identity: '*'}\n"
        "signed: {max_age: soon, not_befor: 2026-01-01}\n"
        "provenance: {minimum_versions: {trtspec: new}}\n"
        "bom: maybe\n"
    )
    with pytest.raises(RecipeError) as error:
        load_policy(path)
    found = {(each.line, each.path): each.message for each in error.value.diagnostics}
    assert found == {
        (1, "schema"): "'trtspec.signature-policy/2' is not one of trtspec.signature-policy/1",
        (3, "signers.0.key"): "expected a string, got the number 3",
        (4, "signers.1.identity"): "an identity requires the issuer that has verified it",
        (5, "signers.2.identity"): "this pattern accepts everyone",
        (6, "signed.max_age"): "'soon' is not an age",
        (6, "signed.not_befor"): "unknown key 'not_befor'",
        (7, "provenance.minimum_versions.trtspec"): "'new' is not a version",
        (8, "bom"): "expected true or false, got the string 'maybe'",
    }


@pytest.mark.parametrize(
    ("rules", "path", "message"),
    [
        ("provenance:", "provenance", "it has no value"),
        ("provenance: {builders: }", "provenance.builders", "it has no value"),
        ("provenance: {minimum_versions: null}", "provenance.minimum_versions", "it has no value"),
        ("signed: {max_age: ~}", "signed.max_age", "it has no value"),
        ("signed: {max_age: 0d}", "signed.max_age", "'0d' is not an age"),
        ("signed: {not_before: '0001-01-01T00:00:00+14:00'}", "signed.not_before", "is not a time"),
        ("artifact: {names: }", "artifact.names", "it has no value"),
        ("trusted_root:", "trusted_root", "it has no value"),
        ("trusted_root: none.json", "trusted_root", "none.json: the file does not exist"),
    ],
)
def test_rule_that_would_require_nothing_is_refused(
    keys: Path, tmp_path: Path, rules: str, path: str, message: str
) -> None:
    with pytest.raises(RecipeError) as error:
        load_policy(write_policy(tmp_path, keys, rules))
    (found,) = error.value.diagnostics
    assert (found.path, message in found.message) == (path, True)


@pytest.mark.parametrize("time", ["9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00"])
def test_impossible_time_of_a_signature_is_refused(
    built: Path, signer: KeySigner, policy: Policy, monkeypatch: pytest.MonkeyPatch, time: str
) -> None:
    monkeypatch.setattr("trtspec.store.signatures.sign._time", lambda now: time)
    sign_directory(built, signer)
    with pytest.raises(SignatureRefused, match="its time is not valid"):
        check_directory(built, policy)


@pytest.mark.parametrize(
    ("signers", "message"),
    [
        ("[{}]", "a signer is either a key, or an issuer with an identity"),
        ("[{issuer: a}]", "a signer is either a key, or an issuer with an identity"),
        ("[{key: a.pub, issuer: a}]", "a signer is either a key, or an issuer with an identity"),
        ("[{key: none.pub}]", "the key's file does not exist"),
        ("[{key: policy.yaml}]", "not a public key in PEM"),
        ("[]", "needs at least 1 item"),
    ],
)
def test_signers_are_validated(tmp_path: Path, signers: str, message: str) -> None:
    (tmp_path / "policy.yaml").write_text(f"schema: trtspec.signature-policy/1\nsigners: {signers}\n")
    with pytest.raises(RecipeError, match=message):
        load_policy(tmp_path / "policy.yaml")


@pytest.mark.parametrize(
    "text", ["", "- a\n", "a: [\n", "schema: trtspec.signature-policy/1\nsigners: &a []\nbom: *a\n"]
)
def test_other_documents_are_no_policies(tmp_path: Path, text: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(RecipeError):
        load_policy(tmp_path / "policy.yaml")


def test_policy_of_the_environment(keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRTSPEC_SIGNATURE_POLICY", raising=False)
    assert find_policy(None) is None
    monkeypatch.setenv("TRTSPEC_SIGNATURE_POLICY", str(write_policy(tmp_path, keys)))
    assert find_policy("") is not None
    monkeypatch.setenv("TRTSPEC_SIGNATURE_POLICY", str(tmp_path / "none.yaml"))
    with pytest.raises(TrtspecError, match="the policy does not exist"):
        find_policy(None)


def test_key_in_the_policy(signed: Path, keys: Path, tmp_path: Path) -> None:
    pem = "\n".join(f"      {line}" for line in (keys / "release.pub").read_text().splitlines())
    path = tmp_path / "policy.yaml"
    path.write_text(f"schema: trtspec.signature-policy/1\nsigners:\n  - key: |\n{pem}\n")
    assert check_directory(signed, load_policy(path)).signer.startswith("key ")


@pytest.mark.parametrize(
    ("text", "pattern", "expected"),
    [
        ("a[bot]", "a[bot]", True),
        ("ab", "a[bot]", False),
        ("a/b/c", "a/*", True),
        ("a.b", "a?b", True),
        ("axb", "a.b", False),
        ("xa", "a", False),
        ("a\nb", "a", False),
    ],
)
def test_patterns(text: str, pattern: str, expected: bool) -> None:
    assert matches(text, pattern) is expected


def test_ages() -> None:
    assert parse_age("2w") == timedelta(days=14)
    for text in ("2", "w", "-1d", "1.5d", "9999999d"):
        with pytest.raises(Exception, match="not an age"):
            parse_age(text)


def test_other_artifact_of_the_same_name_is_refused(signed: Path, policy: Policy, tmp_path: Path) -> None:
    """An attacker replaces files and manifest, and keeps the signature."""
    forged = write_artifact(tmp_path / "forged", {"a.txt": b"b"})
    (signed / "attestations").rename(forged / "attestations")
    with pytest.raises(SignatureRefused):
        check_directory(forged, policy)
