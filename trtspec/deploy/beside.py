# SPDX-License-Identifier: Apache-2.0
"""What runs beside a deployment's server: started again where it ended or is stopped, later each time."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.deploy.judge import Restarts
from trtspec.deploy.ports import taken_port
from trtspec.deploy.running import Running
from trtspec.system import process_state


@dataclass
class Beside:
    """One of these; the server serves on without it, so it is tried again even where that did not help often."""

    running: Running
    restarts: Restarts = field(default_factory=Restarts)
    _due: float | None = None  # when it is started again

    def look(self, now: float) -> str:
        """Start it where that is due; returns what went wrong since the last look, "" for nothing."""
        if self._due is None:
            return self._fault(now)
        if now >= self._due:
            self._due, self.running = None, Running.start(self.running.child)
        return ""

    def _fault(self, now: float) -> str:
        status = self.running.process.poll()
        if status is None and process_state(self.running.process.pid) != "T":
            return ""
        self.running.end(0.0)
        delay = self.restarts.delay(now)
        again = self.restarts.within_s if delay is None else delay
        self._due = now + again
        what = "is stopped" if status is None else f"ended by itself with status {status}"
        if taken := taken_port([self.running.child], (), ended=True):
            what += f", because {taken.message},"
        return f"{self.running.child.name} {what}, and is started again {f'in {again:g} s' if again else 'at once'}"
