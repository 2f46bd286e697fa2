# SPDX-License-Identifier: Apache-2.0
"""Runs the build tools of other projects, and finds their installed versions.

A tool's output is written to a log, its timeout is enforced, and none of its processes outlives the call.
"""

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
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from trtspec.backends.common import kill_on_parent_exit
from trtspec.core.errors import StepError, StepTimeout, TrtspecError
from trtspec.core.paths import cache_dir
from trtspec.core.processes import program_output
from trtspec.store.step import Step

MOST_SCRIPT_BYTES = 4096

TENSORRT = ("tensorrt", "tensorrt_cu13", "tensorrt_cu12")  # the names of its wheels may include CUDA's version
_PROBE = """
import json, sys
from importlib import metadata
def version(names):
    return next((each.version for name in names for each in metadata.distributions(name=name)), None)
print(json.dumps([version(names) for names in json.loads(sys.argv[1])]))
"""
log = logging.getLogger(__name__)
GRACE_S = 5.0  # between SIGTERM and SIGKILL
POLL_S = 0.1
SHOWN_LINES = 20
MOST_LINE_BYTES = 8 << 10
# Environment variables that are passed to a tool. The others may be secret or may change the build.
VARIABLES = (
    "PATH", "HOME", "USER", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "CUDA_HOME", "CUDA_PATH",
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "XDG_RUNTIME_DIR", "DOCKER_HOST",
    "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST",
)  # fmt: skip


def installed_versions(script: Path, package: str) -> tuple[str | None, str | None]:
    """Return the versions of a package and of TensorRT in a script's Python environment, or None if not installed.

    Raise TrtspecError if the script is not a Python program or its interpreter fails.
    """
    # run in the root directory, because an interpreter also imports modules from its working directory
    command = [*find_interpreter(script), "-c", _PROBE, json.dumps([(package,), TENSORRT])]
    output = program_output(command, str(script), "reinstall it", cwd="/")
    try:
        found, tensorrt = json.loads(output)
    except (ValueError, TypeError):
        raise TrtspecError(f"its interpreter printed {output[:80]!r}, not versions", where=str(script)) from None
    return found, tensorrt


def check_same_tools(step: str, planned: Iterable[tuple[str, str]], here: Iterable[tuple[str, str]]) -> None:
    """Raise StepError with the names and values of the tools that differ from those that a step was planned with."""
    found = dict(here)
    differing = [
        f"{name} is {found.get(name) or 'absent'} instead of {value or 'absent'}"
        for name, value in planned
        if found.get(name) != value
    ]
    if differing:
        hint = "run the same command again; if the nodes differ, give them labels, and name one in fleet.labels"
        raise StepError(f"this machine cannot run {step} as it was planned: {', '.join(differing)}", hint=hint)


def find_interpreter(script: Path) -> list[str]:
    """Return the interpreter command of a Python script; raise TrtspecError if the script is not a Python program.

    The command is in the first line, or in the second if pip found it too long for the first.
    """
    with script.open("rb") as file:
        lines = file.read(MOST_SCRIPT_BYTES).decode(errors="replace").splitlines()
    words = lines[0][2:].split() if lines and lines[0].startswith("#!") else []
    if words == ["/bin/sh"] and len(lines) > 1 and (found := re.match(r"'''exec' (.+) \"\$0\"", lines[1])):
        words = shlex.split(found[1])
    if not words or "python" not in words[-1]:
        raise TrtspecError("not a Python program", where=str(script), hint="check PATH")
    return words


@dataclass(frozen=True)
class Tool:
    """A command with its working directory, log file and timeout; `variables` are added to its environment.

    `cleanup` is a command that always runs afterwards, even if this process is killed, for example to remove a
    container. `grace_s` is the time between SIGTERM and SIGKILL.
    """

    command: Sequence[str]
    cwd: Path
    log: Path
    timeout_s: float
    variables: Mapping[str, str] = field(default_factory=dict)
    cleanup: Sequence[str] = ()
    grace_s: float = GRACE_S


