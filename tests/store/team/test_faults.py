# SPDX-License-Identifier: Apache-2.0
"""Faults of a team store: killed processes, concurrent writers, full disks, and a registry that lies or stalls."""

from __future__ import annotations

import errno
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest

from tests.store.registries.conftest import QUICK, REAL
from tests.store.registries.double import Fault, Registry
from tests.store.registries.test_real import is_killed_after
from tests.store.team.conftest import Machines
from trtspec.store.registries import download
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.store.store import Store
from trtspec.store.team.client import TeamStore
from trtspec.store.team.maintenance import check_remote, list_remote

MIB = 1 << 20
SHORT = replace(QUICK, attempts=3)


@dataclass(frozen=True)
class Weights(Step):
    """Writes random bytes by seed, in two files."""

    VERSION: ClassVar[int] = 1
    seed: int
    nbytes: int = 3 * MIB

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        generator = random.Random(self.seed)
        (out / "config").write_bytes(generator.randbytes(1000))
        (out / "weights").write_bytes(generator.randbytes(self.nbytes))


def ignore(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


def add(registry: Registry, fault: Fault) -> None:
    """Add a fault; GET WEIGHTS is the request of the largest file."""
    largest = max(registry.blobs, key=lambda each: len(registry.blobs[each]))
    registry.faults.append(replace(fault, pattern=fault.pattern.replace("WEIGHTS", f".*{largest[1]}")))


@pytest.fixture
def doubled(registry: Registry, tmp_path: Path) -> Machines:
    """A team store in a registry with faults, which has the entry of Weights(1)."""
    machines = Machines(tmp_path, f"oci://{registry.host}/team/store")
    machines.store("one").obtain(Weights(1))
    return machines


def fetching(machines: Machines) -> Store:
    return Store(machines.folder / "two", remote=TeamStore(machines.address, "read-write", SHORT))


@pytest.mark.parametrize(
    "fault",
    [
        Fault("GET .*manifests", times=2, status=500),
        Fault("GET .*manifests", status=429, headers={"Retry-After": "0"}),
        Fault("GET .*blobs", times=2, cut=900_000),
        Fault("GET .*blobs", stall=700_000),
        Fault("GET WEIGHTS", flip=8_000_001),
    ],
    ids=lambda fault: f"{fault.pattern}-{fault.status}-{fault.cut}-{fault.stall}-{fault.flip}",
)
def test_passing_fault_is_overcome(doubled: Machines, registry: Registry, fault: Fault) -> None:
    add(registry, fault)
    assert fetching(doubled).obtain(Weights(1)).status == "fetched"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("GET .*manifests", times=99, status=500), "HTTP status 500; gave up after 3 attempts"),
        (Fault("GET .*manifests", times=99, status=403), "the manifest cannot be read: HTTP status 403"),
        (Fault("GET .*manifests", times=99, stall=5), "no data arrived in time; gave up"),
        (Fault("GET .*blobs", times=99, cut=0), "gave up after 3 attempts"),
    ],
    ids=str,
)
def test_failing_registry_is_one_warning(
    doubled: Machines, registry: Registry, caplog: pytest.LogCaptureFixture, fault: Fault, message: str
) -> None:
    add(registry, fault)
    store, started = fetching(doubled), time.monotonic()
    assert [store.obtain(Weights(seed)).status for seed in (1, 2, 3)] == ["built"] * 3
    assert time.monotonic() - started < 5
    assert [message in record.message for record in caplog.records] == [True]
    assert store.verify() == []


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("GET WEIGHTS", times=99, flip=8_000_001), "'weights' (sha256:"),
        (Fault("GET .*blobs", times=99, extra=b"x"), "digest"),
        (Fault("GET .*manifests", times=99, flip=999), "refused what the team store has of weights"),
        (Fault("GET .*blobs", times=99, status=404), "a file is missing: sha256:"),
    ],
    ids=str,
)
def test_lying_registry_is_refused_by_name(
    doubled: Machines, registry: Registry, caplog: pytest.LogCaptureFixture, fault: Fault, message: str
) -> None:
    add(registry, fault)
    store = fetching(doubled)
    assert store.obtain(Weights(1)).status == "built"
    assert message in caplog.text
    assert "refused what the team store has of weights" in caplog.text
    assert store.verify() == []


