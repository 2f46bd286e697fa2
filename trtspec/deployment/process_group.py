# SPDX-License-Identifier: Apache-2.0
"""A running child of the supervisor: the leader of a process group that is ended as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trtspec.core.processes import die_with_parent, group_processes, wait_until
from trtspec.deployment.process_specs import ProcessSpec
from trtspec.serving.triton.env_filter import without_secrets

KILL_S = 5.0
WARN_S = 2.0  # for final errors to open requests; includes a 1 s margin beyond the server's own drain
START_S = 60.0  # for fork and exec on a busy machine
# PR_SET_PDEATHSIG fires when the starting thread ends, so one permanent thread starts all children.
SPAWN_THREAD = ThreadPoolExecutor(1, thread_name_prefix="starter")


@dataclass
class ProcessGroup:
    """A process spec and its running process."""

    child: ProcessSpec
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, child: ProcessSpec) -> ProcessGroup:
        """Start a process that receives SIGTERM when this process ends; it inherits this process's output.

        Files that it creates are private to this user. Secrets are removed from its environment, except those in the
        spec.
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
        """End the process group: SIGTERM to the leader, SIGKILL to all after `drain_s`.

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
