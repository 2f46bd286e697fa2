# SPDX-License-Identifier: Apache-2.0
"""A pool of simulated nodes in this process: steps really run, in the order and with the losses of a random seed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from trtspec.fleet.labels import Node
from trtspec.fleet.pool import Event, Finished, Lost, Pool, Started, Task
from trtspec.fleet.worker import run_step
from trtspec.store.step import StepProgress
from trtspec.store.store import Store


class ScriptedPool(Pool):
    """Nodes that share one store, given by its path or opened. `losses` times, a node that runs a step is lost, with
    the probability `rate` for each step.

    `built` counts the successful builds by key. A lost node is replaced by an equal one.
    """

    def __init__(self, nodes: Sequence[Node], store: Path | Store, losses: int = 0, rate: float = 0.2) -> None:
        self._nodes, self._store = list(nodes), store if isinstance(store, Store) else Store(store)
        self._random, self.losses, self._rate = random.Random(1), losses, rate
        self._queue: list[Task] = []
        self._running: list[tuple[Task, Node]] = []
        self.built: Counter[str] = Counter()
        self.cancelled: list[str] = []
        self.submitted: list[str] = []
        self.most_running = 0

    def nodes(self) -> list[Node]:
        return list(self._nodes)

    def submit(self, task: Task) -> None:
        self._queue.append(task)
        self.submitted.append(task.step.key)

    def cancel(self, key: str) -> None:
        self.cancelled.append(key)
        self._queue = [task for task in self._queue if task.step.key != key]
        self._running = [(task, node) for task, node in self._running if task.step.key != key]

    def close(self) -> None:
        self._queue.clear()

    def wait(self, timeout_s: float) -> list[Event]:
        events = self._start()
        self.most_running = max(self.most_running, len(self._running))
        if self._running:
            task, node = self._running.pop(self._random.randrange(len(self._running)))
            events.append(self._end(task, node))
        return events

    def _start(self) -> list[Event]:
        events: list[Event] = []
        for task in list(self._queue):
            busy = Counter(node.name for _, node in self._running)
            fitting = [
                node for node in self._nodes if not node.lacks(task.requirement) and busy[node.name] < node.slots
            ]
            if fitting:
                node = self._random.choice(fitting)
                self._queue.remove(task)
                self._running.append((task, node))
                events.append(Started(task.step.key, node.name))
        return events

    def _end(self, task: Task, node: Node) -> Event:
        key = task.step.key
        is_lost = self.losses > 0 and self._random.random() < self._rate
        if is_lost:
            self.losses -= 1
            return Lost(key, node.name, "the node was lost")
        outcome = run_step(task.step, self._store, node.name, lambda total: StepProgress())
        self.built[key] += outcome.status == "built"
        return Finished(key, outcome)
