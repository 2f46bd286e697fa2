# SPDX-License-Identifier: Apache-2.0
"""Run commands in tmux terminals, whose screens are captured, and in pipes.

Every command runs in a fork of one process with slow imports done (`tests/_support/forks.py`), so a screen takes
tenths of a second.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROWS = 200
WIDTHS = (80, 120)
WAIT_S = 60.0
ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")
# Variables that rich and typer interpret as user preferences or as a terminal's width.
WISHES = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "CI", "GITHUB_ACTIONS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")


@dataclass(frozen=True)
class Shown:
    """Result of a command: exit code, and the screen with escapes (terminal) or both streams (pipe)."""

    code: int
    out: str
    err: str = ""


class Commands:
    """Runs commands in forks of one process."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        plain = {key: value for key, value in os.environ.items() if key not in WISHES}
        self._environment = {**plain, "TERM": "xterm-256color", "TZ": "UTC", "LC_ALL": "C.UTF-8", **environment}
        argv = [sys.executable, "-m", "tests._support.forks"]
        self._forks = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, arguments: Sequence[str], streams: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a command with these files as its three streams, and return its exit code."""
        assert self._forks.stdin is not None
        assert self._forks.stdout is not None
        job = {
            "arguments": list(arguments),
            "streams": list(streams),
            "directory": str(self._directory),
            "environment": {**self._environment, **environment},
        }
        print(json.dumps(job), file=self._forks.stdin, flush=True)
        return int(self._forks.stdout.readline())

    def end(self) -> None:
        """Terminate the forking process."""
        self._forks.communicate(timeout=WAIT_S)


class Terminals:
    """A tmux server with a terminal for each width."""

    def __init__(self, socket: Path) -> None:
        self._tmux_argv = ["tmux", "-S", str(socket), "-f", os.devnull]
        self._number = 0
        for width in WIDTHS:
            size = ["-x", str(width), "-y", str(ROWS)]
            self._tmux("new-session", "-d", "-s", f"w{width}", *size, "stty -echo; exec sleep 600")
        self._ttys = {width: self._tmux("display", "-p", "-t", f"w{width}", "#{pane_tty}").strip() for width in WIDTHS}

    def run(self, commands: Commands, width: int, arguments: Sequence[str], **environment: str) -> Shown:
        """Run a command in a terminal; the resulting screen is its output with escapes."""
        tty = self._ttys[width]
        self._number += 1
        start, end = (f"[{which} {self._number}]" for which in ("start", "end"))
        self._write(tty, f"\x1bc{start}\r\n")
        code = commands.run(arguments, [tty] * 3, environment)
        self._write(tty, f"\x1b[0m{end}\r\n")
        return Shown(code, self._between(width, start, end))

    def end(self) -> None:
        """Stop the server and its processes."""
        self._tmux("kill-server")

    def _write(self, tty: str, text: str) -> None:
        with open(tty, "w", newline="") as file:
            file.write(text)

    def _between(self, width: int, start: str, end: str) -> str:
        """Return the screen between two marks once both are present, because tmux reads output asynchronously."""
        give_up = time.monotonic() + WAIT_S
        while True:
            screen = self._tmux("capture-pane", "-p", "-e", "-t", f"w{width}")
            _, found_start, rest = screen.partition(start + "\n")
            shown, found_end, _ = rest.rpartition(end)
            if found_start and found_end:
                return shown
            assert time.monotonic() < give_up, screen
            time.sleep(0.01)

    def _tmux(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._tmux_argv, *arguments], capture_output=True, text=True, check=True, timeout=WAIT_S,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        return done.stdout


def piped(commands: Commands, folder: Path, arguments: Sequence[str], **environment: str) -> Shown:
    """Run a command with its output in files, which like pipes are not terminals."""
    streams = [folder / name for name in ("out", "err")]
    for stream in streams:
        stream.write_text("")
    code = commands.run(arguments, [os.devnull, *map(str, streams)], environment)
    return Shown(code, *(stream.read_text() for stream in streams))


@contextmanager
def terminals(folder: Path) -> Iterator[Terminals]:
    """Start a tmux server with its socket in a folder, and stop it afterwards."""
    found = Terminals(folder / "tmux")
    try:
        yield found
    finally:
        found.end()


@contextmanager
def commands(directory: Path, environment: Mapping[str, str]) -> Iterator[Commands]:
    """Start the process that runs commands in a directory, and stop it afterwards."""
    found = Commands(directory, environment)
    try:
        yield found
    finally:
        found.end()


def has_tmux() -> bool:
    """Return whether tmux is available."""
    return shutil.which("tmux") is not None
