# SPDX-License-Identifier: Apache-2.0
"""Sandboxed children: their environment, their restarts and the error for each exceeded limit."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trtspec.core.processes import wait_until
from trtspec.core.sandbox import (
    CRASH,
    FAULT,
    MEMORY,
    OUTPUT,
    TIME,
    SandboxChild,
    SandboxError,
    SandboxLimits,
    SandboxPool,
    run_in_child,
)

RENDER, PREPARE = "trtspec.engine.prompts.rendering:render", "trtspec.engine.prompts.rendering:prepare"
LIMITS = SandboxLimits(memory_bytes=256 << 20, cpu_s=0.5, wall_s=20, output_bytes=100_000)
LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


def rendered(source: str, limits: SandboxLimits = LIMITS) -> object:
    child = SandboxChild(limits, (PREPARE, {"source": source, "tokens": {}}))
    try:
        return child.ask(RENDER, {"messages": [], "max_bytes": 10_000_000})
    finally:
        child.end()


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        (LOOPS, TIME),
        ("{{ 'x'.center(2000000000) }}", MEMORY),
        ("{{ 'x' * 200000 }}", OUTPUT),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", FAULT),
    ],
)
def test_exceeded_limit_has_its_cause(source: str, cause: str) -> None:
    with pytest.raises(SandboxError) as caught:
        rendered(source)
    assert caught.value.cause == cause
    assert caught.value.exit_code == 1


def test_killed_child_is_a_crash_and_is_replaced() -> None:
    child = SandboxChild(LIMITS, (PREPARE, {"source": "{{ messages }}", "tokens": {}}))
    asked = {"messages": [], "max_bytes": 100}
    assert child.ask(RENDER, asked) == {"text": "[]"}
    assert child._process is not None
    child._process.kill()
    with pytest.raises(SandboxError, match="SIGKILL") as caught:
        child.ask(RENDER, asked)
    assert caught.value.cause == CRASH
    assert child.ask(RENDER, asked) == {"text": "[]"}  # a new child
    child.end()


def test_stopped_child_times_out() -> None:
    child = SandboxChild(SandboxLimits(wall_s=0.5), (PREPARE, {"source": "x", "tokens": {}}))
    asked = {"messages": [], "max_bytes": 100}
    child.ask(RENDER, asked)
    assert child._process is not None
    process = child._process
    process.send_signal(19)  # SIGSTOP
    began = time.monotonic()
    with pytest.raises(SandboxError, match=r"longer than 0\.5 s"):
        child.ask(RENDER, asked)
    assert time.monotonic() - began < 10
    assert process.poll() is not None


def test_child_inherits_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("TZ", "UTC")
    assert run_in_child("os:getenv", "TZ", limits=LIMITS) == "UTC"
    with pytest.raises(SandboxError, match="bytes is not JSON"):  # by default the child returns its input
        run_in_child("os:getenv", "HF_TOKEN", b"none", limits=LIMITS)


def test_child_ends_with_its_parent(tmp_path: Path) -> None:
    code = (
        "from trtspec.core.sandbox import *\n"
        f"limits, source = SandboxLimits(cpu_s=600, wall_s=600), {LOOPS!r}\n"
        f"c = SandboxChild(limits, ({PREPARE!r}, {{'source': source, 'tokens': {{}}}}))\n"
        "c.start(); print(c._process.pid, flush=True)\n"
        f"c.ask({RENDER!r}, {{'messages': [], 'max_bytes': 9}})\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    time.sleep(1.0)  # the child is computing by then
    parent.kill()
    parent.wait(timeout=10)
    parent.stdout.close()
    assert wait_until(lambda: not _lives(pid), 30)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_closed_pool_ends_its_children() -> None:
    pool = SandboxPool(2, LIMITS, (PREPARE, {"source": "x", "tokens": {}}))
    assert pool.ask(RENDER, {"messages": [], "max_bytes": 9}) == {"text": "x"}
    pids = [child._process.pid for child in pool._idle.queue if child._process]
    assert len(pids) == 1
    pool.close()
    assert wait_until(lambda: not any(_lives(pid) for pid in pids), 10)
    assert os.getpid() not in pids
