# SPDX-License-Identifier: Apache-2.0
"""The pod that serves an artifact, as the profile "restricted" of Pod Security has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.core.gpus import GPUS
from trtspec.deployment.containers import (
    ALIVE_S,
    ARTIFACT,
    PORTS,
    PROBE_S,
    PROPAGATION_S,
    SHM,
    STATE,
    STATE_BYTES,
    TMP,
    USER,
    Workload,
    environment,
    quantity,
)
from trtspec.deployment.targets.kubernetes.settings import ClusterSettings

CONTAINER = "server"
GPU = "nvidia.com/gpu"
STARTUP_PERIOD_S = 5


def labels(name: str) -> dict[str, str]:
    """Return what tells its pods from others."""
    return {"app.kubernetes.io/name": name}


def all_labels(workload: Workload) -> dict[str, str]:
    """Return the labels of everything that belongs to it."""
    return labels(workload.name) | {"app.kubernetes.io/managed-by": "trtspec"}


def pod_template(workload: Workload, settings: ClusterSettings, command: Sequence[str]) -> dict[str, Any]:
    """Return the template of a pod whose container runs a command, with its probes."""
    container = main_container(workload, settings, command) | probes(workload)
    container["ports"] = [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()]
    container["lifecycle"] = {"preStop": {"sleep": {"seconds": PROPAGATION_S}}}
    return {"metadata": {"labels": all_labels(workload)}, "spec": pod_spec(workload, settings, container)}


def pod_spec(workload: Workload, settings: ClusterSettings, container: Mapping[str, Any]) -> dict[str, Any]:
    """Return a pod around a container: nothing of it has a right beyond its own files."""
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": workload.grace_s,
        "containers": [dict(container)],
        "volumes": volumes(workload, settings),
    }
    if affinity := _affinity(workload):
        spec["affinity"] = affinity
    return spec


def main_container(workload: Workload, settings: ClusterSettings, command: Sequence[str]) -> dict[str, Any]:
    """Return the container without ports and probes; keys come from a Secret that is not rendered."""
    return {
        "name": CONTAINER,
        "image": settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": environment(),
        "envFrom": [{"secretRef": {"name": f"{workload.name}-env", "optional": True}}],
        "resources": resources(workload, settings),
        "securityContext": container_security(),
        "volumeMounts": mounts(settings, ARTIFACT),
    }


def resources(workload: Workload, settings: ClusterSettings) -> dict[str, Any]:
    """Return what one machine gives it: as much memory as it may have, so that it is not the first to be evicted."""
    memory = quantity(workload.memory_bytes)
    gpus = {GPU: str(min(len(workload.gpu_ids), settings.node_gpus))} if workload.gpu_ids else {}
    disk = quantity(STATE_BYTES)
    return {
        "requests": {"cpu": str(workload.cpus), "memory": memory, "ephemeral-storage": disk, **gpus},
        "limits": {"memory": memory, "ephemeral-storage": quantity(3 * STATE_BYTES), **gpus},
    }


def probes(workload: Workload) -> dict[str, Any]:
    """Return probes that ask for a text.

    Triton says for seconds after a good reload that it is not ready, and with dead models that it is: only an answer
    counts, and one that is missing three times. A restart, which loads everything again, waits longest.
    """
    ask, alive = {"exec": {"command": workload.probe(PROBE_S)}}, {"exec": {"command": workload.probe(ALIVE_S)}}
    within = {"timeoutSeconds": PROBE_S + 5}
    return {
        "startupProbe": {
            **ask,
            **within,
            "periodSeconds": STARTUP_PERIOD_S,
            "failureThreshold": workload.startup_s // STARTUP_PERIOD_S,
        },
        "readinessProbe": {**ask, **within, "periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": {**alive, "timeoutSeconds": ALIVE_S + 5, "periodSeconds": 30, "failureThreshold": 3},
    }


def pod_security() -> dict[str, Any]:
    """Return who it runs as."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Return what it may not do."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


def volumes(workload: Workload, settings: ClusterSettings) -> list[dict[str, Any]]:
    """Return the artifact's volume and the places it may write to."""
    return [{"name": "artifact", **settings.volume()}, *scratch(workload)]


def scratch(workload: Workload) -> list[dict[str, Any]]:
    """Return the places it may write to; shared memory counts as memory."""
    disk = {"emptyDir": {"sizeLimit": quantity(STATE_BYTES)}}
    shm = {"emptyDir": {"medium": "Memory", "sizeLimit": quantity(workload.shm_bytes)}}
    return [{"name": "state", **disk}, {"name": "tmp", **disk}, {"name": "shm", **shm}]


def mounts(settings: ClusterSettings, artifact: str) -> list[dict[str, Any]]:
    """Return where the container sees its volumes, the artifact read-only at a path."""
    inside = {"subPath": settings.subdirectory} if settings.subdirectory else {}
    return [{"name": "artifact", "mountPath": artifact, "readOnly": True, **inside}, *scratch_mounts()]


def scratch_mounts() -> list[dict[str, Any]]:
    """Return where it may write."""
    return [{"name": name, "mountPath": path} for name, path in (("state", STATE), ("tmp", TMP), ("shm", SHM))]


def _affinity(workload: Workload) -> dict[str, Any]:
    """Return which machines have the GPU it was built for, by the labels of NVIDIA's GPU feature discovery."""
    gpu = GPUS.get(workload.manifest.recipe.engine.gpu.lower())
    if gpu is None or not workload.gpu_ids:
        return {}
    major, minor = divmod(gpu.sm, 10)
    wanted = [
        {"key": f"{GPU}.compute.{part}", "operator": "In", "values": [str(number)]}
        for part, number in (("major", major), ("minor", minor))
    ]
    terms = {"nodeSelectorTerms": [{"matchExpressions": wanted}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
