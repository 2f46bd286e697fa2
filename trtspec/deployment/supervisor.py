# SPDX-License-Identifier: Apache-2.0
"""The process that a local deployment runs under: it starts the server and what is beside it, and watches them.

Until the deployment is live it only ends when the server does. From then on a server that is dead, stopped or hanging
is ended, so that nobody takes it for ready and its open requests fail at once, and started again, later each time; the
record says so. It also carries out rollouts, in which a second server takes the place of the first. It leads the
session of all its children, and none outlives it.
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

from trtspec.core.processes import is_alive
from trtspec.deployment.exit_cause import note_of_signal
from trtspec.deployment.health.policy import Restarts
from trtspec.deployment.journal import DeploymentJournal, Record
from trtspec.deployment.process_specs import Child, read_children
from trtspec.deployment.revision import place_of
from trtspec.deployment.rollout.controller import Roller
from trtspec.deployment.rollout.state import under_way
from trtspec.deployment.server_process import LOOK_EVERY_S, Keeper
from trtspec.deployment.sidecar import Beside


@dataclass
class Supervisor:
    """Watches a deployment's server until it is told to end (`asked`), or gives up."""

    journal: DeploymentJournal
    keeper: Keeper
    beside: Sequence[Child] = ()
    asked: threading.Event = field(default_factory=threading.Event)
    restarts: Restarts = field(default_factory=Restarts)
    running: list[Beside] = field(default_factory=list)  # what is beside the server
    command: tuple[int, int | None] | None = None  # pid and start time of who is to say that it is live
    roller: Roller | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)  # of the record, and of which server is watched

    def run(self) -> int:
        """Return the exit status: 0 where it was told to end, the server's before it was live, 1 where it gave up."""
        try:
            self.keeper.start()
            self.running = [Beside.start(child) for child in self.beside]
            status = self._until_live()
            self.restarts.came_up = status is None
            return self._watch() if status is None and not self.asked.is_set() else status or 0
        finally:
            self._end_all(self.journal.known().drain_s + 1 if self.asked.is_set() else 0.0)

    def replace_keeper(self, keeper: Keeper, record: Record, detail: str) -> Keeper:
        """Watch another server from now on, and note that it serves; returns the one before."""
        with self._lock:
            self.journal.move(record, "live", detail)  # a full disk is noticed here, before anything has changed
            before, self.keeper, self.restarts = self.keeper, keeper, Restarts(came_up=True)
            return before

    def _until_live(self) -> int | None:
        """Return None once the deployment is live, or the status with which the server ended before that.

        1 where the command that deploys ended first: nobody is left who would say that it is live.
        """
        while not self.asked.wait(LOOK_EVERY_S):
            # Looked at before the record is read: what ends once the deployment is live is restarted by `_watch`.
            ended = self.keeper.ended, self.keeper.front_ended, *(each.ended for each in self.running)
            is_left = self.command is not None and not is_alive(*self.command)
            record = self.journal.read()
            if record and record.pid == os.getpid() and record.state == "live":
                break
            if (status := next((each for each in ended if each is not None), None)) is not None:
                return status if status > 0 else 128 - status
            if is_left:
                self._give_up(record, "the command that deployed it ended before it was live")
                return 1
        return None

    def _give_up(self, record: Record | None, reason: str) -> None:
        say(f"failed: {reason}")
        if record and record.pid == os.getpid():  # else it ended before it wrote one
            with self._noting():
                self.journal.move(record, "failed", reason)

    def _watch(self) -> int:
        """Return 0 once this process is to end, 1 where the server fails too often."""
        while not self.asked.is_set():
            keeper = self.keeper
            fault = keeper.fault(lambda watched=keeper: self._is_over(watched))  # type: ignore[misc]
            while fault and not self._is_over(keeper):
                keeper.end_server(0.0)
                delay = self.restarts.delay(time.monotonic())
                if delay is None:
                    self._note(keeper, "failed", f"{fault}; it was started again {self.restarts.at_most} times before")
                    return 1
                self._note(keeper, "restarting", fault)
                fault = self._started_again(keeper, delay)
                if not fault and not self._is_over(keeper):
                    self.restarts.came_up = True
                    self._note(keeper, "live", "started again")
        return 0

    def _started_again(self, keeper: Keeper, delay: float) -> str:
        """Return "" once the server has answered again, or is not watched any more; else why it did not."""
        deadline = time.monotonic() + delay
        while time.monotonic() < deadline and not self._is_over(keeper):
            self.asked.wait(min(delay, LOOK_EVERY_S))
        if self._is_over(keeper):
            return ""
        keeper.start()
        return keeper.until_answered(lambda: self._is_over(keeper))

    def _is_over(self, keeper: Keeper) -> bool:
        """Return whether a server is not to be watched any more; looks after all else on the way."""
        self._keep_beside()
        self._roll_out()
        return self.asked.is_set() or self.keeper is not keeper

    def _keep_beside(self) -> None:
        """Start again what ended beside the server, is stopped or does not answer, and note why."""
        front = self.keeper.front
        for each in (*self.running, *([front] if front else [])):
            if fault := each.look(time.monotonic()):
                say(fault)
                with self._lock, self._noting():
                    self.journal.remark(replace(self.journal.known(), beside=fault), fault)

    def _roll_out(self) -> None:
        """Begin a rollout that somebody staged."""
        if self.roller is not None and self.roller.is_alive():
            return
        record = self.journal.read()
        if (rollout := under_way(self.journal, record)) and rollout.state == "staged":
            assert record is not None
            self.roller = Roller(self.journal, record, rollout, self.replace_keeper, self.asked, say)
            self.roller.start()

    def _end_all(self, drain_s: float) -> None:
        """End all at once: each lets its open requests finish, which are also those of the others."""
        ends = [self.keeper.end, *(each.end for each in self.running)]
        if self.roller is not None:
            ends.append(self.roller.end)
        with ThreadPoolExecutor(len(ends)) as threads:
            list(threads.map(lambda end: end(drain_s), ends))

    def _note(self, keeper: Keeper, state: str, detail: str) -> None:
        """Note a transition of the server that serves; a reason stays in the record when it is live again.

        A full disk is no reason to end a server: its state is then as it was before, and the log says so.
        """
        with self._lock:
            if self.keeper is not keeper:
                return
            record = self.journal.known()
            if state != "live":
                record = replace(record, reason=detail, restarts=record.restarts + (state == "restarting"))
            with self._noting():
                self.journal.move(record, state, detail)
            say(f"{state}: {detail}")

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            say(f"this cannot be noted: {error.strerror}")


def say(what: str) -> None:
    """Add a line to the log of the server, in which its own ends and begins."""
    try:
        sys.stderr.write(f"supervisor: {what}\n")
        sys.stderr.flush()
    except OSError:  # a full disk
        pass


def main() -> None:
    """Supervise a deployment: of this name, from this revision, with this shared memory, begun by this command.

    The last argument, the deployment's directory, is for whoever looks for the process (`trtspec.deployment.recovery`).
    """
    name, revision, shm_prefix, pid, started, _ = sys.argv[1:]
    journal = DeploymentJournal(name)
    keeper = Keeper(journal.root, place_of(journal, int(revision)), shm_prefix)
    supervisor = Supervisor(journal, keeper, read_children(journal.children), command=(int(pid), int(started)))

    def end(number: int, frame: object) -> None:
        supervisor.asked.set()
        with suppress(OSError):  # a full disk; not `say`, whose stream may be in use right now
            os.write(sys.stderr.fileno(), note_of_signal(number))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    try:
        sys.exit(supervisor.run())
    except OSError as error:
        say(f"{error.filename} cannot be started: {error.strerror}")
        sys.exit(1)


if __name__ == "__main__":
    main()
