# SPDX-License-Identifier: Apache-2.0
"""Fixtures for crash tests: recorded fsync calls, and processes that are killed at a failpoint."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the paths that would be synced, in order, without waiting for the disk."""
    paths: list[str] = []
    rename = os.rename
    monkeypatch.setattr(os, "fsync", lambda descriptor: paths.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    monkeypatch.setattr(os, "rename", lambda source, target: (rename(source, target), paths.append("rename"))[0])
    return paths


@pytest.fixture
def start() -> Callable[..., int]:
    """Run a function in a child process that is killed at `failpoint`; return the process id."""

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
