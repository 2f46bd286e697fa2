# SPDX-License-Identifier: Apache-2.0
"""Pods of a workload: containers, probes, resources and volumes. They conform to the Pod Security profile "restricted".

An artifact reaches a pod as a volume: a claim, an image volume, a volume of ModelPack's CSI driver, or a directory that
an init container pulls into. Image volumes with raw layers are mounted by CRI-O from 1.33 on
(cri-o/cri-o:server/container_create_linux.go@v1.36.3). containerd unpacks layers as tar and cannot mount them
(containerd/containerd:internal/cri/server/container_image_mount.go@v2.3.4), hence the init container is the default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.core.gpus import GPUS
from trtspec.deployment.containers import (
    ALIVE_S,
    ARTIFACT,
    ENVIRONMENT,
    PORTS,
    PROBE_S,
    PROPAGATION_S,
    SHM,
    STATE,
    STATE_BYTES,
    TMP,
    ContainerWorkload,
    quantity,
)
from trtspec.deployment.pods import (
    CONTAINER_SECURITY,
    GPU,
    POD_SECURITY,
    capability_expressions,
    environment_list,
    node_affinity,
    registry_credentials,
)
from trtspec.deployment.targets.kubernetes.settings import ClusterWorkload

STARTUP_PERIOD_S = 5
PULLED, PULLED_ARTIFACT = "/pulled", "artifact"  # where an init container pulls, and the artifact's directory there
PULL_MEMORY = "1Gi"  # pull needs at most 64 MiB, and Python


def labels(name: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": name}


def all_labels(workload: ContainerWorkload) -> dict[str, str]:
    """Return the labels of all objects of a deployment."""
    return labels(workload.name) | {"app.kubernetes.io/managed-by": "trtspec"}


def pod_template(workload: ClusterWorkload, command: Sequence[str]) -> dict[str, Any]:
    """Return the template of a pod whose container runs `command`, with ports and probes."""
    container = main_container(workload, command) | probes(workload)
    container["ports"] = [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()]
    container["lifecycle"] = {"preStop": {"sleep": {"seconds": PROPAGATION_S}}}
    return {"metadata": {"labels": all_labels(workload)}, "spec": pod_spec(workload, container)}


def pod_spec(workload: ClusterWorkload, container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a pod with one container and minimal permissions."""
    settings = workload.settings
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": workload.grace_s,
        "containers": [dict(container)],
        "volumes": [{"name": "artifact", **settings.volume(workload.total_bytes)}, *scratch(workload)],
    }
    if settings.pull_secret:
        spec["imagePullSecrets"] = [{"name": settings.pull_secret}]
    if settings.pulls:
        spec["initContainers"] = [_pull_container(workload)]
        spec["volumes"] += registry_credentials(settings.pull_secret).volumes
    if affinity := _affinity(workload):
        spec["affinity"] = affinity
    return spec


def main_container(workload: ClusterWorkload, command: Sequence[str]) -> dict[str, Any]:
    """Return the container without ports and probes; API keys come from a Secret that is not rendered."""
    return {
        "name": "server",
        "image": workload.settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": environment_list(ENVIRONMENT),
        "envFrom": [{"secretRef": {"name": f"{workload.name}-env", "optional": True}}],
        "resources": resources(workload),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts(workload),
    }


def _pull_container(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the init container that pulls and verifies the artifact; a killed one continues in the same pod."""
    settings, credentials = workload.settings, registry_credentials(workload.settings.pull_secret)
    disk = quantity(workload.pulled_bytes)
    reference = settings.volume_reference[1]
    return {
        "name": "pull",
        "image": settings.pull_image or settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": [
            *("trtspec", "pull", f"oci://{reference}", f"--out={PULLED}/{PULLED_ARTIFACT}"),
            f"--manifest=sha256:{workload.digest}",
        ],
        "env": environment_list({**ENVIRONMENT, **credentials.environment}),
        "resources": {
            "requests": {"cpu": "2", "memory": PULL_MEMORY, "ephemeral-storage": disk},
            "limits": {"memory": PULL_MEMORY, "ephemeral-storage": quantity(STATE_BYTES + workload.pulled_bytes)},
        },
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "artifact", "mountPath": PULLED},
            *({"name": name, "mountPath": path} for name, path in (("state", STATE), ("tmp", TMP))),
            *credentials.mounts,
        ],
    }


def resources(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the resources of a pod, for one machine; the memory request equals the limit to avoid early eviction."""
    memory = quantity(workload.memory_bytes)
    gpus = {GPU: str(min(len(workload.gpu_ids), workload.settings.node_gpus))} if workload.gpu_ids else {}
    cpus, pulled = 4 + 2 * len(workload.gpu_ids), workload.pulled_bytes
    disk, most = quantity(STATE_BYTES + pulled), quantity(3 * STATE_BYTES + pulled)
    return {
        "requests": {"cpu": str(cpus), "memory": memory, "ephemeral-storage": disk, **gpus},
        "limits": {"memory": memory, "ephemeral-storage": most, **gpus},
    }


def probes(workload: ContainerWorkload) -> dict[str, Any]:
    """Return the probes of a container, each of which requests a text.

    Only answers count: Triton reports not ready for seconds after a successful reload, and ready with dead models. A
    probe fails after three requests without an answer. The liveness probe waits longest, because a restart reloads all
    models.
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


def scratch(workload: ContainerWorkload) -> list[dict[str, Any]]:
    """Return the writable volumes of a pod; the shared memory volume counts as memory."""
    disk = {"emptyDir": {"sizeLimit": quantity(STATE_BYTES)}}
    shm = {"emptyDir": {"medium": "Memory", "sizeLimit": quantity(workload.shm_bytes)}}
    return [{"name": "state", **disk}, {"name": "tmp", **disk}, {"name": "shm", **shm}]


def mounts(workload: ClusterWorkload, path: str = ARTIFACT) -> list[dict[str, Any]]:
    """Return the mounts of a container, with the artifact at `path`, read-only."""
    directory = PULLED_ARTIFACT if workload.settings.pulls else workload.settings.subdirectory
    inside = {"subPath": directory} if directory else {}
    return [{"name": "artifact", "mountPath": path, "readOnly": True, **inside}, *scratch_mounts()]


def scratch_mounts() -> list[dict[str, Any]]:
    return [{"name": name, "mountPath": path} for name, path in (("state", STATE), ("tmp", TMP), ("shm", SHM))]


def _affinity(workload: ContainerWorkload) -> dict[str, Any]:
    """Return the affinity for machines with the artifact's GPU, by labels of NVIDIA's GPU feature discovery; or {}."""
    gpu = GPUS.get(workload.recipe.engine.gpu.lower())
    if gpu is None or not workload.gpu_ids:
        return {}
    return node_affinity(capability_expressions(gpu))
