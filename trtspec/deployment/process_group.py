# SPDX-License-Identifier: Apache-2.0
"""Processes of a deployment: specs that are saved for restarts, and running process groups."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from trtspec.core.files import read_bounded, replace_file
from trtspec.core.ports import LOOPBACK
from trtspec.core.processes import die_with_parent, group_processes, wait_until
from trtspec.serving.triton.hardening import without_secrets

MAX_SPECS_BYTES = 1 << 20


@dataclass(frozen=True)
class ProcessSpec:
    """The specification of a process of a deployment.

    Attributes:
        url: URL of the health check.
        environment: additional environment variables.
        start_s: time limit in seconds until the first answer.
        listens: ports by name, bound at the address `host`.
    """

    name: str
    argv: Sequence[str]
    url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 300.0
    listens: Mapping[str, int] = field(default_factory=dict)
    host: str = LOOPBACK


def write_process_specs(path: Path, children: Sequence[ProcessSpec]) -> None:
    """Write process specs with mode 0600, because an environment may contain a secret."""
    replace_file(path, json.dumps([asdict(child) for child in children], indent=1).encode(), mode=0o600)


def read_process_specs(path: Path) -> list[ProcessSpec]:
    """Return the process specs in a file, the server's first."""
    return [ProcessSpec(**each) for each in json.loads(read_bounded(path, MAX_SPECS_BYTES))]


KILL_S = 5.0
WARN_S = 2.0  # time for final errors to open requests; includes a 1 s margin after the server's own drain
START_S = 60.0  # time limit for fork and exec on a busy machine
# PR_SET_PDEATHSIG fires when the starting thread ends, so one permanent thread starts all children.
SPAWN_THREAD = ThreadPoolExecutor(1, thread_name_prefix="starter")


@dataclass
class ProcessGroup:
    child: ProcessSpec
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, child: ProcessSpec) -> ProcessGroup:
        """Start a process that receives SIGTERM when this process ends; it inherits this process's output.

        Files that it creates are private to this user. Likely secrets are removed from its environment, except for the
        spec's own variables.
        """
        arrange = die_with_parent()

        def prepare() -> None:
            os.setpgid(0, 0)
            arrange()

        environment = {**without_secrets(os.environ), **child.environment}
        begun = SPAWN_THREAD.submit(
            subprocess.Popen,
            [*child.argv],
            stdin=subprocess.DEVNULL,
            env=environment,
            umask=0o077,
            preexec_fn=prepare,  # a few system calls, no lock
        )
        return cls(child, begun.result(START_S))

    def end(self, drain_s: float, warn: Callable[[], None] = lambda: None) -> None:
        """End the process group: SIGTERM to the leader, SIGKILL to all processes after `drain_s` seconds.

        `warn` is called WARN_S before SIGKILL, or at half of a shorter `drain_s`.
        """
        if drain_s and self.process.poll() is None:
            warn_s = min(WARN_S, drain_s / 2)
            self.process.terminate()
            if not self._ends_within(drain_s - warn_s):
                warn()
                self._ends_within(warn_s)
        wait_until(self._is_killed, KILL_S)
        self._ends_within(KILL_S)  # do not wait longer for a process that the kernel cannot kill

    def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def _is_killed(self) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return not group_processes(self.process.pid)
