# SPDX-License-Identifier: Apache-2.0
"""Docker target: serve an artifact in a container on this machine with a rendered file for `docker compose`.

Format of the file: https://github.com/compose-spec/compose-spec/blob/main/spec.md
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.core.container_tools import DOCKER_CAUSES, ToolFailed, run_tool
from trtspec.core.errors import DeployError, StepTimeout, TrtspecError
from trtspec.core.processes import sigterm_as_interrupt
from trtspec.deployment.containers import (
    ALIVE_S,
    ARTIFACT,
    CLEANUP_S,
    ENVIRONMENT,
    MAX_GRACE_S,
    PORTS,
    STATE,
    STATE_BYTES,
    TMP,
    USER,
    ContainerWorkload,
    RenderedFiles,
    as_yaml,
    check_image,
    check_readable,
    dockerfile,
    make_workload,
    parse_settings,
    write_rendered,
)
from trtspec.deployment.journal import (
    DeploymentJournal,
    DeploymentRecord,
    RunningDeployment,
    deploy_document,
    staged_record,
)
from trtspec.deployment.options import DeployOptions, exposure_warning
from trtspec.deployment.ports import former_ports, reserved_ports
from trtspec.deployment.target import DeployTarget
from trtspec.store.artifact import Artifact
from trtspec.store.artifact_paths import REPOSITORY

COMPOSE_FILE = "compose.yaml"
ARTIFACT_VARIABLE = "TRTSPEC_ARTIFACT"
SERVICE = "server"

HEAD = """\
Serves {name} with docker compose; {variable} is the directory of the artifact:

  {variable}=DIR docker compose -f {file} up --detach --wait

