# SPDX-License-Identifier: Apache-2.0
"""Coordination of tests that run in several processes (`pytest -n 2`).

    alone     the test measures time: one at a time, with priority over all other processes where permitted (root on
              Linux), elsewhere with all other tests paused
    triton    one at a time if workers share their ports: a free port must still be free when a server binds it.
              A worker that may create a network namespace does not share ports

`-n auto` is one process more than there are cores, because one of them nearly always waits for a server.
Kernel locks enforce this in any order of tests and processes; they are released when a process ends.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest

WORKER = "PYTEST_XDIST_WORKER"
CLONE_NEWNET, SIOCSIFFLAGS, IFF_UP = 0x40000000, 0x8914, 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return the number of processes for `-n auto`; `-n logical` remains one per core."""
    return cores() + 1 if config.option.numprocesses == "auto" else None


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def pytest_configure(config: pytest.Config) -> None:
    """Take turns if there are other workers."""
    if WORKER in os.environ:
        config.pluginmanager.register(Turns(Path(config.option.basetemp).parent, has_ports=take_network()))


def take_network() -> bool:
    """Give this thread and its children a private loopback network; return whether that is permitted (Linux)."""
    if sys.platform != "linux" or ctypes.CDLL(None).unshare(CLONE_NEWNET):
        return False
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    return True


def is_marked(item: pytest.Item, name: str) -> bool:
    """Return whether a test has a mark; its keywords would also include its folder's name."""
    return item.get_closest_marker(name) is not None


@contextmanager
def going_first() -> Iterator[bool]:
    """Give this thread and its children real-time priority; yield whether that is permitted (Linux)."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, *before)


class Turns:
    """Delays every test until it may run concurrently with the tests of the other workers, which use the same folder.

    A worker with a private network does not wait for servers of others.
    """

    def __init__(self, folder: Path, has_ports: bool = False) -> None:
        self.folder, self.has_ports = folder, has_ports
        self._held = ExitStack()
        self._keeps = False  # whether the exclusive lock is kept from one `alone` test to the next

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Run the test including its fixtures in its turn; consecutive `alone` tests share one turn."""
        alone = is_marked(item, "alone")
        with going_first() if alone else nullcontext(False) as first:
            if not self._keeps:
                self._held.enter_context(self.turn(alone=alone, first=first, ports=is_marked(item, "triton")))
            self._keeps = alone and nextitem is not None and is_marked(nextitem, "alone")
            try:
                return (yield)
            finally:
                if not self._keeps:
                    self._held.close()

    @contextmanager
    def turn(self, *, alone: bool = False, first: bool = False, ports: bool = False) -> Iterator[None]:
        """Hold the locks of a turn; a test with priority (`first`) excludes only other such tests."""
        with ExitStack() as held:
            if ports and not self.has_ports:
                held.enter_context(self._lock("ports", fcntl.LOCK_EX))
            if first:
                held.enter_context(self._lock("first", fcntl.LOCK_EX))
            with self._lock("next", fcntl.LOCK_EX):  # prevents starvation of a test that waits to be alone
                held.enter_context(self._lock("machine", fcntl.LOCK_EX if alone and not first else fcntl.LOCK_SH))
            yield

    @contextmanager
    def _lock(self, name: str, how: int) -> Iterator[None]:
        with (self.folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, how)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough if a child was forked in between
