# SPDX-License-Identifier: Apache-2.0
"""Server logs: reading the last lines, following, rotation, problem lines, and the cause of an exit.

Logs are read in chunks, so they may have any size.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from trtspec.core.errors import DeployError
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord

PIECE_BYTES = 64 << 10
POLL_S = 0.2
FORMER = 5  # number of former logs kept
SHOWN_LINES = 20  # lines shown in errors and by `status`


def rotate(path: Path) -> None:
    """Rename a log to NAME.1, NAME.1 to NAME.2 and so on, and delete the oldest one."""
    for number in range(FORMER, 0, -1):
        former = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        with suppress(FileNotFoundError):
            former.replace(path.with_name(f"{path.name}.{number}"))


def read_log(path: Path, lines: int) -> Iterator[bytes]:
    """Yield the last `lines` lines of a log in chunks; raises DeployError if the log is not on this machine."""
    with _opened(path) as file:
        file.seek(_start_of_last(file, lines))
        yield from _rest(file)


def last_lines(path: Path, lines: int, max_bytes: int) -> list[str]:
    """Return the last lines of a log, from its last `max_bytes` only; the first line may be truncated."""
    with _opened(path) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(_start_of_last(file, lines), end - max_bytes))
        text = file.read(max_bytes).decode(errors="replace")
    return text.removesuffix("\n").split("\n") if text else []


def tail(path: Path, lines: int = SHOWN_LINES) -> str:
    """Return the last lines of a log; "" if it cannot be read."""
    try:
        return "\n".join(last_lines(path, lines, PIECE_BYTES))
    except (DeployError, OSError):
        return ""


def tail_hint(journal: DeploymentJournal) -> str:
    """Return the last lines of a server's log as the hint of an error."""
    return f"last lines of {journal.log}:\n{tail(journal.log)}"


def follow_log(journal: DeploymentJournal, lines: int) -> Iterator[bytes]:
    """Yield the last lines of a log on this machine and then new output, until the server has ended."""
    with _opened(journal.log) as file:
        file.seek(_start_of_last(file, lines))
        is_running = True
        while is_running:
            is_running = journal.read_existing().is_running  # before reading, so that the last output is read too
            yield from _rest(file)
            time.sleep(POLL_S if is_running else 0)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DeployError("the deployment's log is not on this machine", where=str(path)) from None


def _rest(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Return the byte offset of the last `lines` lines; reads backwards from the end only as far as needed."""
    end = place = file.seek(0, os.SEEK_END)
    file.seek(max(0, end - 1))
    wanted = lines + (file.read(1) == b"\n")  # newlines to find, including the one before these lines
    while place > 0 and lines:
        begin = max(0, place - PIECE_BYTES)
        file.seek(begin)
        piece = file.read(place - begin)
        if (found := piece.count(b"\n")) >= wanted:
            before, *_ = piece.rsplit(b"\n", wanted)
            return begin + len(before) + 1
        wanted, place = wanted - found, begin
    return 0 if lines else end


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
    """Return the cause for which a deployment's supervisor has ended, as a sentence without a full stop."""
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
    """Return this machine's boot time in seconds since the epoch; 0 if unknown."""
    try:
        lines = PROC_STAT.read_text().splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("btime ")), 0.0)


def _killed_for_memory(pid: int) -> bool:
    """Return True if the kernel log is readable and reports that the process was killed for lack of memory."""
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
