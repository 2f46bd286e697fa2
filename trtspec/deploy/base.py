# SPDX-License-Identifier: Apache-2.0
"""What a deploy target is. A module of this package joins by defining `TARGET`; its name is the target's name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from trtspec.deploy.journal import DeploymentJournal, Record, deployment_names
from trtspec.errors import DeployError, TrtspecError, refusal
from trtspec.measure.gates import on_request
from trtspec.measure.gating import deploy_load, ensure_served_gates
from trtspec.measure.report import LeftOut
from trtspec.measure.verify import OnProgress, ensure_gates
from trtspec.paths import state_dir
from trtspec.registry import find
from trtspec.system import LOOPBACK
from trtspec.triton.client import Client

OnEvent = Callable[[str, str], None]  # (state, what happened): for people, as it happens
BeforeLive = Callable[[str], None]  # gets the http address of a server that answered; raises where it may not go live


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
        name: str | None = None,
        host: str = LOOPBACK,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        detach: bool = False,
        timeout_s: float = 300.0,
        on_event: OnEvent = ...,
        before_live: BeforeLive = ...,
    ) -> Deployment: ...


def _state_of_process(record: Record) -> str:
    return record.state_now


@dataclass(frozen=True)
class Target:
    """What every place to deploy to can do; deployments are known by their name, of all targets.

    `state` is what can be said of a deployment without asking its server: by default, whether its process lives here.
    """

    deploy: Deploy
    status: Callable[[str], dict[str, Any]]
    stop: Callable[[str], dict[str, Any]]
    state: Callable[[Record], str] = _state_of_process


def deploy(
    artifact: Path,
    target: str,
    *,
    on_progress: OnProgress = lambda what, done, total: None,
    skip: Collection[str] = (),
    baseline: str | None = None,
    on_left_out: Callable[[Sequence[LeftOut]], None] = lambda left_out: None,
    name: str | None = None,
    **options: Any,
) -> Deployment:
    """Serve an artifact whose gates hold: by its report, by measuring them now, or on its server before it is live.

    `skip` names gates to leave out, `baseline` a server without speculation. `on_left_out` gets what was not judged;
    `name` is what the deployment is known by, in place of the recipe's name; `options` are the others of `Deploy`.
    Raises like `ensure_gates` and the target.
    """
    where = find_target(target)
    if name is not None:
        DeploymentJournal(name)  # which refuses what is no name, before anything is measured
    other = Client.at(address_of(baseline)[0]) if baseline else None
    if skip:
        on_left_out([on_request(name) for name in skip])
    if not ensure_gates(artifact, on_progress, skip):

        def judge(url: str) -> None:
            load = deploy_load(artifact, skip, on_progress)
            on_left_out(ensure_served_gates(Client.at(url), artifact, load, other))

        options["before_live"] = judge  # not given where it has nothing to do
    with _in_words():
        return where.deploy(artifact, name=name, **options)


def address_of(what: str) -> tuple[str, dict[str, Any]]:
    """Return the address that a name or an address leads to, and the status of the deployment that a name is of."""
    if "://" in what:
        return what, {}
    document = status(what)
    return document["endpoints"]["http"], document


def status(name: str) -> dict[str, Any]:
    """Return how a deployment fares, wherever it runs."""
    with _in_words():
        return target_of(name).status(name)


def deployments() -> list[dict[str, Any]]:
    """Return all deployments by name, whether they run or not; no server is asked, so that nothing waits for one."""
    with _in_words():
        return [_listed(name) for name in deployment_names()]


def _listed(name: str) -> dict[str, Any]:
    """Return what is known of a deployment; one whose record or target is broken hides none of the others."""
    try:
        record = DeploymentJournal(name).known()
        state = find_target(record.target).state(record)
    except TrtspecError as error:
        return {"name": name, "state": "unknown", "error": str(error)}
    keys = ("name", "target", "artifact", "backend", "method", "endpoints", "host", "pid")
    return {key: getattr(record, key) for key in keys} | {"state": state, "since": _utc(record.since)}


def _utc(seconds: float) -> str | None:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds") if seconds else None


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
