# SPDX-License-Identifier: Apache-2.0
"""Interface of a pool of workers, and the events that it reports.

A module of `fleet/pools` registers a kind of pool by defining `POOL`. `--on NAME[:ADDRESS]` selects it by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from trtspec.core.registry import find_extension
from trtspec.fleet.labels import Node, Requirement
from trtspec.store.step import Step

PACKAGE, ATTRIBUTE = "trtspec.fleet.pools", "POOL"

T = TypeVar("T")


@dataclass(frozen=True)
class Failure:
    """An error of a step that the user can fix, or a bug (`exit_code` 70), whose `message` is then the traceback."""

    message: str
    where: str | None = None
    hint: str | None = None
    exit_code: int = 100


@dataclass(frozen=True)
class Outcome:
    """The end of a step on a worker.

    "missing" means that the worker's store lacks the inputs `missing` (keys), so that the step did not run.
    """

    status: Literal["built", "fetched", "hit", "failed", "missing"]
    node: str
    seconds: float = 0.0
    failure: Failure | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Started:
    key: str
    node: str


@dataclass(frozen=True)
class Advanced:
    key: str
    n_bytes: int


@dataclass(frozen=True)
class Message:
    key: str
    text: str


@dataclass(frozen=True)
class Finished:
    key: str
    outcome: Outcome


@dataclass(frozen=True)
class Lost:
    """The worker or its node ended before the step did; the step can run again elsewhere."""

    key: str
    node: str
    reason: str


Event = Started | Advanced | Message | Finished | Lost


@dataclass(frozen=True)
class Task:
    """A step to run on a node that meets the requirement, when the outputs of its dependencies are available.

    `again` means that a machine did not find its output, or refused it: the output replaces that of the team store.
    """

    step: Step
    requirement: Requirement = field(default_factory=Requirement)
    again: bool = False


class Pool(ABC):
    """Workers that run steps. All methods return within a bound; TrtspecError means that the pool is unusable."""

    @abstractmethod
    def nodes(self) -> list[Node]:
        """Return the nodes that are alive."""

    def prepare(self) -> None:
        """Prepare the workers; called before the first step. Raises TrtspecError for nodes that cannot run steps."""
        return

    @abstractmethod
    def submit(self, task: Task) -> None:
        """Queue a task; the pool reports exactly one Finished or Lost for it, unless it is cancelled."""

    @abstractmethod
    def wait(self, timeout_s: float) -> Sequence[Event]:
        """Return the events since the last call; wait for the first one up to `timeout_s`."""

    def call(self, function: Callable[[], T], requirement: Requirement) -> dict[str, T]:
        """Return the result of a picklable function by the name of each node that meets the requirement.

        Nodes that are lost meanwhile are left out. Raises TrtspecError with the node if the function raises one.
        """
        return {node.name: function() for node in self.nodes() if not node.lacks(requirement)}

    @abstractmethod
    def cancel(self, key: str) -> None:
        """Stop the task of a step; no further events of it are reported."""

    @abstractmethod
    def close(self) -> None:
        """Stop all tasks and release the workers."""

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class DeferredPool(Pool):
    """A pool that is opened when it is first used, so that a build without any step to run does not open it."""

    def __init__(self, open_pool: Callable[[], Pool]) -> None:
        self._open = open_pool
        self._opened: Pool | None = None

    @property
    def _pool(self) -> Pool:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def nodes(self) -> list[Node]:
        return self._pool.nodes()

    def prepare(self) -> None:
        self._pool.prepare()

    def submit(self, task: Task) -> None:
        self._pool.submit(task)

    def wait(self, timeout_s: float) -> Sequence[Event]:
        return self._pool.wait(timeout_s)

    def call(self, function: Callable[[], T], requirement: Requirement) -> dict[str, T]:
        return self._pool.call(function, requirement)

    def cancel(self, key: str) -> None:
        self._pool.cancel(key)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


@dataclass(frozen=True)
class PoolOptions:
    """Arguments for opening a pool: the part of `--on` after the name, and this machine's devices."""

    address: str = ""
    devices: tuple[str, ...] = ()


@dataclass(frozen=True)
class PoolKind:
    """A kind of pool. `is_remote` is that of its pools; `open` raises TrtspecError for an invalid address."""

    summary: str
    open: Callable[[PoolOptions], Pool]
    is_remote: bool = False


def find_pool(on: str) -> tuple[PoolKind, str]:
    """Return the kind of pool and the address of `--on`; raise TrtspecError, with the known names, for another name."""
    name, _, address = on.partition(":")
    kind: PoolKind = find_extension(PACKAGE, ATTRIBUTE, name, "pool")
    return kind, address
