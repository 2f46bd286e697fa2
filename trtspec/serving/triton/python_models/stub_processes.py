# SPDX-License-Identifier: Apache-2.0
"""The processes of the other Python models of this server."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

STUB = b"triton_python_backend_stub"
STOPPED = ("T", "t")
STATE, PARENT = 0, 1  # of /proc/PID/stat, behind the process's name


def end_stopped(model: str) -> list[int]:
    """End the processes of a model that are stopped, and return which those were.

    tritonserver aborts when it waits some seconds for a lock that a stopped process holds; of one that ended it just
    says that the model is not healthy.
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
            said = (process / "cmdline").read_bytes()
            if STUB in said and wanted in said:
                yield process
