# SPDX-License-Identifier: Apache-2.0
"""Runs a builder to its end: its words to a log and to whoever listens, its end within the time, nothing left of it."""

from __future__ import annotations

import json
import logging
import os
import re
import selectors
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from trtspec.backends.common import kill_on_parent_exit
from trtspec.core.errors import StepError, StepTimeout

log = logging.getLogger(__name__)

GRACE_S = 5.0  # between SIGTERM and SIGKILL
POLL_S = 0.1
SHOWN_LINES = 20
MOST_LINE_BYTES = 8 << 10

# What a builder needs of our environment. Nothing else is passed on: it may be secret, or change what is built.
VARIABLES = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "XDG_RUNTIME_DIR", "DOCKER_HOST",
    "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST",
)  # fmt: skip


@dataclass(frozen=True)
class Tool:
    """A command to run in `cwd`; `log` is where its words go, `variables` is what its environment has beside ours.

    `cleanup` is a command that runs after it, however it ended, were it with us: what removes a container.
    """

    command: Sequence[str]
    cwd: Path
    log: Path
    timeout_s: float
    variables: Mapping[str, str] = field(default_factory=dict)
    cleanup: Sequence[str] = ()
    grace_s: float = GRACE_S


def tool_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a tool."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ} | dict(variables)


def run_tool(
    tool: Tool, on_line: Callable[[str], None] = lambda line: None, on_wait: Callable[[], None] = lambda: None
) -> None:
    """Run a tool to its end; `on_line` gets its lines, `on_wait` is called several times a second.

    Raises StepTimeout and StepError with the log's last lines; what `on_line` and `on_wait` raise ends the tool too.
    When this returns or raises, and also when this process is killed, nothing of the tool runs any more.
    """
    log.info("in %s run %s, its output goes to %s", tool.cwd, shlex.join(tool.command), tool.log)
    started = time.monotonic()
    deadline, said = started + tool.timeout_s, _Log(tool)

    def keep_waiting() -> None:
        on_wait()
        if time.monotonic() >= deadline:
            raise said.error(StepTimeout, f"{tool.command[0]} did not end within {tool.timeout_s:g} s")

    with said.opened(), _guarded(tool) as process:
        for line in _lines(process.stdout, keep_waiting):
            said.add(line)
            on_line(line)
        status = _status(process, keep_waiting)
    log.info("%s ended with %d after %.1f s", tool.command[0], status, time.monotonic() - started)
    if status:
        raise said.error(StepError, f"{tool.command[0]} ended with {_in_words(status)}")


class _Log:
    """What a tool said: all of it in a file, the last lines in memory too."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._recent: deque[str] = deque(maxlen=SHOWN_LINES)
        self._file: IO[str] | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Write to the file within the block, from its beginning."""
        self._tool.log.parent.mkdir(parents=True, exist_ok=True)
        # unbuffered but for the line: whoever looks while it runs sees what it does
        self._file = self._tool.log.open("w", buffering=1, encoding="utf-8")
        self._write(f"$ cd {shlex.quote(str(self._tool.cwd))} && {shlex.join(self._tool.command)}")
        try:
            yield
        finally:
            with suppress(OSError):
                self._file.close()

    def add(self, line: str) -> None:
        self._recent.append(line)
        self._write(line)

    def error(self, kind: type[StepError | StepTimeout], message: str) -> StepError | StepTimeout:
        shown = "\n".join(self._recent) or "(it said nothing)"
        return kind(message, hint=f"the end of {self._tool.log}:\n{shown}")

    def _write(self, line: str) -> None:
        # A full disk ends the tool as well, and its words about that are in memory; the log is worth less than they.
        with suppress(OSError):
            if self._file:
                self._file.write(line + "\n")


@contextmanager
def _guarded(tool: Tool) -> Iterator[subprocess.Popen[bytes]]:
    """Run a tool under its guard, whose end within the block is the tool's own, and after it the tool's end."""
    cleanup = json.dumps(list(tool.cleanup))
    process = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            str(Path(kill_on_parent_exit.__file__)),
            str(tool.grace_s),
            cleanup,
            *tool.command,
        ],
        cwd=tool.cwd,
        env=tool_environment(tool.variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # so that an interrupt at the terminal is ours alone, and we end the tool in order
    )
    try:
        yield process
    finally:
        for stream in (process.stdout, process.stdin):
            if stream:
                stream.close()
        process.wait()  # unbounded: the guard ends what it guards within its grace, and then itself


def _status(process: subprocess.Popen[bytes], on_wait: Callable[[], None]) -> int:
    """Return how a process ended, which may have closed its output long before."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        on_wait()


def _lines(stream: IO[bytes] | None, on_wait: Callable[[], None]) -> Iterator[str]:
    """Yield lines as they come until the stream ends; one that never ends comes in pieces."""
    if stream is None:
        raise ValueError("the tool's output is no pipe")
    rest, ended = b"", False
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while not ended:
            on_wait()
            if not selector.select(POLL_S):
                continue
            chunk = os.read(stream.fileno(), MOST_LINE_BYTES)
            ended = not chunk
            *lines, rest = re.split(rb"[\r\n]+", rest + chunk)
            if ended or len(rest) >= MOST_LINE_BYTES:
                lines, rest = [*lines, rest], b""
            yield from filter(None, map(_printable, lines))


def _printable(raw: bytes) -> str:
    """Return a line without what would move the cursor of whoever reads it."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw.decode(errors="replace"))
    return "".join(character if character.isprintable() else " " for character in text).rstrip()


def _in_words(status: int) -> str:
    if status == kill_on_parent_exit.CANNOT_START:
        return f"exit status {status}: it cannot be started"
    if status <= 128:
        return f"exit status {status}"
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return f"exit status {status}"
    return f"{name}; {'the machine may be out of memory' if name == 'SIGKILL' else 'something ended it'}"
