# SPDX-License-Identifier: Apache-2.0
"""Runs a command whose whole process tree is killed when the caller exits; a standalone program, started by file name.

    python kill_on_parent_exit.py GRACE_S CLEANUP COMMAND ...

The caller keeps the write end of standard input open. When it is closed, for example because the caller was killed, the
command receives SIGTERM, and after GRACE_S seconds all its descendants receive SIGKILL. When the command exits by
itself, its remaining descendants are killed, too. Then CLEANUP runs, which is a JSON list of arguments; an empty list
runs nothing. The exit status is the command's, or 128 plus the number of the signal that killed it. The program imports
only the standard library, so that it starts within milliseconds. It requires Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time

PR_SET_CHILD_SUBREAPER = 36
CANNOT_START = 127
PATIENCE_S = 5.0
CLEANUP_S = 60.0


def main(grace_s: float, cleanup: list[str], command: list[str]) -> int:
    """Run the command until it or the caller exits, then clean up; return the exit status."""
    # orphans of the command's process tree are reparented to this process, even from other sessions
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)  # noqa: T201  part of the command's output
        return CANNOT_START
    threading.Thread(target=_terminate_with_caller, args=(process, grace_s), daemon=True).start()
    status = process.wait()  # unbounded: the thread terminates the process when the caller closes the pipe
    _kill_descendants()
    if cleanup:
        devnull = subprocess.DEVNULL
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(cleanup, stdin=devnull, stdout=devnull, stderr=devnull, check=False, timeout=CLEANUP_S)
    return 128 - status if status < 0 else status


def _terminate_with_caller(process: subprocess.Popen[bytes], grace_s: float) -> None:
    while os.read(0, 1):
        pass
    process.terminate()
    time.sleep(grace_s)
    _kill_descendants()


def _kill_descendants() -> None:
    deadline = time.monotonic() + PATIENCE_S
    while (found := _descendants()) and time.monotonic() < deadline:
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _descendants() -> set[int]:
    """Return the process ids of the living descendants of this process."""
    parents = {int(name): parent for name in os.listdir("/proc") if name.isdigit() and (parent := _parent(name))}
    found: set[int] = set()
    fresh = {os.getpid()}
    while fresh := {pid for pid, parent in parents.items() if parent in fresh}:
        found |= fresh
    return found


def _parent(pid: str) -> int:
    """Return the parent of a living process; 0 if the process has exited."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            text = file.read()
    except OSError:
        return 0
    state, parent = text[text.rindex(")") + 2 :].split()[:2]
    return 0 if state in "ZX" else int(parent)


if __name__ == "__main__":
    # sys.exit could block in interpreter shutdown, because the thread may still read from the pipe
    os._exit(main(float(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]))
