# SPDX-License-Identifier: Apache-2.0
"""Why a deployment is dead, from what its machine still shows, and the lines of its log that matter for that."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from trtspec.core.processes import tail
from trtspec.deployment.journal import DeploymentJournal, Record

KERNEL_LOG, PROC_STAT = Path("/dev/kmsg"), Path("/proc/stat")
MOST_KERNEL_LINES = 20_000
KERNEL_LINE_BYTES = 8192  # a record that is longer than the buffer cannot be read, kernel doc dev-kmsg
TOLD_TO_END = "supervisor: told to end by "
OOM = re.compile(rb"[Oo]ut of memory.*: Killed process (\d+) \(([^)]*)\)")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
PROBLEM = re.compile(
    r"[EF]\d{4} |supervisor: |error\b|fatal\b|killed\b|.*\bout of memory\b|\w+(\.\w+)*Error: ", re.IGNORECASE
)
TRACEBACK, WITHIN_TRACEBACK = "Traceback (most recent call last):", ("  ", "\t")
LOOKED_AT, SHOWN = 200, 8  # lines


def cause_of_death(journal: DeploymentJournal, record: Record) -> str:
    """Return why a deployment whose supervisor is gone does not run, as a sentence without a full stop."""
    who = f"its supervisor (process {record.pid})"
    if _booted_at() > record.since > 0:
        return "the machine was restarted after it was deployed"
    if _killed_for_memory(record.pid):
        return f"the kernel killed {who} because memory ran out"
    last = tail(journal.log, LOOKED_AT)
    if TOLD_TO_END in last:
        name = last.rpartition(TOLD_TO_END)[2].splitlines()[0]
        if not record.detached:
            return "the command that served it in the foreground ended (--detach keeps a server running)"
        return f"{who} was told to end by {name}, and not by trtspec stop"
    return f"{who} was killed"


def note_of_signal(number: int) -> bytes:
    """Return the line that a supervisor adds to its log when a signal tells it to end."""
    return f"{TOLD_TO_END}{signal.Signals(number).name}\n".encode()


def telling_lines(text: str) -> str:
    """Return the last lines of a log that report problems: errors, ends of tracebacks and words of the supervisor."""
    found: list[str] = []
    within = False
    for line in (ANSI.sub("", each).rstrip() for each in text.splitlines()[-LOOKED_AT:]):
        if line.startswith(TRACEBACK):
            within = True
        elif within and line.startswith(WITHIN_TRACEBACK):
            continue
        elif within or (PROBLEM.match(line) and not line.startswith(TOLD_TO_END)):
            found.append(line)
            within = False
    return "\n".join(found[-SHOWN:])


def _booted_at() -> float:
    """Return when this machine was started, in seconds of the epoch; 0 where that is unknown."""
    try:
        lines = PROC_STAT.read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)


def _killed_for_memory(pid: int) -> bool:
    """Return whether the kernel's log, where this user may read it, says that it killed a process for its memory."""
    try:
        descriptor = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    program = os.path.basename(sys.executable).encode()[:15]
    try:
        for _ in range(MOST_KERNEL_LINES):
            line = os.read(descriptor, KERNEL_LINE_BYTES)
            if not line:
                return False
            if (found := OOM.search(line)) and (int(found[1]), found[2]) == (pid, program):
                return True  # the name too: pids of a container are not those that the kernel logs
        return False
    except OSError:  # BlockingIOError: no more lines
        return False
    finally:
        os.close(descriptor)
