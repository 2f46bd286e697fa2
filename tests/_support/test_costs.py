# SPDX-License-Identifier: Apache-2.0
"""`--costs` counts the processor time of this process, its children and orphaned processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from tests._support.costs import MARK, Costs

BURNT_S = 0.2
BURN = f"import os, time\nwhile time.process_time() < {BURNT_S}: pass\n"
LEFT_BEHIND = f"{BURN}print(os.getpid(), flush=True)\ntime.sleep(60)"


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> Costs:
    monkeypatch.setenv(MARK, "")
    return Costs()


@pytest.mark.slow
def test_cpu_time_of_the_process_is_counted_once(costs: Costs) -> None:
    until = time.process_time() + BURNT_S
    while time.process_time() < until:
        pass
    assert costs.passed() >= BURNT_S * 0.9
    assert costs.passed() < BURNT_S


@pytest.mark.slow
def test_cpu_time_of_children_is_counted_once(costs: Costs) -> None:
    subprocess.run([sys.executable, "-S", "-c", BURN], check=True, timeout=60)
    assert costs.passed() >= BURNT_S * 0.9
    with subprocess.Popen([sys.executable, "-S", "-c", LEFT_BEHIND], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        assert costs.passed() >= BURNT_S * 0.9
        running.kill()
    assert 0 <= costs.passed() < BURNT_S, "its time is its parent's now, and counted"


@pytest.mark.slow
def test_cpu_time_of_orphaned_processes_is_counted(costs: Costs) -> None:
    shell = ["sh", "-c", '"$0" -S -c "$1" &', sys.executable, LEFT_BEHIND]
    with subprocess.Popen(shell, stdout=subprocess.PIPE, text=True) as gone:
        assert gone.stdout is not None
        left = int(gone.stdout.readline())
        gone.wait(60)
        assert costs.passed() >= BURNT_S * 0.9
        os.kill(left, signal.SIGKILL)
    assert 0 <= costs.passed() < BURNT_S
