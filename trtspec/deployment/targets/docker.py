# SPDX-License-Identifier: Apache-2.0
"""Docker target: serve an artifact in a container on this machine with a rendered file for `docker compose`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.core.errors import DeployError, StepTimeout, TrtspecError
from trtspec.core.processes import sigterm_as_interrupt
from trtspec.deployment import container_errors
from trtspec.deployment.base import DeployTarget
from trtspec.deployment.compose import FILE, SERVICE, VARIABLE, render_compose
from trtspec.deployment.container_errors import ToolFailed, tool_failure
from trtspec.deployment.containers import (
    CLEANUP_S,
    MAX_GRACE_S,
    PORTS,
    ContainerWorkload,
    check_image,
    dockerfile,
    make_workload,
)
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord, deploy_document
from trtspec.deployment.network import exposure_warning
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.ports import former_ports, reserved_ports
from trtspec.deployment.rendering import RenderedFiles, parse_settings, write_rendered
from trtspec.store.artifact_paths import REPOSITORY
from trtspec.store.manifest import load_manifest, manifest_sha256

DOCKER = "docker"
ASK_S, POLL_S = 20.0, 2.0
MOST_UNKNOWN = 5
STATES = {"running": "live", "restarting": "unhealthy", "created": "starting", "exited": "dead", "dead": "dead"}


@dataclass(frozen=True)
class DockerSettings:
    """Settings of the docker target."""

    image: str = ""


def render_docker(
    workload: ContainerWorkload,
    repository: Path,
    host: str,
    ports: Mapping[str, int | None],
    settings: Mapping[str, str],
) -> RenderedFiles:
    """Return the compose file and the Dockerfile; without an image only the latter.

    Ports default to the container's.
    """
    exposure_warning(host)
    image = parse_settings(DockerSettings, settings).image
    if not image:
        return {"Dockerfile": dockerfile(workload)}
    check_image(image, workload)
    return render_compose(workload, image, host, {name: ports.get(name) or PORTS[name] for name in PORTS})


def deploy_docker(artifact: Path, options: DeployOptions) -> DockerDeployment:
    """Start a container and return once it is healthy (a request was answered); remove it on failure."""
    _check_docker()
    manifest, digest = load_manifest(artifact, options.manifest), manifest_sha256(artifact)
    journal, host = DeploymentJournal(options.name or manifest.recipe.name), options.host
    with journal.lock(), _ports(journal, options) as ports:
        _check_not_running(journal)
        former = journal.read()
        drain_s, trusted = options.drain_s, options.trusted_report
        workload = make_workload(manifest, journal.name, options.skip_gates, drain_s, digest, trusted)
        check_image(options.settings.get("image", ""), workload)
        rendered = render_docker(workload, artifact / REPOSITORY, host, ports, options.settings)
        write_rendered(_folder(journal), rendered)
        record = _record(journal, artifact, ports, host, options.detach)
        journal.write(record)
        options.on_event("staged", f"the compose file is {_folder(journal) / FILE}")
        with _removed_on_failure(journal, record, former):
            wait = ("--wait", f"--wait-timeout={int(options.timeout_s)}")
            _compose(journal, "up", "--detach", *wait, timeout_s=options.timeout_s + 30)
        record = journal.move(record, "live")
        options.on_event("live", f"the container is healthy: a request was answered at {record.endpoints['http']}")
    return DockerDeployment(journal, record)


@contextmanager
def _ports(journal: DeploymentJournal, options: DeployOptions) -> Iterator[dict[str, int]]:
    """Choose the ports of this machine that map to the container's."""
    former = former_ports(journal.read(), "docker", options)

    def on_moved(sentence: str) -> None:
        options.on_event("ports", sentence)

    with reserved_ports(journal, options, tuple(PORTS), former, on_moved) as (server, openai):
        yield {"http": server.http, "grpc": server.grpc, "metrics": server.metrics, "openai": openai}


