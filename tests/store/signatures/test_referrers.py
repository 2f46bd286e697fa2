# SPDX-License-Identifier: Apache-2.0
"""Signatures as referrers: of registries with and without their listing, and of image layouts."""

from __future__ import annotations

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.store.registries.artifacts import make_artifact
from tests.store.registries.conftest import QUICK, REAL
from tests.store.registries.double import Fault, Registry
from tests.store.registries.real import skopeo
from trtspec.core.errors import SignatureRefused, TrtspecError
from trtspec.store.artifact import manifest_sha256
from trtspec.store.registries.listing import list_artifacts
from trtspec.store.registries.pull import check_location, pull_artifact
from trtspec.store.registries.push import push_artifact
from trtspec.store.signatures.keys import KeySigner
from trtspec.store.signatures.policy import Policy
from trtspec.store.signatures.sign import sign_directory, sign_location

BUNDLE_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
INDEX_TYPE = "application/vnd.oci.image.index.v1+json"


@pytest.mark.parametrize("lists", [False, True])
def test_registry_keeps_signatures(
    registry: Registry, built: Path, signer: KeySigner, policy: Policy, tmp_path: Path, lists: bool
) -> None:
    registry.lists_referrers = lists
    address = f"oci://{registry.host}/team/tiny:v1"
    push_artifact(built, address, patience=QUICK)
    with pytest.raises(SignatureRefused):
        check_location(address, policy, patience=QUICK)
    (listed,) = list_artifacts(address, patience=QUICK)
    assert listed.signatures == 0
    assert sign_location(address, signer, patience=QUICK).digest == listed.digest
    (listed,) = list_artifacts(address, patience=QUICK)  # the index of referrers is no artifact
    assert listed.signatures == 1
    assert check_location(address, policy, patience=QUICK).signer.endswith("release.pub")
    assert check_location(f"oci://{registry.host}/team/tiny@{listed.digest}", policy, patience=QUICK)
    pulled = pull_artifact(address, lambda *_: tmp_path / "out", policy=policy, patience=QUICK)
    assert pulled.attestations == 1
    has_index = ("team/tiny", listed.digest.replace(":", "-")) in registry.manifests
    assert has_index is not lists


def test_tag_changes_only_after_its_signatures_are_there(registry: Registry, signed: Path) -> None:
    push_artifact(signed, f"oci://{registry.host}/team/tiny:v1", patience=QUICK)
    puts = [each.path.rpartition("/")[2] for each in registry.requests("PUT .*/manifests/")]
    assert puts[-1] == "v1"
    assert len(puts) == 3  # the referrer, its index, the tag
    again = push_artifact(signed, f"oci://{registry.host}/team/tiny:v1", patience=QUICK)
    assert again.sent_bytes == 0
    (listed,) = list_artifacts(f"oci://{registry.host}/team/tiny", patience=QUICK)
    assert listed.signatures == 1


def test_endless_list_of_referrers_ends(registry: Registry, built: Path, policy: Policy) -> None:
    address = f"oci://{registry.host}/team/tiny:v1"
    digest = push_artifact(built, address, patience=QUICK).digest
    link = {"Link": f'</v2/team/tiny/referrers/{digest}>; rel="next"', "Content-Length": "16"}
    registry.faults = [Fault("GET .*/referrers/", times=10_000, status=200, headers=link, extra=b'{"manifests":[]}')]
    with pytest.raises(SignatureRefused, match="it is not signed"):
        check_location(address, policy, patience=QUICK)
    assert len(registry.requests("GET .*/referrers/")) < 1000


def test_foreign_entries_of_an_index_are_kept(registry: Registry, built: Path, signer: KeySigner) -> None:
    address = f"oci://{registry.host}/team/tiny:v1"
    digest = push_artifact(built, address, patience=QUICK).digest
    foreign = {"mediaType": INDEX_TYPE, "digest": f"sha256:{'0' * 64}", "size": 2, "data": "e30=", "urls": []}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [foreign]}
    registry.manifests["team/tiny", digest.replace(":", "-")] = json.dumps(index).encode()
    sign_location(address, signer, patience=QUICK)
    entries = json.loads(registry.manifests["team/tiny", digest.replace(":", "-")])["manifests"]
    assert (entries[0], len(entries)) == (foreign, 2)


def test_lying_registry_is_refused(registry: Registry, signed: Path, policy: Policy) -> None:
    address = f"oci://{registry.host}/team/tiny:v1"
    push_artifact(signed, address, patience=QUICK)
    for bit in range(0, 8000, 997):
        registry.faults = [Fault(r"GET .*/manifests/sha256-", flip=bit, times=99)]
        with pytest.raises(SignatureRefused):
            check_location(address, policy, patience=QUICK)
        registry.faults = [Fault(r"GET .*/blobs/", flip=bit, times=99)]
        with pytest.raises(TrtspecError):
            check_location(address, policy, patience=QUICK)
    registry.faults = [Fault(r"GET .*/manifests/sha256-", status=403, times=99)]
    with pytest.raises(SignatureRefused, match="the list of referrers cannot be read"):
        check_location(address, policy, patience=QUICK)
    registry.faults = []
    assert check_location(address, policy, patience=QUICK)


