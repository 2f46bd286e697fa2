# SPDX-License-Identifier: Apache-2.0
"""A stub that is ended holds no lock any more: its server would end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtspec.system import process_state, wait_until
from trtspec.triton.python_models import siblings
from trtspec.triton.python_models.siblings import end_at_rest, end_stopped

HAS_LOCK = """
import os, signal, sys, time
from pathlib import Path
lock = Path(sys.argv[1])
lock.touch()
if "stops" in sys.argv: os.kill(os.getpid(), signal.SIGSTOP)
end = time.monotonic() + 0.2
while time.monotonic() < end or "busy" in sys.argv: pass
lock.unlink()
time.sleep(60)
"""
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    folder = tmp_path / "triton_python_backend_stub" / "draft"
    folder.mkdir(parents=True)
    return folder / "lock"


@pytest.fixture
def start(lock: Path) -> Iterator[Start]:
    """Return what starts a stub; it has a lock then, and is stopped where it is told to be."""
    started = []

    def run(*words: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen([sys.executable, "-S", "-c", HAS_LOCK, str(lock), *words]))
        assert wait_until(lock.exists, 10, 0.001)
        assert "stops" not in words or wait_until(lambda: process_state(started[-1].pid) == "T", 10)
        return started[-1]

    yield run
    for each in started:
        each.kill()
        each.wait(10)


@pytest.mark.parametrize("words", [(), ("stops",)])
def test_it_gives_its_lock_back_before_it_ends(
    start: Start, lock: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings, "SETTLES_S", 20.0)
    stub = start(*words)
    end_at_rest(stub.pid)
    assert stub.wait(10) == -signal.SIGKILL
    assert not lock.exists()


def test_one_that_never_rests_is_ended_all_the_same(start: Start) -> None:
    stub = start("busy")
    end_at_rest(stub.pid)
    assert stub.wait(10) == -signal.SIGKILL


def test_only_a_stopped_stub_of_that_model_and_this_server_is_ended(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(siblings.os, "getppid", os.getpid)
    stub = start("stops")
    assert end_stopped("target") == []
    monkeypatch.setattr(siblings.os, "getppid", lambda: 1)
    assert end_stopped("draft") == []
    monkeypatch.setattr(siblings.os, "getppid", os.getpid)
    assert end_stopped("draft") == [stub.pid]
    assert stub.wait(10) == -signal.SIGKILL
    running = start("busy")
    assert end_stopped("draft") == []
    assert running.poll() is None
