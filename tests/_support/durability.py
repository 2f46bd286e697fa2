# SPDX-License-Identifier: Apache-2.0
"""Fixtures of tests about what survives: what was brought to the disk, and processes that are killed at a point."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note what would be brought to the disk, in order, instead of waiting for it: no test pulls the plug."""
    paths: list[str] = []
    rename = os.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: paths.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(os, "rename", lambda source, target: (rename(source, target), paths.append("rename"))[0])
    return paths


@pytest.fixture
def start() -> Callable[..., int]:
    """Run a function in a process of its own, killed where it comes to `failpoint`; return the process id."""

    def start(work: Callable[[], object], failpoint: str = "") -> int:
        if pid := os.fork():
            return pid
        os.environ["TRTSPEC_FAILPOINT"] = failpoint
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)

    return start


@pytest.fixture
def finish() -> Callable[[int], int]:
    """Wait for a process; return its exit code, or minus the signal that killed it."""
    return lambda pid: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def die_at(start: Callable[..., int], finish: Callable[[int], int]) -> Callable[[str, Callable[[], object]], int]:
    """Run a function in a child process that is killed at a failpoint; return minus the signal, or its exit code."""
    return lambda failpoint, work: finish(start(work, failpoint))
