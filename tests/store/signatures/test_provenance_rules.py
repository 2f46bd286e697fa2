# SPDX-License-Identifier: Apache-2.0
"""Signed provenance and bills of materials, and the rules of policies about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.store.registries.artifacts import make_artifact
from tests.store.signatures.documents import load, predicate, write_documents
from tests.store.signatures.policies import write_policy
from trtspec.core.errors import DigestMismatch, SignatureRefused
from trtspec.store.registries.pull import check_directory, check_location, pull_artifact
from trtspec.store.registries.push import push_artifact
from trtspec.store.signatures.keys import KeySigner
from trtspec.store.signatures.policy import load_policy
from trtspec.store.signatures.provenance_rules import check_provenance
from trtspec.store.signatures.sign import sign_directory


@pytest.fixture
def described(built: Path, signer: KeySigner) -> Path:
    write_documents(built)
    sign_directory(built, signer)
    return built


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("builders: ['urn:trtspec:builder:*']", ""),
        ("builders: ['https://ci.example.com/*']", "the builder 'urn:trtspec:builder:local' is not accepted"),
        ("recipes: [tiny]", ""),
        (f"recipes: ['sha256:{'a' * 64}']", ""),
        ("recipes: [other]", "the recipe 'tiny' is not accepted, only other"),
        ("sources: ['https://huggingface.co/team/*']", ""),
        ("sources: ['https://huggingface.co/other/*']", "the source 'https://huggingface.co/team/model/tree/abc'"),
        ("minimum_versions: {trtspec: 0.2.0, torch: 2.0.0}", ""),
        ("minimum_versions: {trtspec: 0.3.0}", "trtspec 0.3.0 or newer is required; the provenance has 0.2.0"),
        ("minimum_versions: {vllm: 0.3.0}", "the provenance has none"),
    ],
)
def test_rules(described: Path, keys: Path, tmp_path: Path, rule: str, reason: str) -> None:
    policy = load_policy(write_policy(tmp_path, keys, f"provenance: {{{rule}}}"))
    if not reason:
        assert check_directory(described, policy).checks[-1].name == "provenance"
        return
    with pytest.raises(SignatureRefused, match="no accepted provenance") as error:
        check_directory(described, policy)
    assert reason in error.value.message


def test_required_documents_have_to_be_signed(built: Path, signer: KeySigner, keys: Path, tmp_path: Path) -> None:
    sign_directory(built, signer)
    for rule, kind in (("provenance: {builders: ['*']}", "provenance"), ("bom: true", "bom")):
        policy = load_policy(write_policy(tmp_path, keys, rule))
        write_documents(built)  # unsigned
        with pytest.raises(SignatureRefused, match=f"no accepted {kind}"):
            check_directory(built, policy)


def test_provenance_of_another_signer_does_not_count(
    built: Path, signer: KeySigner, other_signer: KeySigner, keys: Path, tmp_path: Path
) -> None:
    sign_directory(built, signer)
    write_documents(built)
    sign_directory(built, other_signer)
    policy = load_policy(write_policy(tmp_path, keys, "provenance: {builders: ['*']}"))
    with pytest.raises(SignatureRefused, match="no accepted provenance"):
        check_directory(built, policy)


def test_unsigned_copy_has_to_equal_the_signed_document(described: Path, keys: Path, tmp_path: Path) -> None:
    policy = load_policy(write_policy(tmp_path, keys, "bom: true\nprovenance: {builders: ['*']}"))
    for name in ("bom.cdx.json", "provenance.json"):
        path = described / "attestations" / name
        good = path.read_bytes()
        path.write_bytes(good.replace(b"tiny", b"tinx"))
        with pytest.raises(SignatureRefused, match=f"{name} differs from the signed document"):
            check_directory(described, policy)
        path.write_bytes(good)
    assert check_directory(described, policy)


def test_documents_of_another_artifact_are_not_signed(described: Path, signer: KeySigner, tmp_path: Path) -> None:
    other = make_artifact(tmp_path / "other", 100, 100)
    (described / "attestations").rename(other / "attestations")
    for name, what in (("provenance.json", "provenance"), ("bom.cdx.json", "bill of materials")):
        with pytest.raises(DigestMismatch, match=f"the {what} is of another artifact"):
            sign_directory(other, signer)
        (other / "attestations" / name).unlink()
    sign_directory(other, signer)


def test_documents_travel_with_the_artifact(described: Path, keys: Path, tmp_path: Path) -> None:
    address = f"file:{tmp_path}/layout:v1"
    assert push_artifact(described, address).attestations == 5
    policy = load_policy(write_policy(tmp_path, keys, "bom: true\nprovenance: {builders: ['*']}"))
    assert [each.name for each in check_location(address, policy).checks] == ["signature", "time", "provenance", "bom"]
    pulled = pull_artifact(address, lambda *_: tmp_path / "out", policy=policy)
    assert pulled.attestations == 5
    for path in (described / "attestations").iterdir():
        assert (tmp_path / "out" / "attestations" / path.name).read_bytes() == path.read_bytes()
    index = load(tmp_path / "layout" / "index.json")
    types = sorted(each["artifactType"] for each in index["manifests"])
    assert types == [
        "application/vnd.cncf.model.manifest.v1+json",
        "application/vnd.cyclonedx+json",
        *["application/vnd.dev.sigstore.bundle.v0.3+json"] * 3,
        "application/vnd.in-toto+json",
    ]


def test_malformed_predicates_are_refused(keys: Path, tmp_path: Path) -> None:
    rules = "provenance: {builders: ['a'], recipes: ['b'], sources: ['c'], minimum_versions: {trtspec: 1.0.0}}"
    required = load_policy(write_policy(tmp_path, keys, rules)).document.provenance
    assert required is not None
    for found in ({}, {"runDetails": []}, {"runDetails": {"builder": 3}}, {"buildDefinition": {"a": []}}, predicate()):
        with pytest.raises(SignatureRefused):
            check_provenance(found, required)
