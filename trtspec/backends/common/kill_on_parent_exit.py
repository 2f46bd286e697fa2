# SPDX-License-Identifier: Apache-2.0
"""Runs a command so that nothing of it outlives whoever asked for it; itself a program, started by its file.

    python guard.py GRACE_S CLEANUP COMMAND ...

Standard input is a pipe whose other end the asker holds. When it ends, were it because the asker was killed, the
command gets SIGTERM, and GRACE_S seconds later all that came from it SIGKILL. Of a command that ends by itself nothing
remains either. Then CLEANUP runs, a JSON list of words, empty for none. The exit status is the command's, or 128 and
the signal that killed it. Needs the standard library alone, so that it starts in milliseconds; Linux only.
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
    """Run the command to its end, or to the asker's; return the exit status."""
    # what the command's children leave behind when they end becomes ours, whatever session it is in
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)  # noqa: T201  into the command's own output
        return CANNOT_START
    threading.Thread(target=_end_with_asker, args=(process, grace_s), daemon=True).start()
    status = process.wait()  # unbounded: the thread ends it when the asker has had enough
    _kill_descendants()
    if cleanup:
        nothing = subprocess.DEVNULL
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(cleanup, stdin=nothing, stdout=nothing, stderr=nothing, check=False, timeout=CLEANUP_S)
    return 128 - status if status < 0 else status


def _end_with_asker(process: subprocess.Popen[bytes], grace_s: float) -> None:
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
    """Return the living processes that came from this one."""
    parents = {int(name): parent for name in os.listdir("/proc") if name.isdigit() and (parent := _parent(name))}
    found: set[int] = set()
    fresh = {os.getpid()}
    while fresh := {pid for pid, parent in parents.items() if parent in fresh}:
        found |= fresh
    return found


def _parent(pid: str) -> int:
    """Return a living process's parent, 0 for one that has ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            text = file.read()
    except OSError:
        return 0
    state, parent = text[text.rindex(")") + 2 :].split()[:2]
    return 0 if state in "ZX" else int(parent)


if __name__ == "__main__":
    # the thread may still wait for the asker, and an ordinary exit would wait for the thread
    os._exit(main(float(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]))
