# SPDX-License-Identifier: Apache-2.0
"""Processes and ports, tested with real ones."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from trtspec.core import ports, processes

SLEEP = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
ORPHAN = (
    "import subprocess, sys; child = subprocess.Popen(['sleep', '60']); print(child.pid, flush=True); sys.stdin.read()"
)


@pytest.fixture
def sleeper():
    process = subprocess.Popen(SLEEP, start_new_session=True)
    yield process
    process.kill()
    process.wait(30)


def test_free_ports_are_distinct_and_unused() -> None:
    found = ports.free_ports(20)
    assert len(set(found)) == 20
    assert not any(ports.bind_error(port) for port in found)


def test_free_ports_are_below_the_ephemeral_range() -> None:
    assert all(ports.LOWEST <= port < ports.EPHEMERAL for port in ports.free_ports(50))


def test_any_free_port_is_used_when_the_preferred_range_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((ports.LOOPBACK, 0)) as server:
        taken = server.getsockname()[1]
        monkeypatch.setattr(ports, "LOWEST", taken)
        monkeypatch.setattr(ports, "EPHEMERAL", taken + 1)
        [port] = ports.free_ports(1)
        assert port != taken


def test_free_port_on_a_foreign_address_is_an_error() -> None:
    with pytest.raises(OSError):  # noqa: PT011
        ports.free_ports(1, "192.0.2.1")


DEAD_CHILD = """
import signal, subprocess, time
child = subprocess.Popen(["sleep", "100"])
child.send_signal(signal.SIGKILL)
print(child.pid, flush=True)
time.sleep(100)
"""


def test_group_zombies_are_found_by_program_name() -> None:
    words = [sys.executable, "-c", DEAD_CHILD]
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdout is not None
        child = int(leader.stdout.readline())
        assert processes.wait_until(lambda: processes.group_zombies(leader.pid, "sleep") == [child], 10)
        assert processes.group_zombies(leader.pid, "sleepless") == []
        assert processes.group_zombies(leader.pid, "python") == []
        assert processes.group_zombies(os.getpid(), "sleep") == []
        leader.kill()


def test_listening_port_is_in_use() -> None:
    with socket.create_server((ports.LOOPBACK, 0)) as server:
        assert ports.bind_error(server.getsockname()[1])


def test_pid_and_start_time_identify_one_process(sleeper) -> None:
    started = processes.start_time(sleeper.pid)
    assert started is not None
    assert processes.is_alive(sleeper.pid, started)
    assert not processes.is_alive(sleeper.pid, started - 1), "another process with the same pid"
    sleeper.kill()
    assert processes.wait_until(lambda: not processes.is_alive(sleeper.pid, started), 5), "a zombie is not alive"
    assert processes.start_time(sleeper.pid) is None


@pytest.mark.slow
def test_stop_session_kills_a_process_that_ignores_sigterm() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    process.stdout.readline()
    start = time.monotonic()
    processes.stop_session(process.pid, processes.start_time(process.pid), timeout_s=0.3)
    assert process.wait(5) == -signal.SIGKILL
    assert 0.3 <= time.monotonic() - start < 30


def test_stop_session_ends_orphans_of_a_dead_leader() -> None:
    leader = subprocess.Popen(
        [sys.executable, "-c", ORPHAN], start_new_session=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    orphan = int(leader.stdout.readline())
    started = processes.start_time(leader.pid)
    leader.kill()
    leader.wait(30)
    assert processes.session_processes(leader.pid, started) == [orphan]
    processes.stop_session(leader.pid, started, timeout_s=5)
    assert processes.start_time(orphan) is None


def test_stop_session_ignores_another_process_with_the_same_pid(sleeper) -> None:
    processes.stop_session(sleeper.pid, processes.start_time(sleeper.pid) - 1, timeout_s=5)
    assert sleeper.poll() is None


def test_child_dies_with_its_parent() -> None:
    code = (
        "import subprocess, os, signal; from trtspec.core.processes import die_with_parent;"
        "print(subprocess.Popen(['sleep', '60'], preexec_fn=die_with_parent()).pid, flush=True);"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    out = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=False, timeout=20).stdout
    assert processes.wait_until(lambda: processes.start_time(int(out)) is None, 30)


def test_sigterm_is_an_interrupt_only_within_the_block() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), processes.sigterm_as_interrupt():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
