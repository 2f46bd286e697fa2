# SPDX-License-Identifier: Apache-2.0
"""Worker processes on this machine: a killed worker, errors, devices, interrupts and addresses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.steps import Work, cell, expected
from trtspec.core.errors import TrtspecError
from trtspec.fleet.labels import Requirement
from trtspec.fleet.pool import Finished, PoolOptions, Started, Task, find_pool
from trtspec.fleet.pools.local import LocalPool
from trtspec.fleet.scheduler import Scheduler
from trtspec.store.store import Store

OpenPool = Callable[..., LocalPool]


@pytest.fixture
def open_pool(tmp_path: Path) -> Iterator[OpenPool]:
    opened = []

    def open_local(workers: int, devices: tuple[str, ...] = ()) -> LocalPool:
        opened.append(LocalPool(workers, devices, tmp_path / "store"))
        return opened[-1]

    yield open_local
    for pool in opened:
        pool.close()


def test_killed_worker_loses_only_its_step_and_errors_are_reported(open_pool: OpenPool, tmp_path: Path) -> None:
    log = tmp_path / "log"
    steps = [Work(f"s{n}", (Work("common", log=log),), log=log) for n in range(3)]
    cells = [
        *(cell(step.title, step) for step in steps),
        cell("killed", Work("once", log=log, fault="kill-once")),
        cell("bad", Work("bad", log=log, fault="error")),
        cell("worse", Work("worse", log=log, fault="bug")),
    ]
    scheduler = Scheduler(cells, open_pool(2))
    scheduler.run()
    runs = {run.cell.name: run for run in scheduler.cells}
    assert {name: run.status for name, run in runs.items()} == {
        **dict.fromkeys(["s0", "s1", "s2", "killed"], "built"),
        **dict.fromkeys(["bad", "worse"], "failed"),
    }
    assert runs["bad"].failure
    assert (runs["bad"].failure.message, runs["bad"].failure.hint) == ("the tool failed", "read it")
    assert runs["worse"].failure
    assert "ZeroDivisionError" in runs["worse"].failure.message
    assert scheduler.steps[Work("once", fault="kill-once").key].losses == 1
    written = [line.split() for line in log.read_text().splitlines()]
    assert sorted(title for title, _ in written) == ["common", "once", "s0", "s1", "s2"]
    for step in steps:
        entry = Store(tmp_path / "store").get(step.key).entry
        assert entry
        assert (entry.files_dir / "text").read_text() == expected(step)


def test_two_workers_are_faster_than_one(open_pool: OpenPool) -> None:
    def seconds(workers: int, name: str) -> float:
        pool = open_pool(workers)
        started: dict[str, float] = {}
        ended = 0.0
        for number in range(4):
            pool.submit(Task(Work(f"{name}{number}", seconds=0.5)))
        deadline = time.monotonic() + 60
        done = 0
        while done < 4 and time.monotonic() < deadline:
            for event in pool.wait(1):
                if isinstance(event, Started):
                    started.setdefault(name, time.monotonic())
                elif isinstance(event, Finished):
                    done, ended = done + 1, time.monotonic()
        return ended - started[name]

    assert seconds(1, "one") >= 2.0
    assert seconds(2, "two") < 2.0


def test_devices_are_lent_to_one_step_at_a_time(open_pool: OpenPool) -> None:
    pool = open_pool(1, ("0", "1"))
    for title, gpus in (("a", 2), ("b", 1), ("c", 0)):
        pool.submit(Task(Work(title, seconds=0.3, gpus=gpus)))
    lent = {each.task.step.name: each.devices for each in pool._workers if each.task}
    assert lent == {"a": ("0", "1"), "c": ()}
    done: list[Any] = []
    deadline = time.monotonic() + 60
    while len(done) < 3 and time.monotonic() < deadline:
        done += [event for event in pool.wait(1) if isinstance(event, Finished)]
    assert {event.outcome.status for event in done} == {"built"}
    assert sorted(pool._free) == ["0", "1"]


def test_exclusive_steps_run_alone_with_all_devices(open_pool: OpenPool) -> None:
    pool, alone = open_pool(4, ("0", "1")), Requirement(exclusive=True)
    for title in ("a", "b"):
        pool.submit(Task(Work(title), alone))
    pool.submit(Task(Work("c")))
    done: list[str] = []
    deadline = time.monotonic() + 60
    while len(done) < 3 and time.monotonic() < deadline:
        running = [(each.task.step.name, each.devices) for each in pool._workers if each.task]
        assert running in ([("a", ("0", "1"))], [("b", ("0", "1"))], [("c", ())])
        done += [event.key for event in pool.wait(1) if isinstance(event, Finished)]
    assert sorted(done) == sorted(Work(title).key for title in "abc")


def test_close_ends_running_steps_in_time(open_pool: OpenPool, tmp_path: Path) -> None:
    pool = open_pool(2)
    pool.submit(Task(Work("long", seconds=600.0)))
    while not any(isinstance(event, Started) for event in pool.wait(10)):
        pass
    (process,) = [each.process for each in pool._workers]
    pid, started = process.pid, time.monotonic()
    pool.close()
    assert time.monotonic() - started < 5
    assert not Path(f"/proc/{pid}").exists()
    assert Store(tmp_path / "store").entries() == []
    assert list((tmp_path / "store").rglob("files")) == []


@pytest.mark.parametrize("on", ["local:0", "local:x", "local:1000"])
def test_invalid_number_of_workers_is_refused(on: str) -> None:
    kind, address = find_pool(on)
    with pytest.raises(TrtspecError, match="expected a number of workers from 1 to 256"):
        kind.open(PoolOptions(address))


def test_unknown_pool_is_refused_with_the_known_ones() -> None:
    with pytest.raises(TrtspecError, match="unknown pool 'rya'; known: local, ray"):
        find_pool("rya")
