# SPDX-License-Identifier: Apache-2.0
"""Signatures in repositories of the Hugging Face hub (a double), beside the artifact in its branch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.registries.artifacts import make_artifact
from tests.store.registries.conftest import QUICK
from tests.store.registries.hub_double import REPOSITORY, HubDouble, connected_hub
from trtspec.core.errors import SignatureRefused
from trtspec.store.registries.http_client import RegistryError
from trtspec.store.registries.listing import list_artifacts
from trtspec.store.registries.locations.hf import REFERRERS
from trtspec.store.registries.pull import check_location, pull_artifact
from trtspec.store.registries.push import push_artifact
from trtspec.store.signatures.keys import KeySigner
from trtspec.store.signatures.policy import Policy
from trtspec.store.signatures.sign import sign_location

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
ADDRESS = f"hf:{REPOSITORY}:v1"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    with connected_hub(monkeypatch) as running:
        yield running


def referrers(hub: HubDouble, branch: str = "v1") -> dict[str, bytes]:
    return {path: data for path, data in hub.commits[hub.branches[branch]].items() if path.startswith(REFERRERS)}


def test_pushed_signature_is_in_the_artifacts_commit(
    hub: HubDouble, signed: Path, policy: Policy, tmp_path: Path
) -> None:
    pushed = push_artifact(signed, ADDRESS, patience=QUICK)
    assert (pushed.attestations, len(hub.commits)) == (1, 2)
    assert check_location(ADDRESS, policy, patience=QUICK).signer.endswith("release.pub")
    pulled = pull_artifact(ADDRESS, lambda *_: tmp_path / "out", policy=policy, patience=QUICK)
    assert pulled.attestations == 1
    listed = {each.tag: each.signatures for each in list_artifacts(ADDRESS, patience=QUICK)}
    assert listed["v1"] == 1
    before = referrers(hub)
    push_artifact(signed, ADDRESS, patience=QUICK)
    assert referrers(hub) == before


def test_artifact_on_the_hub_is_signed_with_a_commit(
    hub: HubDouble, built: Path, signer: KeySigner, other_signer: KeySigner, policy: Policy
) -> None:
    push_artifact(built, ADDRESS, patience=QUICK)
    with pytest.raises(SignatureRefused):
        check_location(ADDRESS, policy, patience=QUICK)
    sign_location(ADDRESS, other_signer, patience=QUICK)
    with pytest.raises(SignatureRefused):
        check_location(ADDRESS, policy, patience=QUICK)
    sign_location(ADDRESS, signer, patience=QUICK)
    assert check_location(ADDRESS, policy, patience=QUICK)
    assert {each.tag: each.signatures for each in list_artifacts(ADDRESS, patience=QUICK)}["v1"] == 2
    hub.fails["POST .*/commit/"] = 412
    with pytest.raises(RegistryError, match="HTTP status 412"):
        sign_location(ADDRESS, other_signer, patience=QUICK)


def test_signatures_of_another_artifact_leave_the_branch_with_it(
    hub: HubDouble, signed: Path, policy: Policy, tmp_path: Path
) -> None:
    push_artifact(signed, ADDRESS, patience=QUICK)
    push_artifact(make_artifact(tmp_path / "other", 5000, 2000, draft_seed=1), ADDRESS, patience=QUICK)
    assert referrers(hub) == {}
    with pytest.raises(SignatureRefused):
        check_location(ADDRESS, policy, patience=QUICK)


@pytest.mark.parametrize("change", ["moved", "flipped", "missing", "no list"])
def test_wrong_referrers_are_refused(hub: HubDouble, signed: Path, policy: Policy, change: str) -> None:
    push_artifact(signed, ADDRESS, patience=QUICK)
    tree = hub.commits[hub.branches["v1"]]
    for path, data in referrers(hub).items():
        if change == "moved":
            folder, _, name = path.rpartition("/")
            del tree[path]
            tree[f"{folder[:-1]}{'1' if folder[-1] == '0' else '0'}/{name}"] = data
        elif change == "no list":
            tree[path] = b"[]" if path.endswith("index.json") else data
        elif not path.endswith("index.json"):
            del tree[path]
            if change == "flipped":
                tree[path] = bytes([data[0] ^ 1]) + data[1:]
    with pytest.raises(SignatureRefused):
        check_location(ADDRESS, policy, patience=QUICK)
