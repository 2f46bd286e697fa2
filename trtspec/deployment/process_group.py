# SPDX-License-Identifier: Apache-2.0
"""A child of the supervisor while it runs: the leader of a process group, which ends as a whole."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from trtspec.core.processes import die_with_parent, group_of, wait_until
from trtspec.deployment.process_specs import Child
from trtspec.serving.triton.env_filter import without_secrets

KILL_S = 5.0
WARN_S = 2.0  # for the last words of open requests; a second of it is the margin beyond the server's own drain
START_S = 60.0  # a fork and an exec on a machine with other work
# A child gets SIGTERM when the thread that started it ends, so that one thread starts all of them, as long as we live.
STARTER = ThreadPoolExecutor(1, thread_name_prefix="starter")


@dataclass
class Running:
    """A child and its process."""

    child: Child
    process: subprocess.Popen[bytes]

    @classmethod
    def start(cls, child: Child) -> Running:
        """Start a child, which gets SIGTERM when this process ends; what it says goes where our output goes.

        What it writes is this user's alone, and it gets no secrets of this environment but those that are passed on.
        """
        arrange = die_with_parent()

        def prepare() -> None:
            os.setpgid(0, 0)
            arrange()

        environment = {**without_secrets(os.environ), **child.environment}
        begun = STARTER.submit(
            subprocess.Popen,
            [*child.argv],
            stdin=subprocess.DEVNULL,
            env=environment,
            umask=0o077,
            preexec_fn=prepare,  # a few system calls, no lock
        )
        return cls(child, begun.result(START_S))

    def end(self, drain_s: float, warn: Callable[[], None] = lambda: None) -> None:
        """End it and what it started: by SIGTERM, and what still runs after `drain_s` by SIGKILL.

        `warn` is called WARN_S before that, or at half of a shorter time.
        """
        if drain_s and self.process.poll() is None:
            warn_s = min(WARN_S, drain_s / 2)
            self.process.terminate()
            if not self._ends_within(drain_s - warn_s):
                warn()
                self._ends_within(warn_s)
        wait_until(self._is_killed, KILL_S)
        self._ends_within(KILL_S)  # what the kernel cannot end is nothing that others have to end for

    def _ends_within(self, seconds: float) -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def _is_killed(self) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return not group_of(self.process.pid)
