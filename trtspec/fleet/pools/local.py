# SPDX-License-Identifier: Apache-2.0
"""Worker processes on this machine: `--on local:N` runs at most N steps at once, and the default runs one.

A worker is started when it is first needed, and runs one step after another. Steps that require devices get their own
workers, as far as devices are free. An exclusive step runs alone, with all devices. A worker that ends, for example
because memory ran out, loses only its step.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.core.paths import store_dir
from trtspec.core.processes import die_with_parent, sigterm_as_interrupt
from trtspec.fleet.labels import Node
from trtspec.fleet.pool import Event, Finished, Lost, Pool, PoolKind, PoolOptions, Started, Task
from trtspec.fleet.worker import SentProgress, run_step
from trtspec.store.store import Store
from trtspec.store.team.environment import open_remote

NAME = "local"
MAX_WORKERS = 256
STOP_S = 10.0  # for a step to clean up after SIGTERM, before SIGKILL
REPORT_S = 0.1  # between two reports of a step's progress


@dataclass
class Worker:
    """A worker process, with its current task and the devices lent to it."""

    process: BaseProcess
    connection: Connection
    task: Task | None = None
    devices: tuple[str, ...] = ()


class LocalPool(Pool):
    """Runs at most `workers` steps at once, and further steps on `devices`."""

    def __init__(self, workers: int, devices: Sequence[str] = (), store: Path | None = None) -> None:
        self._limit, self._devices = workers, list(devices)
        self._free = list(devices)
        self._store = store or store_dir()
        self._queue: list[Task] = []
        self._workers: list[Worker] = []

    def nodes(self) -> list[Node]:
        """Return this machine, which fits all steps: the check before the build has refused what it lacks."""
        return [Node(NAME, {}, self._limit, len(self._devices), fits_all=True)]

    def submit(self, task: Task) -> None:
        self._queue.append(task)
        self._dispatch()

    def wait(self, timeout_s: float) -> list[Event]:
        ready = wait([each.connection for each in self._workers if each.task], timeout_s)
        events: list[Event] = []
        for worker in [each for each in self._workers if each.connection in ready]:
            events += self._receive(worker)
        self._dispatch()
        return events

    def cancel(self, key: str) -> None:
        self._queue = [task for task in self._queue if task.step.key != key]
        for worker in [each for each in self._workers if each.task and each.task.step.key == key]:
            self._discard(worker)

    def close(self) -> None:
        self._queue, workers = [], self._workers
        self._workers = []
        for worker in workers:
            worker.connection.close()
        stop([worker.process for worker in workers], busy=any(worker.task for worker in workers))

    def _dispatch(self) -> None:
        """Start the queued steps for which a worker and enough devices are free."""
        for task in list(self._queue):
            wanted = (
                len(self._devices) if task.requirement.exclusive else min(task.step.num_devices, len(self._devices))
            )
            if self._is_free(task, wanted):
                self._queue.remove(task)
                devices, self._free = tuple(self._free[:wanted]), self._free[wanted:]
                self._start(task, devices)

    def _is_free(self, task: Task, wanted: int) -> bool:
        running = [each for each in self._workers if each.task]
        if task.requirement.exclusive or any(each.task.requirement.exclusive for each in running if each.task):
            return not running
        ordinary = sum(not each.devices for each in running)
        return wanted <= len(self._free) if wanted else ordinary < self._limit

    def _start(self, task: Task, devices: tuple[str, ...]) -> None:
        worker = next((each for each in self._workers if not each.task), None) or self._launch()
        worker.task, worker.devices = task, devices
        try:
            worker.connection.send_bytes(pickle.dumps((task.step, devices)))
        except OSError:  # it has ended: its connection reports that
            return

    def _launch(self) -> Worker:
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=serve, args=(there, self._store, os.getpid()), daemon=True)
        process.start()
        there.close()
        self._workers.append(Worker(process, here))
        return self._workers[-1]

    def _receive(self, worker: Worker) -> list[Event]:
        events: list[Event] = []
        try:
            while worker.task and worker.connection.poll():
                event: Event = pickle.loads(worker.connection.recv_bytes())
                events.append(event)
                if isinstance(event, Finished):
                    self._release(worker)
        except (EOFError, OSError):
            worker.process.join(STOP_S)
            reason = f"the worker ended with exit code {worker.process.exitcode}"
            if worker.task:
                events.append(Lost(worker.task.step.key, NAME, reason))
            self._discard(worker)
        return events

    def _release(self, worker: Worker) -> None:
        self._free += worker.devices
        worker.task, worker.devices = None, ()

    def _discard(self, worker: Worker) -> None:
        self._workers.remove(worker)
        self._release(worker)
        worker.connection.close()
        stop([worker.process], busy=True)


def stop(processes: Sequence[BaseProcess], *, busy: bool) -> None:
    """End processes: idle ones end when their connection closes; SIGKILL ends all others after STOP_S."""
    if busy:
        for process in processes:
            process.terminate()
    deadline = time.monotonic() + STOP_S
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join(STOP_S)
        process.close()


def serve(connection: Connection, store: Path, parent: int) -> None:
    """Run the steps that arrive on a connection until it closes; the main function of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, which stops its workers
    die_with_parent(parent=parent)()
    opened = Store(store, remote=open_remote())
    with sigterm_as_interrupt():
        try:
            while True:
                step, devices = pickle.loads(connection.recv_bytes())
                _send(connection, Started(step.key, NAME))
                progress = SentProgress(step, partial(_send, connection), REPORT_S)
                outcome = run_step(step, opened, NAME, lambda total, progress=progress: progress, devices)  # type: ignore[misc]
                _send(connection, Finished(step.key, outcome))
        except (EOFError, OSError, KeyboardInterrupt):
            return


def _send(connection: Connection, event: Event) -> None:
    connection.send_bytes(pickle.dumps(event))


def _open(options: PoolOptions) -> LocalPool:
    if not options.address:
        return LocalPool(1, options.devices)
    if not options.address.isdigit() or not 1 <= int(options.address) <= MAX_WORKERS:
        message = f"--on local:{options.address}: expected a number of workers from 1 to {MAX_WORKERS}"
        raise TrtspecError(message, hint="e.g. --on local:4")
    return LocalPool(int(options.address), options.devices)


POOL = PoolKind("worker processes on this machine", _open)
