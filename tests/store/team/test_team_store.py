# SPDX-License-Identifier: Apache-2.0
"""Read-through and write-back of store entries, with a layout in a directory and with a real registry."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest

from tests.store.registries.conftest import REAL
from tests.store.registries.s3_servers import SECRET, USER, running_rclone
from tests.store.team.conftest import Machines
from tests.store.writing import Append, Write, count, fail, leftovers, overwrite
from trtspec.core.errors import DigestMismatch, StepError, TrtspecError
from trtspec.core.hashing import Segments
from trtspec.planning.pipeline import open_store
from trtspec.store.executor import Unobserved, execute
from trtspec.store.plan import StepPlan, plan_status
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.store.store import Store
from trtspec.store.team.client import PAUSE_S, TeamStore
from trtspec.store.team.documents import entry_tag, tagged_key
from trtspec.store.team.environment import open_remote
from trtspec.store.team.maintenance import list_remote, remove_remote


@pytest.fixture(params=["file", "oci"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Machines:
    """A team store in a directory, and one in a real registry."""
    if request.param == "file":
        return Machines(tmp_path, f"file:{tmp_path}/team")
    host = request.getfixturevalue("docker_registry")
    return Machines(tmp_path, f"oci://{host}/team/{tmp_path.name.lower()}", REAL)


@dataclass(frozen=True)
class Odd(Step):
    """Writes an empty file, two equal files, and one of more than a mebibyte."""

    VERSION: ClassVar[int] = 1
    seed: int
    runs: list[int] = field(default_factory=list, metadata={"key": False})

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> Mapping[str, Segments] | None:
        self.runs.append(1)
        (out / "empty").touch()
        (out / "a").mkdir()
        for name in ("a/one", "two"):
            (out / name).write_bytes(b"same" * 100_000)
        (out / "large").write_bytes(bytes([self.seed]) * (2 << 20) + b"x")
        return None


@dataclass(frozen=True)
class Link(Step):
    """Writes its title after the text of its input."""

    VERSION = 1
    title: str
    before: tuple[Link, ...] = ()

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        (out / "text").write_text("".join((inputs[each] / "text").read_text() for each in self.before) + self.title)


def files_of(store: Store, step: Step) -> dict[str, bytes]:
    entry = store.get(step.key).entry
    assert entry
    return {record.path: (entry.files_dir / record.path).read_bytes() for record in entry.files}


def test_second_machine_fetches_what_the_first_one_built(anywhere: Machines) -> None:
    step, one, two = Odd(1), anywhere.store("one"), anywhere.store("two")
    assert [store.obtain(step).status for store in (one, two, two)] == ["built", "fetched", "hit"]
    assert len(step.runs) == 1
    assert files_of(one, step) == files_of(two, step)
    first, second = one.get(step.key).entry, two.get(step.key).entry
    assert first
    assert second
    assert first.files == second.files
    assert (second.name, second.step_class, second.seconds) == ("odd", "Odd", first.seconds)
    assert two.verify() == []
    assert leftovers(two) == []
    assert not (two.root / "incoming" / step.key).exists()
    assert all((second.files_dir / each.path).stat().st_mode & 0o777 == 0o444 for each in second.files)


def test_equal_files_of_two_steps_are_stored_once(machines: Machines) -> None:
    store = machines.store("one")
    store.obtain(Odd(1))
    blobs = {*(machines.folder / "team/blobs/sha256").iterdir()}
    store.obtain(Odd(2))
    new = {*(machines.folder / "team/blobs/sha256").iterdir()} - blobs
    assert sorted(path.stat().st_size > 1 << 20 for path in new) == [False, False, True]  # two documents and `large`


def test_entry_of_a_warm_store_is_sent(anywhere: Machines) -> None:
    step = anywhere.step()
    Store(anywhere.folder / "one").obtain(step)
    assert anywhere.store("one").obtain(step).status == "hit"
    assert anywhere.store("two").obtain(step).status == "fetched"


def test_build_fetches_only_what_it_needs(anywhere: Machines) -> None:
    second = Link("second", (Link("first"),))
    last = Link("last", (second,))
    execute(StepPlan([last]), anywhere.store("one"), Unobserved())
    two = anywhere.store("two")
    assert [each.status for each in execute(StepPlan([last]), two, Unobserved())] == ["unneeded", "unneeded", "fetched"]
    assert [entry.key for entry in two.entries()] == [last.key]
    other = Link("other", (second,))
    assert [each.status for each in execute(StepPlan([other]), two, Unobserved())] == ["unneeded", "fetched", "built"]


def test_modes(machines: Machines) -> None:
    step = machines.step()
    assert machines.store("reader", "read").obtain(step).status == "built"
    assert machines.store("writer", "write").obtain(step).status == "built"
    assert machines.store("another", "write").obtain(step).status == "built"
    assert machines.store("second", "read").obtain(step).status == "fetched"
    assert machines.store("third", "compare").obtain(step).status == "built"
    assert count(step) == 4


def test_comparison_finds_another_output(machines: Machines) -> None:
    machines.store("one").obtain(Write("abc", machines.folder / "runs", trouble=lambda out: (out / "x").touch()))
    with pytest.raises(DigestMismatch, match=r"write-abc: this machine's output and the entry .* differ in 'x'"):
        machines.store("two", "compare").obtain(machines.step())


def test_resumable_step_is_fetched_in_place_of_its_rest(machines: Machines) -> None:
    two = machines.store("two")
    assert machines.store("one").obtain(Append()).status == "built"
    with pytest.raises(StepError):
        Store(two.root).obtain(Append(fail))
    assert two.resumable_bytes(Append().key)
    assert two.obtain(Append()).status == "fetched"
    assert not two.resumable_bytes(Append().key)
    assert files_of(two, Append()) == {f"file{number}": str(number).encode() for number in range(3)}


def test_entry_that_is_not_shared_stays_here(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Write, "is_shared", False)
    assert machines.store("one").obtain(machines.step()).status == "built"
    assert machines.store("two").obtain(machines.step()).status == "built"


def test_find_returns_present_keys(anywhere: Machines) -> None:
    here, there = anywhere.step("here"), anywhere.step("there")
    anywhere.store("one").obtain(here)
    remote = anywhere.store("two").remote
    assert remote
    assert remote.find([here.key, there.key]) == {here.key}


def test_tag_and_key() -> None:
    assert tagged_key(entry_tag("a" * 64)) == "a" * 64
    assert tagged_key("v1") is None
    assert tagged_key("a" * 64) is None
    assert tagged_key(entry_tag("a" * 63)) is None


@pytest.mark.parametrize("damage", ["flip", "truncate", "delete", "swap"])
def test_wrong_bytes_are_refused_named_and_replaced(
    machines: Machines, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    step, other = Odd(1), Odd(2)
    one = machines.store("one")
    one.obtain(step)
    one.obtain(other)
    blobs = machines.folder / "team/blobs/sha256"
    large = next(path for path in blobs.iterdir() if path.read_bytes() == files_of(one, step)["large"])
    if damage == "flip":
        overwrite(large, 1 << 20)
    elif damage == "truncate":
        os.truncate(large, 1 << 20)
    elif damage == "delete":
        large.unlink()
    else:
        index = json.loads((machines.folder / "team/index.json").read_text())
        for entry, key in zip(index["manifests"], (other.key, step.key), strict=True):
            entry["annotations"]["org.opencontainers.image.ref.name"] = entry_tag(key)
        (machines.folder / "team/index.json").write_text(json.dumps(index))
    two, three = machines.store("two"), machines.store("three")
    assert two.obtain(step).status == "built"
    assert [record.message.count("refused what the team store has of odd") for record in caplog.records] == [1]
    assert two.verify() == []
    assert three.obtain(step).status == "fetched"
    assert files_of(three, step) == files_of(one, step)


def test_unreachable_team_store_is_one_warning(machines: Machines, caplog: pytest.LogCaptureFixture) -> None:
    store = machines.store("one", address="oci://127.0.0.1:9/team/store")
    assert [store.obtain(machines.step(text)).status for text in ("a", "b", "c")] == ["built"] * 3
    assert [each.levelno for each in caplog.records if each.name.startswith("trtspec")] == [logging.WARNING]
    assert "gets nothing from the team store for 5 minutes" in caplog.text


def test_team_store_is_used_again_after_a_pause(tmp_path: Path) -> None:
    now, team, step = [0.0], tmp_path / "team", Odd(1)
    Store(tmp_path / "one", remote=TeamStore(f"file:{team}")).obtain(step)
    aside = team.rename(tmp_path / "aside")
    store = Store(tmp_path / "two", remote=TeamStore(f"file:{team}", "read", clock=lambda: now[0]))
    assert store.obtain(step).status == "built"
    aside.rename(team)
    now[0] = PAUSE_S - 1
    store.remove(step.key)
    assert store.obtain(step).status == "built"
    now[0] = PAUSE_S
    store.remove(step.key)
    assert store.obtain(step).status == "fetched"


def test_small_disk_is_found_before_the_transfer(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machines.store("one").obtain(machines.step())
    usage = shutil.disk_usage(machines.folder)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=2))
    assert machines.store("two").obtain(machines.step()).status == "built"
    assert "write-abc needs 3,003 bytes, and 2 are free" in caplog.text


def test_environment(machines: Machines, monkeypatch: pytest.MonkeyPatch) -> None:
    assert open_remote() is None
    monkeypatch.setenv("TRTSPEC_REMOTE", machines.address)
    assert open_store().remote is open_store().remote is not None
    monkeypatch.setenv("TRTSPEC_REMOTE_MODE", "raed")
    with pytest.raises(TrtspecError, match="unknown mode 'raed'\nhint: did you mean 'read'"):
        open_store()
    monkeypatch.delenv("TRTSPEC_REMOTE_MODE")
    monkeypatch.setenv("TRTSPEC_REMOTE", "/srv/team")
    with pytest.raises(TrtspecError, match="TRTSPEC_REMOTE: '/srv/team' is not the address"):
        open_store()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("oci://x", "is not oci://HOST/NAME:TAG"),
        ("file:", "is not file:PATH:TAG"),
        ("s3://x/../y", "is not s3://BUCKET/PREFIX:TAG"),
        ("hf:owner/name", "cannot be a team store"),
        ("file:a.tar", "cannot be a team store"),
        ("file:/b/a.tar:v1", "cannot be a team store"),
    ],
)
def test_unusable_address_is_an_error(monkeypatch: pytest.MonkeyPatch, address: str, message: str) -> None:
    monkeypatch.setenv("TRTSPEC_REMOTE", address)
    with pytest.raises(TrtspecError, match=f"TRTSPEC_REMOTE: {re.escape(repr(address))} {message}"):
        open_remote()


def test_warning_has_no_hint(caplog: pytest.LogCaptureFixture) -> None:
    TeamStore("file:").find(["0" * 64])
    assert "'file:' is not file:PATH:TAG" in caplog.text
    assert "hint" not in caplog.text


def test_plan_shows_what_the_team_store_has(machines: Machines) -> None:
    step, other, store = machines.step(), machines.step("other"), machines.store("two")
    machines.store("one").obtain(step)
    plan = StepPlan([step, other])
    assert [(each.status, each.why) for each in plan_status(plan, store)] == [
        ("remote", "in the team store"),
        ("miss", "never built"),
    ]
    for each in plan.steps:
        store.fetch(each)
    assert [found.status for found in plan_status(plan, store)] == ["hit", "miss"]
    assert count(step) == 1


def test_bucket_is_a_team_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    botocore = pytest.importorskip("botocore.session")
    with running_rclone(tmp_path / "data") as endpoint:
        environment = {"AWS_ENDPOINT_URL_S3": endpoint, "AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": SECRET}
        for name, value in {**environment, "AWS_EC2_METADATA_DISABLED": "true"}.items():
            monkeypatch.setenv(name, value)
        botocore.get_session().create_client("s3", region_name="us-east-1").create_bucket(Bucket="team")
        machines = Machines(tmp_path, "s3://team/store")
        one, two, step = machines.store("one"), machines.store("two"), Odd(1)
        assert [store.obtain(step).status for store in (one, two)] == ["built", "fetched"]
        assert files_of(one, step) == files_of(two, step)
        (listed,) = list_remote(machines.address, lambda what, done, total: None)
        assert (listed.key, listed.name) == (step.key, "odd")
        remove_remote(machines.address, [step.key], lambda what, done, total: None)
        assert machines.store("three").obtain(step).status == "built"