def run_tool(
    tool: Tool, on_line: Callable[[str], None] = lambda line: None, on_wait: Callable[[], None] = lambda: None
) -> None:
    """Run a tool until it exits; raise StepError or StepTimeout with the last lines of its output.

    `on_line` is called with each line of output, and `on_wait` several times per second. An exception from either
    terminates the tool. No process of the tool survives this call, even if this process is killed.
    """
    log.info("running %s in %s, output in %s", shlex.join(tool.command), tool.cwd, tool.log)
    started = time.monotonic()
    deadline, output = started + tool.timeout_s, _Log(tool)

    def poll() -> None:
        on_wait()
        if time.monotonic() >= deadline:
            raise output.error(StepTimeout, f"{tool.command[0]} did not finish within {tool.timeout_s:g} s")

    with output.opened(), _guarded(tool) as process:
        for line in _lines(process.stdout, poll):
            output.add(line)
            on_line(line)
        status = _status(process, poll)
    log.info("%s exited with %d after %.1f s", tool.command[0], status, time.monotonic() - started)
    if status:
        raise output.error(StepError, f"{tool.command[0]} failed with {_describe_status(status)}")


class _Log:
    """The output of a tool: a complete log file, and the last lines in memory for error messages."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool
        self._recent: deque[str] = deque(maxlen=SHOWN_LINES)
        self._file: IO[str] | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        self._tool.log.parent.mkdir(parents=True, exist_ok=True)
        # line-buffered, so that the log can be followed while the tool runs
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
        shown = "\n".join(self._recent) or "(no output)"
        return kind(message, hint=f"the end of {self._tool.log}:\n{shown}")

    def _write(self, line: str) -> None:
        # the log is optional: on a full disk the tool fails anyway, and its last lines are in memory
        with suppress(OSError):
            if self._file:
                self._file.write(line + "\n")


def log_path(step: Step) -> Path:
    """Return the path of the log of a step's tool; logs are never deleted, because error messages refer to them."""
    return cache_dir() / "logs" / f"{step.name}-{step.key[:12]}.log"


@contextmanager
def linked_workdir(out: Path, links: Mapping[str, Path]) -> Iterator[Path]:
    """Create a temporary working directory for a tool, with symbolic links to its inputs and its output directory."""
    # next to the output, where the store cleans up after a killed build
    with tempfile.TemporaryDirectory(dir=out.parent, prefix="work-") as name:
        workdir = Path(name)
        for link, target in links.items():
            (workdir / link).parent.mkdir(exist_ok=True)
            (workdir / link).symlink_to(target.absolute())
        yield workdir


def visible_gpus(devices: Sequence[str]) -> dict[str, str]:
    """Return environment variables that make only the given GPUs visible; ids are nvidia-smi's."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(devices)}


def rebuild_script(comments: Iterable[str], commands: Iterable[str]) -> str:
    """Return a shell script that builds an artifact's engines in a new directory with a link to its checkpoints."""
    lines = (
        "#!/bin/sh",
        *(f"# {comment}" for comment in comments),
        "set -eu",
        'artifact=$(cd "$(dirname "$0")" && pwd)',
        'mkdir "${1:?a new directory for the engines}"',
        'cd "$1"',
        'ln -s "$artifact/checkpoints" checkpoints',
        *commands,
    )
    return "\n".join(lines) + "\n"


@contextmanager
def _guarded(tool: Tool) -> Iterator[subprocess.Popen[bytes]]:
    """Run a tool under `kill_on_parent_exit`; leaving the block terminates the tool and waits for it."""
    cleanup = json.dumps(list(tool.cleanup))
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", kill_on_parent_exit.__file__, str(tool.grace_s), cleanup, *tool.command],
        cwd=tool.cwd,
        env={name: os.environ[name] for name in VARIABLES if name in os.environ} | dict(tool.variables),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches only this process, which then terminates the tool
    )
    try:
        yield process
    finally:
        for stream in (process.stdout, process.stdin):
            if stream:
                stream.close()
        process.wait()  # unbounded: the guard kills the tool within its grace period and then exits


def _status(process: subprocess.Popen[bytes], on_wait: Callable[[], None]) -> int:
    """Wait for a process to exit and return its status; `on_wait` is called while waiting."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(POLL_S)
        on_wait()


def _lines(stream: IO[bytes] | None, on_wait: Callable[[], None]) -> Iterator[str]:
    """Yield the lines of a stream as they arrive; lines longer than MOST_LINE_BYTES are split."""
    if stream is None:
        raise ValueError("the tool's output is not a pipe")
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
    """Return a line as text, without terminal control sequences."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw.decode(errors="replace"))
    return "".join(character if character.isprintable() else " " for character in text).rstrip()


def _describe_status(status: int) -> str:
    if status == kill_on_parent_exit.CANNOT_START:
        return f"exit status {status}: it cannot be started"
    if status <= 128:
        return f"exit status {status}"
    try:
        name = signal.Signals(status - 128).name
    except ValueError:
        return f"exit status {status}"
    return f"{name}; {'the machine may be out of memory' if name == 'SIGKILL' else 'another process stopped it'}"
