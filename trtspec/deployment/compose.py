# SPDX-License-Identifier: Apache-2.0
"""Compose files for artifacts: https://github.com/compose-spec/compose-spec/blob/main/spec.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.deployment.containers import (
    ALIVE_S,
    ARTIFACT,
    ENVIRONMENT,
    PORTS,
    STATE,
    STATE_BYTES,
    TMP,
    USER,
    ContainerWorkload,
    dockerfile,
)
from trtspec.deployment.rendering import RenderedFiles, as_yaml

FILE = "compose.yaml"
VARIABLE = "TRTSPEC_ARTIFACT"
SERVICE = "server"

HEAD = """\
Serves {name} with docker compose; {variable} is the directory of the artifact:

  {variable}=DIR docker compose -f {file} up --detach --wait

Ports at {host}: http {http}, gRPC {grpc} and Prometheus metrics {metrics} without authentication, and the OpenAI API
{openai} with optional keys. Any client that can reach {host} can send requests and read the metrics. Triton's control
APIs require a token that is created in the container and never leaves it. To serve other machines, put a proxy with
TLS and authentication in front. The keys of the OpenAI gateway come from {env_file} (optional, not rendered).
The container runs as an unprivileged user without capabilities on a read-only file system; it writes only to memory."""


def render_compose(workload: ContainerWorkload, image: str, host: str, ports: Mapping[str, int]) -> RenderedFiles:
    """Return the files; `ports` are the host's ports by name, bound to the address `host`."""
    env_file = f"{workload.name}.env"
    head = HEAD.format(name=workload.name, variable=VARIABLE, file=FILE, host=host, env_file=env_file, **ports)
    document = {"name": workload.name, "services": {SERVICE: _service(workload, image, host, ports, env_file)}}
    return {FILE: as_yaml(document, head=head), "Dockerfile": dockerfile(workload)}


def _service(
    workload: ContainerWorkload, image: str, host: str, ports: Mapping[str, int], env_file: str
) -> dict[str, Any]:
    return {
        "image": image,
        "command": workload.command,
        "user": f"{USER}:{USER}",
        "environment": dict(ENVIRONMENT),
        "env_file": [{"path": env_file, "required": False}],
        "ports": [f"{host}:{port}:{PORTS[name]}" for name, port in ports.items()],
        "volumes": [_artifact()],
        **_confined(),
        **_sized(workload),
        "healthcheck": _healthcheck(workload),
        "init": True,
        "restart": "unless-stopped",
        "stop_grace_period": f"{workload.grace_s}s",
        "logging": {"driver": "json-file", "options": {"max-size": "100m", "max-file": "3"}},
    }


def _artifact() -> dict[str, Any]:
    source = f"${{{VARIABLE}:?the directory of the artifact}}"
    return {
        "type": "bind",
        "source": source,
        "target": ARTIFACT,
        "read_only": True,
        "bind": {"create_host_path": False},
    }


def _confined() -> dict[str, Any]:
    """Return the settings that restrict the container; it writes only to memory."""
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
    """Return memory limits and GPU ids; engines pin memory and need large stacks."""
    sized: dict[str, Any] = {
        "shm_size": workload.shm_bytes,
        "mem_limit": workload.memory_bytes + 2 * STATE_BYTES,
        "ulimits": {"memlock": -1, "stack": 67108864},
    }
    if workload.gpu_ids:
        device = {"driver": "nvidia", "device_ids": [str(each) for each in workload.gpu_ids], "capabilities": ["gpu"]}
        sized["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return sized


def _healthcheck(workload: ContainerWorkload) -> dict[str, Any]:
    """Return a check that requests a text, because Triton can report ready while unable to serve."""
    return {
        "test": ["CMD", *workload.probe(ALIVE_S)],
        "interval": "30s",
        "timeout": f"{ALIVE_S + 5}s",
        "retries": 3,
        "start_period": f"{workload.startup_s}s",
        "start_interval": "5s",
    }
