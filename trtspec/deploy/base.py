# SPDX-License-Identifier: Apache-2.0
"""What a deploy target is. A module of this package joins by defining `TARGET`; its name is the target's name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trtspec.deploy.journal import DeploymentJournal
from trtspec.errors import DeployError, refusal
from trtspec.measure.verify import OnProgress, ensure_gates
from trtspec.paths import state_dir
from trtspec.registry import find

OnEvent = Callable[[str, str], None]  # (state, what happened): for people, as it happens


class Deployment(Protocol):
    """A server that answered its first request."""

    def as_dict(self) -> dict[str, Any]:
        """Return `name`, `state`, `endpoints` and `pid`, the document of `deploy --json`."""

    def wait(self) -> None:
        """Block until the server ends; SIGINT and SIGTERM stop it first, its own death is a DeployError."""


class Deploy(Protocol):
    """Serve an artifact; returns only when a real request was answered, and leaves nothing running when it fails."""

    def __call__(
        self,
        artifact: Path,
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        detach: bool = False,
        timeout_s: float = 300.0,
        on_event: OnEvent = ...,
    ) -> Deployment: ...


@dataclass(frozen=True)
class Target:
    """The three things every place to deploy to can do; deployments are known by the recipe's name."""

    deploy: Deploy
    status: Callable[[str], dict[str, Any]]
    stop: Callable[[str], dict[str, Any]]


def deploy(
    artifact: Path,
    target: str,
    *,
    on_progress: OnProgress = lambda what, done, total: None,
    on_unmeasured: Callable[[], None] = lambda: None,
    **options: Any,
) -> Deployment:
    """Serve an artifact whose gates hold, by its report or by measuring them now; `options` are those of `Deploy`.

    `on_unmeasured` is called where only the server itself can be measured. Raises like `ensure_gates` and the target.
    """
    where = find_target(target)
    if not ensure_gates(artifact, on_progress):
        on_unmeasured()
    with _in_words():
        return where.deploy(artifact, **options)


def status(name: str) -> dict[str, Any]:
    """Return how a deployment fares, wherever it runs."""
    with _in_words():
        return target_of(name).status(name)


def stop(name: str) -> dict[str, Any]:
    """End a deployment, wherever it runs."""
    with _in_words():
        return target_of(name).stop(name)


def target_of(name: str) -> Target:
    """Return the target that a deployment runs on."""
    return find_target(DeploymentJournal(name).known().target)


def find_target(name: str) -> Target:
    """Return a target by name; an unknown name is an error that lists the known ones."""
    target: Target = find("trtspec.deploy", "TARGET", name, "deploy target")
    return target


@contextmanager
def _in_words() -> Iterator[None]:
    """Say what the machine refuses: nearly always it is about the directory with the deployments."""
    try:
        yield
    except OSError as error:
        if (refused := refusal(error)) is None:
            raise
        hint = "give it room or access there, or point TRTSPEC_STATE at another directory"
        raise DeployError(f"{refused} {error.filename or state_dir()}", hint=hint) from error