def test_pull_without_a_policy_ignores_unreadable_signatures(registry: Registry, signed: Path, tmp_path: Path) -> None:
    address = f"oci://{registry.host}/team/tiny:v1"
    push_artifact(signed, address, patience=QUICK)
    registry.faults = [Fault(r"GET .*/manifests/sha256-", extra=b"]", times=99)]
    pulled = pull_artifact(address, lambda *_: tmp_path / "out", patience=QUICK)
    assert (pulled.attestations, pulled.signature) == (0, None)


@pytest.mark.parametrize("name", ["layout", "layout.tar"])
def test_layout_keeps_signatures(signed: Path, policy: Policy, tmp_path: Path, name: str) -> None:
    address = f"file:{tmp_path}/{name}:v1"
    pushed = push_artifact(signed, address)
    assert check_location(address, policy)
    (listed,) = list_artifacts(address)
    assert (listed.tag, listed.signatures) == ("v1", 1)
    push_artifact(signed, address)
    (listed,) = list_artifacts(address)
    assert (listed.digest, listed.signatures) == (pushed.digest, 1)


def test_layout_lists_referrers_as_oras_does(signed: Path, tmp_path: Path) -> None:
    """As entries of index.json without a tag, with their type; their manifests name the subject."""
    pushed = push_artifact(signed, f"file:{tmp_path}/layout:v1")
    index = json.loads((tmp_path / "layout" / "index.json").read_bytes())
    (entry,) = [each for each in index["manifests"] if each["artifactType"] == BUNDLE_TYPE]
    assert "org.opencontainers.image.ref.name" not in entry["annotations"]
    manifest = json.loads((tmp_path / "layout" / "blobs" / "sha256" / entry["digest"][7:]).read_bytes())
    assert manifest["subject"]["digest"] == pushed.digest
    assert manifest["artifactType"] == manifest["layers"][0]["mediaType"] == BUNDLE_TYPE
    assert manifest["annotations"] == {
        "dev.sigstore.bundle.content": "dsse-envelope",
        "dev.sigstore.bundle.predicateType": "https://sigstore.dev/cosign/sign/v1",
    }


def test_signature_in_a_tar_file_requires_a_push(built: Path, signer: KeySigner, tmp_path: Path) -> None:
    address = f"file:{tmp_path}/layout.tar:v1"
    push_artifact(built, address)
    with pytest.raises(TrtspecError, match="did not keep the signature") as error:
        sign_location(address, signer)
    assert "push it again" in str(error.value.hint)


def test_real_registry_keeps_signatures_where_cosign_looks(
    docker_registry: str, built: Path, signer: KeySigner, policy: Policy, tmp_path: Path
) -> None:
    sign_directory(built, signer)
    address = f"oci://{docker_registry}/signed/tiny:v1"
    pushed = push_artifact(built, address, patience=REAL)
    assert check_location(address, policy, patience=REAL)
    url = f"http://{docker_registry}/v2/signed/tiny/manifests"
    request = urllib.request.Request(f"{url}/{pushed.digest.replace(':', '-')}", headers={"Accept": INDEX_TYPE})
    with urllib.request.urlopen(request, timeout=10) as reply:
        index = json.load(reply)
    assert [each["artifactType"] for each in index["manifests"]] == [BUNDLE_TYPE]
    skopeo("copy", "--src-tls-verify=false", f"docker://{docker_registry}/signed/tiny:v1", f"oci:{tmp_path}/copy:v1")


def test_concurrent_signers_lose_no_signature(
    docker_registry: str, built: Path, signer: KeySigner, other_signer: KeySigner
) -> None:
    address = f"oci://{docker_registry}/race/signed:v1"
    push_artifact(built, address, patience=REAL)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: sign_location(address, each, patience=REAL), [signer, other_signer] * 2))
    (listed,) = list_artifacts(address, patience=REAL)
    assert listed.signatures == 4


def test_signature_moves_with_the_artifact_and_stays_with_its_digest(
    registry: Registry, signed: Path, policy: Policy, tmp_path: Path
) -> None:
    """A tag that is moved to an unsigned artifact has no signature."""
    address = f"oci://{registry.host}/team/tiny:v1"
    push_artifact(signed, address, patience=QUICK)
    push_artifact(make_artifact(tmp_path / "other", 100, 100), address, patience=QUICK)
    with pytest.raises(SignatureRefused, match="it is not signed"):
        check_location(address, policy, patience=QUICK)
    assert manifest_sha256(signed)
