# SPDX-License-Identifier: Apache-2.0
"""Process inspection through /proc, termination of sessions, memory limits, and running of short external commands."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trtspec.core.errors import TrtspecError

log = logging.getLogger(__name__)

PR_SET_PDEATHSIG = 1
PROBE_TIMEOUT_S = 60.0
NAME_CHARS = 15  # Linux truncates program names to this length


def die_with_parent(sign: signal.Signals = signal.SIGTERM, parent: int | None = None) -> Callable[[], None]:
    """Return a `preexec_fn` that makes the child receive `sign` when the thread that started it ends (Linux only).

    With `parent`, the pid of the parent, the child itself may call the returned function.
    """
    import ctypes

    parent = parent or os.getpid()
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    def arrange() -> None:
        if libc is not None:
            libc.prctl(PR_SET_PDEATHSIG, int(sign))
            if os.getppid() != parent:  # the parent ended before prctl
                os._exit(1)

    return arrange


def return_free_memory() -> None:
    """Return memory that was freed to the system, if the C library can: malloc_trim(3) of glibc."""
    import ctypes

    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class ProcessStat(NamedTuple):
    """One process from /proc/PID/stat: `state` is Linux's letter (R, S, D, T, Z ...), `started` in ticks since boot."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int

    @property
    def is_living(self) -> bool:
        return self.state not in "ZX"


def process_stat(pid: int) -> ProcessStat | None:
    """Return a process, which may be a zombie, or None if the pid does not exist."""
    fields = _stat_text(Path(f"/proc/{pid}/stat")).split()
    if not fields:
        return None
    parent, group, session, started = (int(fields[place]) for place in (1, 2, 3, 19))
    return ProcessStat(pid, fields[0], parent, group, session, started)


def all_processes() -> list[ProcessStat]:
    """Return all processes of this machine, including zombies, sorted by pid."""
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    return [stat for pid in pids if (stat := process_stat(pid))]


def start_time(pid: int) -> int | None:
    """Return a process's start time in clock ticks since boot, or None if the process is gone or a zombie.

    Pids are reused, but a pid and its start time together identify a process.
    """
    stat = process_stat(pid)
    return stat.started if stat and stat.is_living else None


def is_alive(pid: int, started: int | None) -> bool:
    """Return True if the process with this pid and start time is still running."""
    return started is not None and start_time(pid) == started


def stop_session(pid: int, started: int | None, timeout_s: float) -> None:
    """Stop a session: send SIGTERM to its leader, wait up to `timeout_s`, then send SIGKILL to all that still run."""
    if is_alive(pid, started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not is_alive(pid, started), timeout_s)
    for each in session_processes(pid, started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
    wait_until(lambda: not session_processes(pid, started), 5)


def session_processes(pid: int, started: int | None) -> list[int]:
    """Return the pids of the living processes in the session that process `pid` led, including orphans of the leader.

    Linux does not reuse a pid while a session has that number. If process `pid` has another start time, it is therefore
    unrelated, the session has ended, and the list is empty.
    """
    if started is None or start_time(pid) not in {started, None}:
        return []
    return [each.pid for each in all_processes() if each.is_living and each.session == pid and each.started >= started]


def group_processes(pid: int) -> list[int]:
    """Return the pids of the living processes in the process group that process `pid` leads."""
    return [each.pid for each in all_processes() if each.is_living and each.group == pid]


def process_family(pid: int) -> set[int]:
    """Return the living pids among process `pid`, its process group, and all their descendants."""
    living = [each for each in all_processes() if each.is_living]
    found = {each.pid for each in living if pid in (each.pid, each.group)}
    while more := {each.pid for each in living if each.parent in found} - found:
        found |= more
    return found


def group_zombies(pid: int, program: str) -> list[int]:
    """Return the pids of the zombies named `program` in the process group that process `pid` leads."""
    zombies = (each.pid for each in all_processes() if each.state == "Z" and each.group == pid)
    return [each for each in zombies if program_name(each) == program[:NAME_CHARS]]


def program_name(pid: int) -> str:
    """Return the name of a process's program, truncated by Linux to NAME_CHARS; "" if the process is gone."""
    return _read(Path(f"/proc/{pid}/comm")).removesuffix("\n")


def process_argv(pid: int) -> list[str]:
    """Return a process's command line; empty if the process is gone, a zombie or a kernel thread."""
    text = _read(Path(f"/proc/{pid}/cmdline"))
    return text.rstrip("\0").split("\0") if text else []


def process_state(pid: int) -> str:
    """Return Linux's state letter of a process (R, S, D, T ...); "" if the process is gone or a zombie."""
    stat = process_stat(pid)
    return stat.state if stat and stat.is_living else ""


def is_computing(pid: int) -> bool:
    """Return True if any thread of a process is running, runnable or in an uninterruptible (disk) wait."""
    return any(_stat_text(task / "stat")[:1] in {"R", "D"} for task in Path(f"/proc/{pid}/task").glob("*"))


def _stat_text(path: Path) -> str:
    """Return a stat file from its third field on, after the parenthesized name; "" if it does not exist."""
    text = _read(path)
    return text[text.rindex(")") + 2 :] if text else ""


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def wait_until(condition: Callable[[], bool], timeout_s: float, interval_s: float = 0.05) -> bool:
    """Poll `condition` until it is true; return False if it is still false after `timeout_s` seconds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(interval_s)
    return True


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt on SIGTERM within the block, so that the block cleans up as it does after Ctrl-C.

    Has no effect outside the main thread, where Python does not allow signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def program_output(command: Sequence[str], where: str, hint: str, cwd: str | None = None) -> str:
    """Run a command and return its standard output.

    Raises TrtspecError, located at `where` and with `hint`, if the command fails or takes longer than PROBE_TIMEOUT_S.
    """
    log.info("run %s", shlex.join(command))
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            check=True,
        ).stdout
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or error.stdout.strip() or "no output").splitlines()[-1]
        message = f"exit status {error.returncode}: {last}"
    except (OSError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        message = str(error)
    raise TrtspecError(f"failed: {message}", where=where, hint=hint)
