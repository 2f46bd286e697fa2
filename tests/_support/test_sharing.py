# SPDX-License-Identifier: Apache-2.0
"""Coordination between workers, which are threads in these tests."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests._support import sharing
from tests._support.sharing import Turns

ROOT = Path(__file__).parents[2]
LONG_S = 20.0
SHORT_S = 0.3


class Worker:
    """Takes a turn in a thread, and keeps it until released."""

    def __init__(self, folder: Path, has_ports: bool = False, **how: bool) -> None:
        self.has_it, self.may_end = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._work, args=(Turns(folder, has_ports), how), daemon=True)
        self.thread.start()

    def _work(self, turns: Turns, how: dict[str, bool]) -> None:
        with turns.turn(**how):
            self.has_it.set()
            self.may_end.wait(LONG_S)

    def has_its_turn(self) -> bool:
        return self.has_it.wait(LONG_S)

    def waits(self) -> bool:
        return not self.has_it.wait(SHORT_S)

    def end(self) -> None:
        self.may_end.set()
        self.thread.join(LONG_S)
        assert not self.thread.is_alive()


@contextmanager
def working(folder: Path, has_ports: bool = False, **how: bool) -> Iterator[Worker]:
    worker = Worker(folder, has_ports, **how)
    yield worker
    worker.end()


def test_turns_run_concurrently_by_default(tmp_path: Path) -> None:
    with working(tmp_path) as one, working(tmp_path) as other, working(tmp_path, ports=True) as third:
        assert all(worker.has_its_turn() for worker in (one, other, third))


@pytest.mark.slow
@pytest.mark.parametrize("ports", [False, True])
def test_alone_turn_waits_for_earlier_turns_and_blocks_later_ones(tmp_path: Path, ports: bool) -> None:
    first = Worker(tmp_path, ports=ports)
    assert first.has_its_turn()
    alone = Worker(tmp_path, alone=True)
    assert alone.waits()
    late = Worker(tmp_path)
    assert late.waits(), "or one that runs alone would never have its turn"
    first.end()
    assert alone.has_its_turn()
    assert late.waits()
    alone.end()
    assert late.has_its_turn()
    late.end()


@pytest.mark.slow
def test_priority_turns_run_one_at_a_time_next_to_normal_turns(tmp_path: Path) -> None:
    with working(tmp_path) as other, working(tmp_path, alone=True, first=True) as first:
        assert other.has_its_turn()
        assert first.has_its_turn()
        second = Worker(tmp_path, alone=True, first=True)
        assert second.waits()
    assert second.has_its_turn()
    second.end()


@pytest.mark.slow
def test_server_turns_with_shared_ports_run_one_at_a_time(tmp_path: Path) -> None:
    first = Worker(tmp_path, ports=True)
    assert first.has_its_turn()
    second = Worker(tmp_path, ports=True)
    assert second.waits()
    with working(tmp_path) as other:
        assert other.has_its_turn()
    first.end()
    assert second.has_its_turn()
    second.end()


def test_server_turns_with_private_ports_run_concurrently(tmp_path: Path) -> None:
    with working(tmp_path, True, ports=True) as one, working(tmp_path, True, ports=True) as other:
        assert one.has_its_turn()
        assert other.has_its_turn()


@pytest.mark.slow
def test_private_network_can_reuse_a_port_and_is_isolated() -> None:
    """Run in a child, because a process cannot undo it."""
    with socket.create_server(("127.0.0.1", 0)) as ours:
        port = ours.getsockname()[1]
        code = f"""
import socket, sys
from tests._support.sharing import take_network
if not take_network():
    sys.exit(77)
print(socket.socket().connect_ex(("127.0.0.1", {port})))
with socket.create_server(("127.0.0.1", {port})):
    print(socket.socket().connect_ex(("127.0.0.1", {port})))
"""
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONG_S)
    if done.returncode == 77:
        pytest.skip("requires permission to create a network namespace")
    assert done.stdout.split() == [str(errno.ECONNREFUSED), "0"], done.stderr


@pytest.mark.parametrize(("asked", "processes"), [("auto", 3), ("logical", None)])
def test_auto_worker_count_is_one_more_than_the_cores(
    asked: str, processes: int | None, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "cores", lambda: 2)
    monkeypatch.setattr(pytestconfig.option, "numprocesses", asked, raising=False)
    assert sharing.pytest_xdist_auto_num_workers(pytestconfig) == processes


def test_real_time_priority_covers_threads_and_is_restored() -> None:
    before = os.sched_getscheduler(0)
    with sharing.going_first() as may:
        if not may:
            pytest.skip("needs to be allowed to go before others")
        seen = [os.sched_getscheduler(0)]
        thread = threading.Thread(target=lambda: seen.append(os.sched_getscheduler(0)))
        thread.start()
        thread.join(LONG_S)
    assert seen == [os.SCHED_RR] * 2
    assert os.sched_getscheduler(0) == before


def test_missing_permission_for_real_time_priority_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with sharing.going_first() as may:
        assert not may
