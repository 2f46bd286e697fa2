# SPDX-License-Identifier: Apache-2.0
"""`trtspec cache --remote`: listing, checking and removal; roots that keep entries."""

from __future__ import annotations

import json
import os
import time
from datetime import date
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.store.registries.conftest import QUICK, REAL
from tests.store.registries.double import Fault, Registry
from tests.store.team.conftest import Machines
from trtspec.core.errors import TrtspecError
from trtspec.planning.roots import root_keys
from trtspec.store.registries.http_client import RegistryError
from trtspec.store.registries.locations.file import UNUSED_S
from trtspec.store.team.documents import USED, entry_tag, with_use
from trtspec.store.team.maintenance import check_remote, list_remote, remove_remote


def ignore(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


def blobs(machines: Machines) -> set[Path]:
    return {*(machines.folder / "team/blobs/sha256").iterdir()}


@pytest.fixture
def filled(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> Machines:
    """A team store with the entries a, b and c."""
    for text in "abc":
        machines.store("one").obtain(machines.step(text))
    monkeypatch.setenv("TRTSPEC_REMOTE", machines.address)
    return machines


def test_list_and_prune_to_a_size(filled: Machines, trtspec: Run) -> None:
    listed = trtspec("cache", "--remote", "--json").document
    assert [(each["name"], each["bytes"]) for each in listed["entries"]] == [
        (f"write-{text}", 1001) for text in sorted("abc", key=lambda text: filled.step(text).key)
    ]
    assert (listed["root"], listed["bytes"]) == (filled.address, 3003)
    tried = trtspec("cache", "--remote", "--prune", "--max-size", "2KB", "--dry-run", "--json").document
    pruned = trtspec("cache", "--remote", "--prune", "--max-size", "2KB", "--json").document
    assert pruned["removed"] == tried["removed"]
    assert (len(pruned["removed"]), len(pruned["entries"]), len(tried["entries"])) == (2, 1, 3)
    assert len(list_remote(filled.address, ignore)) == 1


def test_unreferenced_blobs_are_removed_after_an_hour(filled: Machines) -> None:
    before = blobs(filled)
    remove_remote(filled.address, [filled.step("a").key], ignore)
    assert blobs(filled) == before
    old = time.time() - UNUSED_S - 1
    for path in before:
        os.utime(path, (old, old))
    remove_remote(filled.address, [], ignore)
    assert len(before - blobs(filled)) == 4  # two files, the document and the manifest
    assert check_remote(filled.address, lambda key: None, ignore) == []
    assert filled.store("two").obtain(filled.step("b")).status == "fetched"
    assert filled.store("two").obtain(filled.step("a")).status == "built"


def test_removal_beside_a_writer_publishes_nothing_incomplete(
    filled: Machines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step, store = filled.step("d"), filled.store("two")
    monkeypatch.setattr("trtspec.store.registries.locations.file.UNUSED_S", -1.0)
    monkeypatch.setattr("trtspec.store.team.client.failpoint", lambda name: remove_remote(filled.address, [], ignore))
    assert store.obtain(step).status == "built"
    assert "was removed" in caplog.text
    assert step.key not in {each.key for each in list_remote(filled.address, ignore)}
    assert check_remote(filled.address, lambda key: None, ignore) == []


def test_removal_on_a_real_registry(docker_registry: str, machines: Machines) -> None:
    address = f"oci://{docker_registry}/team/removal"
    machines.patience = REAL
    for text in "ab":
        machines.store("one", address=address).obtain(machines.step(text))
    assert len(list_remote(address, ignore)) == 2
    assert check_remote(address, lambda key: None, ignore) == []
    remove_remote(address, [machines.step("a").key, "0" * 64], ignore)
    assert [each.name for each in list_remote(address, ignore)] == ["write-b"]
    assert machines.store("two", address=address).obtain(machines.step("a")).status == "built"


def test_registry_that_does_not_delete(registry: Registry, machines: Machines) -> None:
    address = f"oci://{registry.host}/team/store"
    machines.store("one", address=address).obtain(machines.step())
    registry.faults.append(Fault("DELETE", status=405))
    with pytest.raises(RegistryError, match="does not delete manifests: HTTP status 405\nhint: enable deletion"):
        remove_remote(address, [machines.step().key], ignore, QUICK)


def test_verify_finds_missing_files_and_other_outputs(filled: Machines, trtspec: Run) -> None:
    missing = max(blobs(filled), key=lambda path: (path.read_bytes() == b"a" * 1000, path.name))
    missing.unlink()
    checked = trtspec("cache", "--remote", "--verify", "--json")
    assert (checked.code, checked.document["problems"]) == (102, [f"{filled.step('a').key}: files/two is missing"])
    entry = filled.store("one").get(filled.step("b").key).entry
    assert entry
    other = entry.model_copy(update={"files": entry.files[:1]})
    problems = check_remote(filled.address, lambda key: other if key == entry.key else None, ignore)
    assert f"{entry.key}: this machine has another output for this key" in problems


def test_uses_are_recorded_once_a_day(filled: Machines) -> None:
    index = filled.folder / "team/index.json"
    tag = entry_tag(filled.step("a").key)
    (digest,) = [
        each["digest"] for each in json.loads(index.read_text())["manifests"] if tag in each["annotations"].values()
    ]
    data = (filled.folder / "team/blobs/sha256" / digest[7:]).read_bytes()
    assert USED not in json.loads(data)["annotations"]
    changed = with_use(data, "2026-11-28")
    assert changed
    assert json.loads(changed)["annotations"][USED] == "2026-11-28"
    assert with_use(changed, "2026-11-28") is None
    filled.store("two", "read").obtain(filled.step("a"))
    assert digest in index.read_text()
    filled.store("three").obtain(filled.step("a"))
    assert digest not in index.read_text()
    used = next(each for each in list_remote(filled.address, ignore) if each.key == filled.step("a").key)
    assert used.last_used.date() <= date.today()
    before = index.read_bytes()
    filled.store("four").obtain(filled.step("a"))
    assert index.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--keep", "quickstart"), "--keep requires --prune"),
        (("--remote", "--clear"), "--clear is for this machine's store"),
        (("--remote",), "--remote requires a team store"),
    ],
)
def test_conflicting_options(arguments: tuple[str, ...], message: str, trtspec: Run) -> None:
    refused = trtspec("cache", *arguments)
    assert (refused.code, message in refused.err) == (1, True)


def test_unknown_root_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrtspecError):
        root_keys([str(tmp_path / "missing.yaml")])
