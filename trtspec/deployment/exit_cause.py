# SPDX-License-Identifier: Apache-2.0
"""Diagnosis of a dead deployment from the machine's state, and the relevant lines of its log."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

from trtspec.core.processes import tail
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord

KERNEL_LOG, PROC_STAT = Path("/dev/kmsg"), Path("/proc/stat")
MOST_KERNEL_LINES = 20_000
KERNEL_LINE_BYTES = 8192  # longer records cannot be read (kernel doc dev-kmsg)
STOPPED_BY = "supervisor: stopped by "
OOM = re.compile(rb"[Oo]ut of memory.*: Killed process (\d+) \(([^)]*)\)")
ANSI = re.compile(r"\x1b\[[0-9;]*m")
PROBLEM = re.compile(
    r"[EF]\d{4} |supervisor: |error\b|fatal\b|killed\b|.*\bout of memory\b|\w+(\.\w+)*Error: ", re.IGNORECASE
)
TRACEBACK, WITHIN_TRACEBACK = "Traceback (most recent call last):", ("  ", "\t")
LOOKED_AT, SHOWN = 200, 8  # lines


def cause_of_death(journal: DeploymentJournal, record: DeploymentRecord) -> str:
    """Return why a deployment without a supervisor process does not run, as a sentence without a full stop."""
    who = f"its supervisor (process {record.pid})"
    if _booted_at() > record.since > 0:
        return "the machine was restarted after it was deployed"
    if _killed_for_memory(record.pid):
        return f"the kernel killed {who} because memory ran out"
    last = tail(journal.log, LOOKED_AT)
    if STOPPED_BY in last:
        name = last.rpartition(STOPPED_BY)[2].splitlines()[0]
        if not record.detached:
            return "the command that served it in the foreground ended (--detach keeps a server running)"
        return f"{who} was stopped by {name}, not by trtspec stop"
    return f"{who} was killed"


def signal_log_line(number: int) -> bytes:
    """Return the line that a supervisor appends to its log when it receives a signal to stop."""
    return f"{STOPPED_BY}{signal.Signals(number).name}\n".encode()


def problem_lines(text: str) -> str:
    """Return the last problem lines of a log: errors, ends of tracebacks and supervisor messages."""
    found: list[str] = []
    within = False
    for line in (ANSI.sub("", each).rstrip() for each in text.splitlines()[-LOOKED_AT:]):
        if line.startswith(TRACEBACK):
            within = True
        elif within and line.startswith(WITHIN_TRACEBACK):
            continue
        elif within or (PROBLEM.match(line) and not line.startswith(STOPPED_BY)):
            found.append(line)
            within = False
    return "\n".join(found[-SHOWN:])


def _booted_at() -> float:
    """Return this machine's boot time in seconds of the epoch; 0 if unknown."""
    try:
        lines = PROC_STAT.read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)


def _killed_for_memory(pid: int) -> bool:
    """Return whether the kernel log, if readable, reports that the process was killed for lack of memory."""
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
                return True  # also the name: the kernel logs pids of another namespace for containers
        return False
    except OSError:  # BlockingIOError: no more lines
        return False
    finally:
        os.close(descriptor)