@dataclass
class DockerDeployment:
    """A container started by this process."""

    journal: DeploymentJournal
    record: DeploymentRecord

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `deploy --json`."""
        return deploy_document(self.record, self.record.state)

    def wait(self) -> None:
        """Block until the container ends; SIGINT and SIGTERM stop it. Raise DeployError if it ends on its own."""
        try:
            with sigterm_as_interrupt():
                unknown = 0  # consecutive checks without an answer from docker
                while unknown < MOST_UNKNOWN:  # unbounded: runs in the foreground until stopped
                    state = _state(self.record)
                    if state not in ("live", "starting", "unhealthy", "unknown"):
                        break
                    unknown = unknown + 1 if state == "unknown" else 0
                    time.sleep(POLL_S)
        except KeyboardInterrupt:
            stop(self.journal.name)
            raise
        if self.journal.known().state != "stopped":
            raise DeployError("the container exited", hint=f"trtspec logs {self.journal.name}")


class _removed_on_failure:  # noqa: N801  a context manager, used as a function
    """Remove the container if the block fails, after saving its log."""

    def __init__(self, journal: DeploymentJournal, record: DeploymentRecord, former: DeploymentRecord | None) -> None:
        self.journal, self.record, self.former = journal, record, former

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if isinstance(error, ToolFailed) and error.is_before:
            self.journal.forget(self.former)  # the container was not created
            return
        fetch_log(self.journal)
        with suppress(DeployError, StepTimeout):  # the original error is the one to report
            _down(self.journal)
        self.journal.move(self.record, "failed", error.message if isinstance(error, TrtspecError) else str(error))


def stop(name: str) -> dict[str, Any]:
    """Stop a container; open streams may finish within the compose file's grace period."""
    journal = DeploymentJournal(name)
    record = journal.known()
    state = _state(record)
    was_running = state in ("live", "starting", "unhealthy")
    if was_running or record.state == "live" or state == "unknown":
        fetch_log(journal)
        _down(journal)
        record = journal.move(record, "stopped")
    return deploy_document(record, record.state) | {"was_running": was_running}


def fetch_log(journal: DeploymentJournal) -> None:
    """Save the container's output as the deployment's log; an existing log of a removed container is kept."""
    if output := _ask(journal, "logs", "--no-color", "--no-log-prefix"):
        journal.log.write_bytes(output)


def _state(record: DeploymentRecord) -> str:
    """Return docker's state of a deployment, live if healthy; stopped and failed are final."""
    if record.state in ("stopped", "failed"):
        return record.state
    try:
        output = _compose(DeploymentJournal(record.name), "ps", "--all", "--format=json", timeout_s=ASK_S)
        found = [json.loads(line) for line in output.splitlines()]
    except (DeployError, StepTimeout, ValueError):
        return "unknown"
    container = next((each for each in found if each.get("Service") == SERVICE), None)
    if container is None:
        return "dead"
    health = {"starting": "starting", "unhealthy": "unhealthy"}.get(container.get("Health", ""))
    running = container.get("State") == "running"
    return health if running and health else STATES.get(container.get("State", ""), "dead")


def _record(
    journal: DeploymentJournal, artifact: Path, ports: Mapping[str, int], host: str, detach: bool
) -> DeploymentRecord:
    manifest = load_manifest(artifact)
    return DeploymentRecord(
        name=journal.name,
        state="staged",
        artifact=str(artifact.absolute()),
        pid=0,
        started=None,
        shm_prefix="",
        detached=detach,
        target="docker",
        manifest=manifest_sha256(artifact),
        backend=manifest.backend.name,
        method=manifest.recipe.speculation.method,
        host=host,
        http=ports["http"],
        grpc=ports["grpc"],
        metrics=ports["metrics"],
        openai=ports["openai"],
    )


def _check_docker() -> None:
    if shutil.which(DOCKER) is None:
        hint = "install Docker with its compose plugin, or render the files for another machine with --render DIR"
        raise DeployError(f"{DOCKER} is not on PATH", hint=hint)


def _check_not_running(journal: DeploymentJournal) -> None:
    record = journal.read()
    if record and record.target == "docker" and _state(record) in ("live", "starting", "unhealthy"):
        hint = f"trtspec stop {record.name}, or choose another name with --name"
        raise DeployError(f"{record.name!r} is already deployed at {record.endpoints['http']}", hint=hint)


def _folder(journal: DeploymentJournal) -> Path:
    return journal.root / "docker"


def _compose(journal: DeploymentJournal, *words: str, timeout_s: float) -> bytes:
    """Run docker compose on a deployment's file and return its output; raise DeployError or StepTimeout."""
    record = journal.read()
    command = [DOCKER, "compose", "--file", str(_folder(journal) / FILE), *words]
    environment = {**os.environ, VARIABLE: record.artifact if record else ""}
    try:
        done = subprocess.run(command, capture_output=True, env=environment, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise StepTimeout(f"docker compose {words[0]} did not end within {timeout_s:.0f} s") from None
    except OSError as error:
        raise DeployError(f"{DOCKER} cannot be run: {error.strerror}", hint="is Docker installed?") from None
    if done.returncode:
        what, output = f"docker compose {words[0]}", done.stderr.decode(errors="replace")
        raise tool_failure(container_errors.DOCKER, what, done.returncode, output)
    return done.stdout


def _ask(journal: DeploymentJournal, *words: str) -> bytes:
    """Return the output of docker compose, or b"" if it fails."""
    try:
        return _compose(journal, *words, timeout_s=ASK_S)
    except (DeployError, StepTimeout):
        return b""


def _down(journal: DeploymentJournal) -> None:
    _compose(journal, "down", timeout_s=MAX_GRACE_S + CLEANUP_S)


TARGET = DeployTarget(
    deploy=deploy_docker,
    stop=stop,
    state=_state,
    render=render_docker,
    options={"image": "serving image, NAME@sha256:..."},
    fetch_log=fetch_log,
)
