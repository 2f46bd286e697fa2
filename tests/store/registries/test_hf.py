# SPDX-License-Identifier: Apache-2.0
"""Push and pull on a double of the Hugging Face hub, with the real huggingface_hub."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.store.registries.artifacts import DRAFT, SMALL, TARGET, contents, make_artifact, seal, write_artifact
from tests.store.registries.conftest import QUICK
from tests.store.registries.hub_double import REPOSITORY, HubDouble, connected_hub
from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.store.registries.http_client import RegistryError
from trtspec.store.registries.listing import list_artifacts
from trtspec.store.registries.locations.hf import CONFIG, IMAGE_MANIFEST, parse_address
from trtspec.store.registries.pull import pull_artifact
from trtspec.store.registries.push import push_artifact

pytest.importorskip("huggingface_hub", reason="huggingface_hub is not installed")
ADDRESS = f"hf:{REPOSITORY}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    with connected_hub(monkeypatch) as running:
        yield running


def test_push_pull_and_list(hub: HubDouble, built: Path, tmp_path: Path) -> None:
    pushed = push_artifact(built, f"{ADDRESS}:v1", patience=QUICK)
    tree = hub.commits[hub.branches["v1"]]
    assert {**contents(built), CONFIG: tree[CONFIG], IMAGE_MANIFEST: tree[IMAGE_MANIFEST]} == tree
    assert hub.commits[hub.branches["main"]] == {"README.md": b"# before\n"}
    assert {*hub.branches} == {"main", "v1"}
    pulled = pull_artifact(f"{ADDRESS}:v1", lambda *_: tmp_path / "out", patience=QUICK)
    assert (pulled.digest, contents(pulled.artifact)) == (pushed.digest, contents(built))
    listed = {each.tag: each for each in list_artifacts(ADDRESS, patience=QUICK)}
    assert listed["v1"].digest == pushed.digest
    assert "no artifact of trtspec" in listed["main"].problem


def test_second_push_sends_only_new_large_files_in_one_commit(hub: HubDouble, built: Path, tmp_path: Path) -> None:
    push_artifact(built, ADDRESS, patience=QUICK)
    other = make_artifact(tmp_path / "other", draft_seed=1)
    (other / "README.md").unlink()
    seal(other, sorted({*SMALL, TARGET, DRAFT} - {"README.md"}))
    hub.seen.clear()
    pushed = push_artifact(other, f"{ADDRESS}:main", patience=QUICK)
    assert pushed.sent_bytes < (2 << 20) + 1000
    assert [each for each in hub.seen if each.startswith("PUT")] == [
        f"PUT /lfs/{hashlib.sha256((other / DRAFT).read_bytes()).hexdigest()}"
    ]
    assert len(hub.commits) == 3
    assert "README.md" not in hub.commits[hub.branches["main"]]
    assert contents(pull_artifact(ADDRESS, lambda *_: tmp_path / "out").artifact) == contents(other)


def test_moved_file_is_copied_on_the_hub(hub: HubDouble, built: Path, tmp_path: Path) -> None:
    push_artifact(built, ADDRESS, patience=QUICK)
    files = {name: data for name, data in contents(built).items() if name != "manifest.json"}
    files["checkpoints/target/moved.safetensors"] = files.pop(TARGET)
    moved = write_artifact(tmp_path / "moved", files)
    hub.seen.clear()
    push_artifact(moved, ADDRESS, patience=QUICK)
    assert not [each for each in hub.seen if each.startswith("PUT")]
    assert contents(pull_artifact(ADDRESS, lambda *_: tmp_path / "out").artifact) == contents(moved)


def test_concurrent_push_is_refused(hub: HubDouble, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.fails["POST .*/commit/"] = 412
    with pytest.raises(RegistryError, match="HTTP status 412") as refused:
        push_artifact(built, ADDRESS, patience=QUICK)
    assert "push again" in (refused.value.hint or "")
    hub.fails["POST .*/commit/"] = 412
    with pytest.raises(RegistryError, match="HTTP status 412"):
        push_artifact(built, f"{ADDRESS}:v1", patience=QUICK)
    assert {*hub.branches} == {"main"}


def test_changed_file_is_not_published(hub: HubDouble, built: Path) -> None:
    (built / DRAFT).write_bytes(b"x" * (built / DRAFT).stat().st_size)
    with pytest.raises(DigestMismatch, match="nothing was published"):
        push_artifact(built, ADDRESS, patience=QUICK)
    assert len(hub.commits) == 1


def test_changed_file_on_the_hub_is_refused(hub: HubDouble, built: Path, tmp_path: Path) -> None:
    push_artifact(built, ADDRESS, patience=QUICK)
    digest = hashlib.sha256((built / DRAFT).read_bytes()).hexdigest()
    hub.lfs[digest] = bytes([hub.lfs[digest][0] ^ 1]) + hub.lfs[digest][1:]
    with pytest.raises(DigestMismatch, match="is not the promised file"):
        pull_artifact(ADDRESS, lambda *_: tmp_path / "out", patience=QUICK)
    assert not (tmp_path / "out").exists()


def test_mistakes_are_explained(hub: HubDouble, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RegistryError, match="no revision v9"):
        pull_artifact(f"{ADDRESS}:v9", patience=QUICK)
    with pytest.raises(RegistryError, match="no such repository"):
        push_artifact(built, "hf:team/other", patience=QUICK)
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(RegistryError, match="no access") as refused:
        push_artifact(built, ADDRESS, patience=QUICK)
    assert "hf_wrong" not in str(refused.value)


@pytest.mark.parametrize("rest", ["model", "team/", "a/b/c", "team/model:", "team/../model", "team/model:a/b"])
def test_malformed_addresses(rest: str) -> None:
    with pytest.raises(TrtspecError, match="is not hf:OWNER/NAME:REVISION"):
        parse_address(rest)


def test_addresses() -> None:
    assert parse_address("team/model") == parse_address("//team/model:main") == ("team/model", "main")