def test_failed_write_back_is_one_warning(
    doubled: Machines, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.faults.append(Fault("POST|PUT|PATCH", times=999, status=403))
    store = fetching(doubled)
    assert [store.obtain(Weights(seed)).status for seed in (2, 3, 1)] == ["built", "built", "fetched"]
    assert ["sends nothing to the team store" in record.message for record in caplog.records] == [True]


def test_full_disk_on_arrival_leaves_nothing(
    machines: Machines, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    machines.store("one").obtain(Weights(1))

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(download.Download, "run", full)
    store = machines.store("two")
    assert store.obtain(Weights(1)).status == "built"
    assert "No space left on device" in caplog.text
    assert not [*(store.root / "incoming").iterdir()]


def test_kills_at_each_failpoint(
    machines: Machines,
    die_at: Callable[[str, Callable[[], object]], int],
) -> None:
    step = Weights(1)
    assert die_at("team.before-publish", lambda: machines.store("one").obtain(step)) == -9
    assert list_remote(machines.address, ignore) == []
    assert machines.store("one").obtain(step).status == "hit"  # and sends it
    for failpoint in ("store.received", "store.before-rename"):
        store = machines.store(f"two-{failpoint}")
        assert die_at(failpoint, lambda store=store: store.obtain(step)) == -9
        assert store.entries() == []
        assert store.obtain(step).status == "fetched"
        assert store.verify() == []


def test_interrupted_fetch_continues(
    doubled: Machines,
    registry: Registry,
    start: Callable[..., int],
    finish: Callable[[int], int],
) -> None:
    add(registry, Fault("GET WEIGHTS", stall=2 * MIB))
    store = Store(doubled.folder / "two", remote=TeamStore(doubled.address, "read"))  # waits for longer than the test
    part, pid = store.root / "incoming" / Weights(1).key / "files/weights", start(lambda: store.obtain(Weights(1)))
    deadline = time.monotonic() + 20
    while not (part.exists() and part.stat().st_size >= 2 * MIB - 256 * 1024):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(pid, 9)
    assert finish(pid) == -9
    sent = registry.sent
    assert store.obtain(Weights(1)).status == "fetched"
    assert registry.sent - sent < 1.5 * MIB
    assert store.verify() == []


@pytest.fixture(params=["file", "oci"])
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Machines:
    """A team store in a directory, and one in a real registry."""
    if request.param == "file":
        return Machines(tmp_path, f"file:{tmp_path}/team")
    host = request.getfixturevalue("docker_registry")
    return Machines(tmp_path, f"oci://{host}/faults/{tmp_path.name.lower()}", REAL)


def test_concurrent_writers_of_one_key_and_of_others(anywhere: Machines) -> None:
    def work(number: int) -> bool:
        store = anywhere.store(f"machine{number}", mode="write")
        return is_killed_after(60, lambda: [store.obtain(Weights(seed, MIB)) for seed in (0, number)])

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(work, range(1, 4))] == [False] * 3
    assert len(list_remote(anywhere.address, ignore)) == 4
    assert check_remote(anywhere.address, lambda key: anywhere.store("machine1").peek(key).entry, ignore) == []
    reader = anywhere.store("reader", mode="read")
    assert {reader.obtain(Weights(seed, MIB)).status for seed in range(4)} == {"fetched"}


@pytest.mark.parametrize("kills", [4, 100])
def test_kills_at_random_moments_leave_nothing_wrong(anywhere: Machines, kills: int) -> None:
    generator, count, seed, longest = random.Random(kills), 0, 0, 0.3
    writer, reader = anywhere.store("writer", mode="write"), anywhere.store("reader", mode="read")
    while count < kills:
        seed += 1
        step = Weights(seed, 8 * MIB)
        for store, has_ended in ((writer, False), (reader, True)):
            before, started = count, time.monotonic()
            while count < before + 4 and is_killed_after(
                generator.uniform(0.005, longest), lambda store=store, step=step: store.obtain(step)
            ):
                count += 1
                started = time.monotonic()
            assert store.obtain(step).entry
            longest = 0.9 * longest + 0.1 * (time.monotonic() - started)
            assert store.verify() == []
            assert check_remote(anywhere.address, lambda key: None, ignore) == []
            if has_ended:
                assert reader.get(step.key).entry.files == writer.get(step.key).entry.files
                writer.remove(step.key)
                reader.remove(step.key)
