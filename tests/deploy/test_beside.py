# SPDX-License-Identifier: Apache-2.0
"""What runs beside a server is started again later each time; the clock is the test's."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from trtspec.deploy.beside import Beside
from trtspec.deploy.children import Child
from trtspec.deploy.running import Running
from trtspec.system import process_state, wait_until

STAYS = "import time; time.sleep(600)"
WAIT_S = 30


def started(program: str) -> Beside:
    return Beside(Running.start(Child("entry", (sys.executable, "-S", "-c", program), "http://127.0.0.1:1")))


@pytest.mark.slow
def test_one_that_cannot_start_is_tried_later_each_time_and_never_all_the_time() -> None:
    beside = started("import sys; sys.exit(3)")
    now, waits, pids = 1000.0, [], set()
    for _ in range(7):
        assert beside.running.process.wait(WAIT_S) == 3
        pids.add(beside.running.process.pid)
        said = beside.look(now)
        waits.append(said.removeprefix("entry ended by itself with status 3, and is started again "))
        assert beside.look(now) == "", "it is said once"
        wait_s = 0.0 if waits[-1] == "at once" else float(waits[-1].split()[1])
        if wait_s:
            assert beside.look(now + wait_s - 0.1) == ""
            assert beside.running.process.pid in pids, "it is not due yet"
            assert beside.look(now + wait_s) == ""
        now += wait_s
        assert beside.running.process.pid not in pids
    beside.running.end(0.0)
    assert waits == ["at once", "in 1 s", "in 2 s", "in 4 s", "in 8 s", "in 16 s", "in 30 s"]


@pytest.mark.slow
def test_one_that_is_stopped_is_ended_and_started_again() -> None:
    beside = started(STAYS)
    stopped = beside.running.process
    try:
        assert beside.look(1.0) == ""
        os.kill(stopped.pid, signal.SIGSTOP)
        assert wait_until(lambda: process_state(stopped.pid) == "T", WAIT_S)
        assert beside.look(2.0) == "entry is stopped, and is started again at once"
        assert stopped.poll() is not None
        assert beside.look(2.0) == ""
        assert beside.running.process.poll() is None
        assert beside.look(3.0) == ""
    finally:
        beside.running.end(0.0)
