# SPDX-License-Identifier: Apache-2.0
"""The supervisor process of a local deployment: starts the server and its sidecars, and monitors them.

Before the deployment is live, the supervisor ends when the server does. Afterwards, it ends a server that is dead,
stopped or hanging, so that the server is not reported ready and its open requests fail immediately. It then restarts
the server with back-off and records the reason. It also carries out rollouts, in which a second server replaces the
first. The supervisor leads the session of all its child processes, none of which outlives it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

from trtspec.core.errors import DeployError, TrtspecError
from trtspec.core.processes import is_alive
from trtspec.deployment.health import RestartPolicy
from trtspec.deployment.journal import RUNNING, STARTING, DeploymentJournal, DeploymentRecord
from trtspec.deployment.log import signal_log_line
from trtspec.deployment.ports import conflicting_port
from trtspec.deployment.process_group import ProcessSpec, read_process_specs
from trtspec.deployment.revision import revision_dir
from trtspec.deployment.rollout.controller import RolloutController
from trtspec.deployment.rollout.state import active_rollout
from trtspec.deployment.server_process import LOOK_EVERY_S, ManagedServer, Sidecar


@dataclass
class Supervisor:
    """Monitors a deployment's server until a stop is requested (`asked`) or it gives up."""

    journal: DeploymentJournal
    keeper: ManagedServer
    beside: Sequence[ProcessSpec] = ()
    asked: threading.Event = field(default_factory=threading.Event)
    restarts: RestartPolicy = field(default_factory=RestartPolicy)
    running: list[Sidecar] = field(default_factory=list)  # the sidecars
    command: tuple[int, int | None] | None = None  # pid and start time of the deploying command
    roller: RolloutController | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)  # guards the record and `keeper`

    def run(self) -> int:
        """Run until a stop is requested or the server fails permanently; return the exit status.

        The status is 0 after a request to stop, an error's exit code if the start failed, and 1 otherwise.
        """
        try:
            self.keeper.start()
            self.running = [Sidecar.start(child) for child in self.beside]
            try:
                self._start()
            except TrtspecError as error:
                write_log_line(f"failed: {error.message}")
                if record := self._current_record(*STARTING):
                    with self._logged_os_errors():
                        self.journal.move(replace(record, reason=error.message), "failed", error.message)
                return error.exit_code
            if self.asked.is_set():
                return 0
            self.restarts.came_up = True
            return self._watch()
        finally:
            self._end_all(self.journal.read_existing().drain_s + 1 if self.asked.is_set() else 0.0)

    def replace_server(self, keeper: ManagedServer, record: DeploymentRecord, detail: str) -> ManagedServer:
        """Monitor another server from now on, record it as live and return the previous server."""
        with self._lock:
            self.journal.move(record, "live", detail)  # a full disk raises here, before anything has changed
            before, self.keeper, self.restarts = self.keeper, keeper, RestartPolicy(came_up=True)
            return before

    def _start(self) -> None:
        """Wait until the deployment is live or a stop is requested; raises TrtspecError if the start fails.

        The deploying command evaluates the gates after the first answer, and then sets the state to live.
        """
        self.keeper.until_ready(self._is_started)
        self._note_start("loaded")
        self.keeper.until_answered(self._is_started)
        self._note_start("smoke")
        while not self._is_started():
            if (status := self.keeper.ended) is not None:
                raise DeployError(f"the server exited with status {status} before it was live")
            self.asked.wait(LOOK_EVERY_S)

    def _is_started(self) -> bool:
        """Return True if the deployment is live or a stop is requested; raises DeployError if neither can follow."""
        # Checked before reading the record: `_watch` restarts processes that end once the deployment is live.
        ended = [each for each in (*self.running, self.keeper.front) if each and each.ended is not None]
        is_left = self.command is not None and not is_alive(*self.command)
        if self.asked.is_set() or self._current_record(*RUNNING):
            return True
        if is_left:
            raise DeployError("the command that deployed it ended before it was live")
        for each in ended:
            child = each.running.child
            raise conflicting_port(child, (), ended=True) or DeployError(
                f"the {child.name} exited with status {each.ended} during startup"
            )
        return False

    def _current_record(self, *states: str) -> DeploymentRecord | None:
        """Return the record if it names this process and has one of these states, else None."""
        record = self.journal.read()
        return record if record and record.pid == os.getpid() and record.state in states else None

    def _note_start(self, state: str) -> None:
        """Record a step of the start, after the command has recorded this process."""
        while not (record := self._current_record(*STARTING)):
            if self._is_started():
                return
            self.asked.wait(LOOK_EVERY_S)
        self.journal.move(record, state)

    def _watch(self) -> int:
        """Monitor and restart the server; return 0 after a request to stop, 1 if the server fails too often."""
        while not self.asked.is_set():
            keeper = self.keeper
            fault = keeper.fault(lambda watched=keeper: self._is_over(watched))  # type: ignore[misc]
            while fault and not self._is_over(keeper):
                keeper.end_server(0.0)
                delay = self.restarts.delay(time.monotonic())
                if delay is None:
                    self._note(keeper, "failed", f"{fault}; gave up after {self.restarts.at_most} restarts")
                    return 1
                self._note(keeper, "restarting", fault)
                fault = self._restart(keeper, delay)
                if not fault and not self._is_over(keeper):
                    self.restarts.came_up = True
                    self._note(keeper, "live", "restarted")
        return 0

    def _restart(self, keeper: ManagedServer, delay: float) -> str:
        """Restart a server after `delay` seconds; return "" once it answers or monitoring ends, else the failure."""
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline and not self._is_over(keeper):
            self.asked.wait(min(delay, LOOK_EVERY_S))
        if self._is_over(keeper):
            return ""
        keeper.start()
        try:
            keeper.until_ready(lambda: self._is_over(keeper))
            keeper.until_answered(lambda: self._is_over(keeper))
        except TrtspecError as error:
            return error.message
        return ""

    def _is_over(self, keeper: ManagedServer) -> bool:
        """Return True if monitoring of a server has ended; also checks sidecars and begins staged rollouts."""
        self._check_sidecars()
        self._roll_out()
        return self.asked.is_set() or self.keeper is not keeper

    def _check_sidecars(self) -> None:
        """Restart sidecars that have ended, are stopped or do not answer, and record the reason."""
        front = self.keeper.front
        for each in (*self.running, *([front] if front else [])):
            if fault := each.check(time.monotonic()):
                write_log_line(fault)
                with self._lock, self._logged_os_errors():
                    self.journal.annotate(replace(self.journal.read_existing(), beside=fault), fault)

    def _roll_out(self) -> None:
        """Begin a staged rollout, unless one is in progress."""
        if self.roller is not None and self.roller.is_alive():
            return
        record = self.journal.read()
        if (rollout := active_rollout(self.journal, record)) and rollout.state == "staged":
            assert record is not None
            self.roller = RolloutController(
                self.journal, record, rollout, self.replace_server, self.asked, write_log_line
            )
            self.roller.start()

    def _end_all(self, drain_s: float) -> None:
        """End all processes in parallel, because each drains requests that also pass through the others."""
        ends = [self.keeper.end, *(each.end for each in self.running)]
        if self.roller is not None:
            ends.append(self.roller.end)
        with ThreadPoolExecutor(len(ends)) as threads:
            list(threads.map(lambda end: end(drain_s), ends))

    def _note(self, keeper: ManagedServer, state: str, detail: str) -> None:
        """Record a transition of the live server; the reason of a restart remains in the record afterwards.

        A full disk does not end a server: the state file then keeps the previous state, and the log has the error.
        """
        with self._lock:
            if self.keeper is not keeper:
                return
            record = self.journal.read_existing()
            if state != "live":
                record = replace(record, reason=detail, restarts=record.restarts + (state == "restarting"))
            with self._logged_os_errors():
                self.journal.move(record, state, detail)
            write_log_line(f"{state}: {detail}")

    @contextmanager
    def _logged_os_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            write_log_line(f"cannot record this: {error.strerror}")


def write_log_line(what: str) -> None:
    try:
        sys.stderr.write(f"supervisor: {what}\n")
        sys.stderr.flush()
    except OSError:  # a full disk
        pass


def main() -> None:
    """Run the supervisor process of a deployment.

    Command-line arguments: name, revision, shared memory prefix, pid and start time of the deploying command, and the
    deployment's directory, by which `trtspec.deployment.journal` finds the process.
    """
    name, revision, shm_prefix, pid, started, _ = sys.argv[1:]
    journal = DeploymentJournal(name)
    keeper = ManagedServer(journal.root, revision_dir(journal, int(revision)), shm_prefix)
    supervisor = Supervisor(journal, keeper, read_process_specs(journal.children), command=(int(pid), int(started)))

    def end(number: int, frame: object) -> None:
        supervisor.asked.set()
        with suppress(OSError):  # a full disk; not `write_log_line`, whose stream may be locked
            os.write(sys.stderr.fileno(), signal_log_line(number))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        sys.exit(supervisor.run())
    except OSError as error:
        write_log_line(f"{error.filename} cannot be started: {error.strerror}")
        sys.exit(1)


if __name__ == "__main__":
    main()
