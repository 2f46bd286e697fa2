# SPDX-License-Identifier: Apache-2.0
"""Deployments whose state files were lost or damaged while their servers run."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest

import trtspec.deployment.journal as journal_module
from tests._support.deployed import deploy_local
from tests.serving.triton.artifact import make_echo_artifact
from trtspec.core.errors import DeployError, TrtspecError
from trtspec.core.processes import session_processes
from trtspec.deployment.base import deployments, history, status, stop
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord, deployment_names, read_record
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.rollout.state import FILE, RolloutPolicy, RolloutRecord, read_rollout, save_rollout
from trtspec.serving.triton.server import find_server

GARBAGE = [b"", b"null", b"{", b"[]", b"{}", b"1", b'"x"', b"\xff\xfe", b"[" * 100_000, b'{"name": null, "state": 3}']


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeploymentRecord]:
    """The record of a running deployment."""
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path / "state"))
    try:
        find_server()
    except DeployError as error:
        pytest.skip(str(error))
    deployed = deploy_local(make_echo_artifact(tmp_path / "echo"), DeployOptions(detach=True, timeout_s=60)).record
    yield deployed
    for pid in session_processes(deployed.pid, deployed.started):
        os.kill(pid, 9)


def lose_state(root: Path) -> None:
    (root / "state.json").unlink()


def damage_state(root: Path) -> None:
    (root / "state.json").write_text("{")


def lose_all_records(root: Path) -> None:
    for path in (root / "state.json", *root.rglob("record.json")):
        path.unlink()


def lose_everything(root: Path) -> None:
    shutil.rmtree(root)


@pytest.mark.triton
@pytest.mark.slow
@pytest.mark.parametrize("lose", [lose_state, damage_state, lose_all_records, lose_everything])
def test_deployment_that_lost_its_state_is_listed_shown_and_stopped(record: DeploymentRecord, lose) -> None:
    lose(DeploymentJournal("echo").root)
    assert [each["name"] for each in deployments()] == ["echo"]
    assert deployments()[0]["state"] == "live"
    found = DeploymentJournal("echo").read_existing()
    same = ("pid", "started", "http", "grpc", "metrics", "shm_prefix", "revision", "host")
    assert [getattr(found, key) for key in same] == [getattr(record, key) for key in same]
    if lose is not lose_everything:  # its sockets were deleted too
        assert status("echo")["state"] == "live"
    ended = stop("echo")
    assert ended["was_running"]
    assert ended["state"] == "stopped"
    assert not session_processes(record.pid, record.started)


@pytest.mark.triton
@pytest.mark.slow
def test_deploy_finds_a_deployment_that_lost_its_state(record: DeploymentRecord, tmp_path: Path) -> None:
    lose_state(DeploymentJournal("echo").root)
    again = deploy_local(tmp_path / "echo", DeployOptions(detach=True, timeout_s=60))
    assert (again.record.pid, again.record.state) == (record.pid, "live")


def a_record(**values: object) -> DeploymentRecord:
    return DeploymentRecord("fake", "live", "x", os.getpid(), None, 1, 2, 3, "trtspec_none_", True, **values)  # type: ignore[arg-type]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeploymentJournal:
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path / "state"))
    journal = DeploymentJournal("fake")
    journal.root.mkdir(parents=True)
    journal.write(a_record())
    return journal


def test_copy_of_a_record_is_never_older_than_the_state_file(
    journal: DeploymentJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process that reads a state writes the next one, and its copy, before the first writer goes on."""
    copy = journal.root / "revisions" / "1" / "record.json"
    copy.parent.mkdir(parents=True)
    put = journal_module.replace_file

    def put_and_meet_a_fast_reader(path: Path, content: bytes) -> None:
        put(path, content)
        if path.name == "state.json" and read_record(path).state == "smoke":
            journal.move(read_record(path), "live")

    monkeypatch.setattr(journal_module, "replace_file", put_and_meet_a_fast_reader)
    journal.move(a_record(revision=1), "smoke")
    assert read_record(copy).state == "live"


@pytest.mark.parametrize("content", GARBAGE)
def test_damaged_state_of_dead_deployment_can_be_removed_as_hinted(journal: DeploymentJournal, content: bytes) -> None:
    (journal.root / "state.json").write_bytes(content)
    with pytest.raises(DeployError, match="state cannot be read") as caught:
        journal.read()
    assert caught.value.hint == "none of its processes is running; remove the file"
    (journal.root / "state.json").unlink()
    assert journal.read() is None
    assert deployment_names() == []


@pytest.mark.parametrize("content", GARBAGE)
def test_damaged_rollout_file_is_reported_as_an_error(journal: DeploymentJournal, content: bytes) -> None:
    (journal.root / FILE).write_bytes(content)
    with pytest.raises(DeployError, match="the rollout cannot be read"):
        status("fake")


@pytest.mark.parametrize("name", ["state.json", FILE, "journal.jsonl"])
def test_mutated_state_file_never_causes_an_unexpected_exception(journal: DeploymentJournal, name: str) -> None:
    """With replaced values, missing keys and changed bytes, commands fail with an error message."""
    save_rollout(journal, RolloutRecord(a_record(), RolloutPolicy(), ("lossless",), shadow={"verdict": "x"}))
    path, chance = journal.root / name, random.Random(0)
    values = [None, True, -1, 1e300, "", "x", [], [None], {}, {"a": None}, "\ud800", 10**30]
    original = path.read_bytes()
    for _ in range(int(os.environ.get("TRTSPEC_FUZZ_EXAMPLES", "150"))):
        document = json.loads(original.splitlines()[0] if name.endswith("l") else original)
        for _ in range(chance.randrange(1, 3)):
            place = chance.choice([document, *(each for each in document.values() if isinstance(each, dict) and each)])
            key = chance.choice([*place, "other"])
            place[key] = chance.choice(values)
            if chance.random() < 0.2:
                del place[key]
        data = bytearray(json.dumps(document).encode() + b"\n")
        if chance.random() < 0.3:
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        for command in (lambda: status("fake"), deployments, lambda: history("fake"), lambda: read_rollout(journal)):
            with suppress(TrtspecError):
                json.dumps(command(), default=asdict)
