# SPDX-License-Identifier: Apache-2.0
"""Parts of pods that all rendered Kubernetes objects share: permissions, registry credentials, and nodes with a GPU.

The permissions conform to the Pod Security profile "restricted". Nodes are selected by the labels of NVIDIA's GPU
feature discovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.core.gpus import MEMORY_TOLERANCE_GIB, Gpu
from trtspec.deployment.containers import USER

GPU = "nvidia.com/gpu"
POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
}
CREDENTIALS = "/credentials"


@dataclass(frozen=True)
class PodAddition:
    """Volumes of a pod, and the mounts and environment variables of the containers that use them."""

    volumes: list[dict[str, Any]] = field(default_factory=list)
    mounts: list[dict[str, Any]] = field(default_factory=list)
    environment: Mapping[str, str] = field(default_factory=dict)


def registry_credentials(secret: str) -> PodAddition:
    """Return what gives `trtspec` a registry's credentials from a Secret of the type kubernetes.io/dockerconfigjson."""
    if not secret:
        return PodAddition()
    items = [{"key": ".dockerconfigjson", "path": "config.json"}]
    return PodAddition(
        volumes=[{"name": "credentials", "secret": {"secretName": secret, "items": items, "defaultMode": 0o440}}],
        mounts=[{"name": "credentials", "mountPath": CREDENTIALS, "readOnly": True}],
        environment={"DOCKER_CONFIG": CREDENTIALS},
    )


def environment_list(environment: Mapping[str, str]) -> list[dict[str, str]]:
    """Return environment variables as a container has them, sorted by name."""
    return [{"name": name, "value": value} for name, value in sorted(environment.items())]


def capability_expressions(gpu: Gpu) -> list[dict[str, Any]]:
    """Return node selector expressions for the GPU's compute capability."""
    return [
        {"key": f"{GPU}.compute.{part}", "operator": "In", "values": [str(number)]}
        for part, number in zip(("major", "minor"), divmod(gpu.sm, 10), strict=True)
    ]


def memory_expressions(gpu: Gpu) -> list[dict[str, Any]]:
    """Return node selector expressions for the GPU's memory in MiB; models of one architecture differ in it."""
    tolerance, mib = MEMORY_TOLERANCE_GIB << 10, gpu.memory_bytes >> 20
    bounds = (("Gt", mib - tolerance), ("Lt", mib + tolerance))
    return [{"key": f"{GPU}.memory", "operator": operator, "values": [str(bound)]} for operator, bound in bounds]


def node_affinity(expressions: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the affinity that requires nodes for which all expressions hold."""
    terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
