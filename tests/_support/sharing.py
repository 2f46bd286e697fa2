# SPDX-License-Identifier: Apache-2.0
"""How tests share a machine when several processes run them (`pytest -n 2`).

    alone     the test measures time: one at a time, and before all other processes where it may, as root on Linux.
              Elsewhere nothing else runs meanwhile
    triton    one at a time where workers share their ports: one that is free when it is looked for has to be so when
              a server takes it. A worker that may have a network of its own shares none.

`-n auto` is one process more than there are cores: one of them is nearly always at a server, and waits for it.
Locks of the kernel keep to this, in whatever order and process tests run: they go when a process does.
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
    """Return how many processes `-n auto` is; `-n logical` stays one a core."""
    return cores() + 1 if config.option.numprocesses == "auto" else None


def cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0))


def pytest_configure(config: pytest.Config) -> None:
    """Take turns where there are other workers."""
    if WORKER in os.environ:
        config.pluginmanager.register(Turns(Path(config.option.basetemp).parent, has_ports=take_network()))


def take_network() -> bool:
    """Give this thread, and what it starts, a loopback of its own and nothing else; return whether it may (Linux)."""
    if sys.platform != "linux" or ctypes.CDLL(None).unshare(CLONE_NEWNET):
        return False
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
    return True


def is_marked(item: pytest.Item, name: str) -> bool:
    """Return whether a test has a mark; its keywords would say that of its folder's name too."""
    return item.get_closest_marker(name) is not None


@contextmanager
def going_first() -> Iterator[bool]:
    """Let this thread, and what it starts, run whenever it can, whoever else computes; yield whether it may (Linux)."""
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
    """Lets every test wait until it may run beside those of the other workers, which have the same folder.

    One that has all ports for itself waits for no other's servers.
    """

    def __init__(self, folder: Path, has_ports: bool = False) -> None:
        self.folder, self.has_ports = folder, has_ports
        self._held = ExitStack()
        self._keeps = False  # the machine, from one that runs alone to the next

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
        """Run the test, set-up and all, when it is its turn; those that run alone have one turn together."""
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
        """Wait, and hold what others wait for: where it goes `first`, those alone that do too."""
        with ExitStack() as held:
            if ports and not self.has_ports:
                held.enter_context(self._lock("ports", fcntl.LOCK_EX))
            if first:
                held.enter_context(self._lock("first", fcntl.LOCK_EX))
            with self._lock("next", fcntl.LOCK_EX):  # or one that waits to be alone would wait for ever
                held.enter_context(self._lock("machine", fcntl.LOCK_EX if alone and not first else fcntl.LOCK_SH))
            yield

    @contextmanager
    def _lock(self, name: str, how: int) -> Iterator[None]:
        with (self.folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, how)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing it is not enough where a child was forked meanwhile