Ports at {host}: http {http}, gRPC {grpc} and Prometheus metrics {metrics} without authentication, and the OpenAI API
{openai} with optional keys. Any client that can reach {host} can send requests and read the metrics. Triton's control
APIs require a token that is created in the container and never leaves it. To serve other machines, put a proxy with
TLS and authentication in front. The keys of the OpenAI gateway come from {env_file} (optional, not rendered).
The container runs as an unprivileged user without capabilities on a read-only file system; it writes only to memory."""


def _service(workload: ContainerWorkload, image: str, ports: Mapping[str, int]) -> dict[str, Any]:
    return {
        "image": image,
        "command": workload.command,
        "user": f"{USER}:{USER}",
        "environment": dict(ENVIRONMENT),
        "env_file": [{"path": f"{workload.name}.env", "required": False}],
        "ports": [f"{workload.options.host}:{port}:{PORTS[name]}" for name, port in ports.items()],
        "volumes": [
            {
                "type": "bind",
                "source": f"${{{ARTIFACT_VARIABLE}:?the directory of the artifact}}",
                "target": ARTIFACT,
                "read_only": True,
                "bind": {"create_host_path": False},
            }
        ],
        **_confined(),
        **_sized(workload),
        "healthcheck": {  # requests a text, because Triton can report ready while unable to serve
            "test": ["CMD", *workload.probe(ALIVE_S)],
            "interval": "30s",
            "timeout": f"{ALIVE_S + 5}s",
            "retries": 3,
            "start_period": f"{workload.startup_s}s",
            "start_interval": "5s",
        },
        "init": True,
        "restart": "unless-stopped",
        "stop_grace_period": f"{workload.grace_s}s",
        "logging": {"driver": "json-file", "options": {"max-size": "100m", "max-file": "3"}},
    }


def _confined() -> dict[str, Any]:
    """Return the compose settings that restrict the container, which writes only to memory."""
    owned = f"uid={USER},gid={USER},mode=0700,nosuid,nodev"
    return {
        "read_only": True,
        "tmpfs": [f"{STATE}:{owned},size={STATE_BYTES}", f"{TMP}:{owned},size={STATE_BYTES}"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "ipc": "private",
        "pids_limit": 4096,
    }


def _sized(workload: ContainerWorkload) -> dict[str, Any]:
    """Return the compose settings for memory and GPUs; engines pin memory and need large stacks."""
    sized: dict[str, Any] = {
        "shm_size": workload.shm_bytes,
        "mem_limit": workload.memory_bytes + 2 * STATE_BYTES,
        "ulimits": {"memlock": -1, "stack": 67108864},
    }
    if workload.gpu_ids:
        device = {"driver": "nvidia", "device_ids": [str(each) for each in workload.gpu_ids], "capabilities": ["gpu"]}
        sized["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return sized


DOCKER = "docker"
ASK_S, POLL_S = 20.0, 2.0
MOST_UNKNOWN = 5
RUNNING_STATES = ("live", "starting", "unhealthy")
STATES = {"running": "live", "restarting": "unhealthy", "created": "starting", "exited": "dead", "dead": "dead"}


@dataclass(frozen=True)
class DockerSettings:
    image: str = ""


def render_docker(workload: ContainerWorkload, repository: Path) -> RenderedFiles:
    """Return the compose file and the Dockerfile of a workload; without an image, only the Dockerfile."""
    options = workload.options
    exposure_warning(options.host)
    image = parse_settings(DockerSettings, options.settings).image
    if not image:
        return {"Dockerfile": dockerfile(workload)}
    check_image(image, workload)
    ports = {name: options.ports.get(name, PORTS[name]) for name in PORTS}
    places = {"variable": ARTIFACT_VARIABLE, "file": COMPOSE_FILE, "env_file": f"{workload.name}.env"}
    head = HEAD.format(name=workload.name, host=options.host, **places, **ports)
    document = {"name": workload.name, "services": {SERVICE: _service(workload, image, ports)}}
    return {COMPOSE_FILE: as_yaml(document, head=head), "Dockerfile": dockerfile(workload)}


def deploy_docker(journal: DeploymentJournal, artifact: Artifact, options: DeployOptions) -> DockerDeployment:
    """Start a container and return once it is healthy (a request was answered); remove it on failure."""
    if shutil.which(DOCKER) is None:
        hint = "install Docker with its compose plugin, or render the files for another machine with --render DIR"
        raise DeployError(f"{DOCKER} is not on PATH", hint=hint)
    former = journal.read()
    with reserved_ports(journal, options, former=former_ports(former, "docker", options)) as ports:
        if former and former.target == "docker" and _state(former) in RUNNING_STATES:
            hint = f"trtspec stop {former.name}, or choose another name with --name"
            raise DeployError(f"{former.name!r} is already deployed at {former.endpoints['http']}", hint=hint)
        workload = make_workload(artifact, replace(options, ports=ports))
        check_image(options.settings.get("image", ""), workload)
        check_readable(artifact.root)
        write_rendered(_folder(journal), render_docker(workload, artifact.root / REPOSITORY))
        fields: dict[str, Any] = {"target": "docker", "host": options.host, "detached": options.detach}
        record = journal.write(staged_record(journal.name, artifact, **fields, **ports))
        options.on_event("staged", f"the compose file is {_folder(journal) / COMPOSE_FILE}")
        try:
            wait = ("--wait", f"--wait-timeout={int(options.timeout_s)}")
            _compose(journal, "up", "--detach", *wait, timeout_s=options.timeout_s + 30)
        except BaseException as error:
            if isinstance(error, ToolFailed) and error.is_before:
                journal.forget(former)  # the container was not created
                raise
            fetch_log(journal)
            with suppress(DeployError, StepTimeout):  # the original error is the one to report
                _down(journal)
            journal.move(record, "failed", error.message if isinstance(error, TrtspecError) else str(error))
            raise
        record = journal.move(record, "live")
        options.on_event("live", f"the container is healthy: a request was answered at {record.endpoints['http']}")
    return DockerDeployment(journal, record)


class DockerDeployment(RunningDeployment):
    def wait(self) -> None:
        try:
            with sigterm_as_interrupt():
                unknown = 0  # consecutive checks without an answer from docker
                while unknown < MOST_UNKNOWN:  # unbounded: runs in the foreground until stopped
                    state = _state(self.record)
                    if state not in (*RUNNING_STATES, "unknown"):
                        break
                    unknown = unknown + 1 if state == "unknown" else 0
                    time.sleep(POLL_S)
        except KeyboardInterrupt:
            stop(self.journal.name)
            raise
        if self.journal.read_existing().state != "stopped":
            raise DeployError("the container exited", hint=f"trtspec logs {self.journal.name}")


def stop(name: str) -> dict[str, Any]:
    """Stop a container and return its document; open streams may finish within the grace period."""
    journal = DeploymentJournal(name)
    record = journal.read_existing()
    state = _state(record)
    was_running = state in RUNNING_STATES
    if was_running or record.state == "live" or state == "unknown":
        fetch_log(journal)
        _down(journal)
        record = journal.move(record, "stopped")
    return deploy_document(record) | {"was_running": was_running}


def fetch_log(journal: DeploymentJournal) -> None:
    """Save the container's output as the deployment's log; an existing log of a removed container is kept."""
    with suppress(DeployError, StepTimeout):
        if output := _compose(journal, "logs", "--no-color", "--no-log-prefix", timeout_s=ASK_S):
            journal.log.write_bytes(output)


def _state(record: DeploymentRecord) -> str:
    """Return the state that docker reports, or "unknown"; the recorded states stopped and failed are final."""
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


def _folder(journal: DeploymentJournal) -> Path:
    return journal.root / "docker"


def _compose(journal: DeploymentJournal, *words: str, timeout_s: float) -> bytes:
    """Run docker compose on a deployment's file and return its output; raises DeployError or StepTimeout."""
    record = journal.read()
    command = [DOCKER, "compose", "--file", str(_folder(journal) / COMPOSE_FILE), *words]
    environment = {**os.environ, ARTIFACT_VARIABLE: record.artifact if record else ""}
    return run_tool(command, f"docker compose {words[0]}", DOCKER_CAUSES, timeout_s, environment)


def _down(journal: DeploymentJournal) -> None:
    _compose(journal, "down", timeout_s=MAX_GRACE_S + CLEANUP_S)


TARGET = DeployTarget(
    deploy=deploy_docker,
    stop=stop,
    state=_state,
    render=render_docker,
    options={"image": "serving image, NAME@sha256:..."},
    fetch_log=fetch_log,
    holds_ports=lambda record: True,  # docker holds the ports of its containers, whatever runs here
)
