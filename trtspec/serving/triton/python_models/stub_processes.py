# SPDX-License-Identifier: Apache-2.0
"""The stub processes of the other Python models of this server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STUB = b"triton_python_backend_stub"
STOPPED = ("T", "t")
STATE, PARENT = 0, 1  # fields of /proc/PID/stat after the process name


def kill_stopped(model: str) -> list[int]:
    """Kill the stopped processes of a model and return their ids.

    tritonserver aborts if it waits some seconds for a lock held by a stopped process; of a dead process it only reports
    that the model is not healthy.
    """
    ended = []
    for process in _processes(model):
        with suppress(OSError, IndexError):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if fields[STATE] in STOPPED and int(fields[PARENT]) == os.getppid():
                os.kill(int(process.name), signal.SIGKILL)
                ended.append(int(process.name))
    return ended


def _processes(model: str) -> Iterator[Path]:
    wanted = f"/{model}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if STUB in command and wanted in command:
                yield process
