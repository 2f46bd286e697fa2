# SPDX-License-Identifier: Apache-2.0
"""The objects for any cluster: Deployment or LeaderWorkerSet, Service, disruption budget and network policy.

The pods conform to the Pod Security profile "restricted".
"""

from __future__ import annotations

import shlex
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
    ContainerWorkload,
    environment,
    quantity,
)
from trtspec.deployment.targets.kubernetes.settings import ClusterWorkload

CONTAINER = "server"
GPU = "nvidia.com/gpu"
STARTUP_PERIOD_S = 5


def labels(name: str) -> dict[str, str]:
    """Return the labels that identify the pods."""
    return {"app.kubernetes.io/name": name}


def all_labels(workload: ContainerWorkload) -> dict[str, str]:
    """Return the labels of all objects of the deployment."""
    return labels(workload.name) | {"app.kubernetes.io/managed-by": "trtspec"}


def pod_template(workload: ClusterWorkload, command: Sequence[str]) -> dict[str, Any]:
    """Return the template of a pod whose container runs a command, with its probes."""
    container = main_container(workload, command) | probes(workload)
    container["ports"] = [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()]
    container["lifecycle"] = {"preStop": {"sleep": {"seconds": PROPAGATION_S}}}
    return {"metadata": {"labels": all_labels(workload)}, "spec": pod_spec(workload, container)}


def pod_spec(workload: ClusterWorkload, container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spec of a pod with the container and minimal permissions."""
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": workload.grace_s,
        "containers": [dict(container)],
        "volumes": volumes(workload),
    }
    if affinity := _affinity(workload):
        spec["affinity"] = affinity
    return spec


def main_container(workload: ClusterWorkload, command: Sequence[str]) -> dict[str, Any]:
    """Return the container without ports and probes; keys come from a Secret that is not rendered."""
    return {
        "name": CONTAINER,
        "image": workload.settings.image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(command),
        "env": environment(),
        "envFrom": [{"secretRef": {"name": f"{workload.name}-env", "optional": True}}],
        "resources": resources(workload),
        "securityContext": container_security(),
        "volumeMounts": mounts(workload, ARTIFACT),
    }


def resources(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the resources per machine; the memory request equals the limit to avoid early eviction."""
    memory = quantity(workload.memory_bytes)
    gpus = {GPU: str(min(len(workload.gpu_ids), workload.settings.node_gpus))} if workload.gpu_ids else {}
    disk = quantity(STATE_BYTES)
    return {
        "requests": {"cpu": str(workload.cpus), "memory": memory, "ephemeral-storage": disk, **gpus},
        "limits": {"memory": memory, "ephemeral-storage": quantity(3 * STATE_BYTES), **gpus},
    }


def probes(workload: ContainerWorkload) -> dict[str, Any]:
    """Return probes that request a text.

    Triton reports not ready for seconds after a successful reload, and ready with dead models, so only answers count,
    and a probe fails after three missing ones. The liveness probe waits longest, because a restart reloads everything.
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
    """Return the pod's security context."""
    return {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "runAsGroup": USER,
        "fsGroup": USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def container_security() -> dict[str, Any]:
    """Return the container's security context."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
    }


def volumes(workload: ClusterWorkload) -> list[dict[str, Any]]:
    """Return the artifact's volume and the writable volumes."""
    return [{"name": "artifact", **workload.settings.volume()}, *scratch(workload)]


def scratch(workload: ContainerWorkload) -> list[dict[str, Any]]:
    """Return the writable volumes; shared memory counts as memory."""
    disk = {"emptyDir": {"sizeLimit": quantity(STATE_BYTES)}}
    shm = {"emptyDir": {"medium": "Memory", "sizeLimit": quantity(workload.shm_bytes)}}
    return [{"name": "state", **disk}, {"name": "tmp", **disk}, {"name": "shm", **shm}]


def mounts(workload: ClusterWorkload, artifact: str) -> list[dict[str, Any]]:
    """Return the volume mounts of the container; `artifact` is the path of the read-only artifact."""
    inside = {"subPath": workload.settings.subdirectory} if workload.settings.subdirectory else {}
    return [{"name": "artifact", "mountPath": artifact, "readOnly": True, **inside}, *scratch_mounts()]


def scratch_mounts() -> list[dict[str, Any]]:
    """Return the mounts of the writable volumes."""
    return [{"name": name, "mountPath": path} for name, path in (("state", STATE), ("tmp", TMP), ("shm", SHM))]


def _affinity(workload: ContainerWorkload) -> dict[str, Any]:
    """Return the affinity for machines with the artifact's GPU, by labels of NVIDIA's GPU feature discovery."""
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


MONITORING = "monitoring"
NAMESPACE = "kubernetes.io/metadata.name"
LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
SETTLE_S = 15  # minReadySeconds: a pod must stay ready this long to count as available


def served(workload: ClusterWorkload) -> dict[str, str]:
    """Return the labels of the pods that receive requests."""
    return labels(workload.name) | (LEADER if workload.machines > 1 else {})


def workload_object(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the Deployment, or the LeaderWorkerSet for several machines."""
    number = workload.machines
    return _deployment(workload) if number == 1 else _leader_worker_set(workload, number)


def cluster_object(version: str, kind: str, workload: ClusterWorkload, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the workload's name and labels."""
    metadata = {"name": workload.name, "namespace": workload.settings.namespace, "labels": all_labels(workload)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _deployment(workload: ClusterWorkload) -> dict[str, Any]:
    spec = {
        "replicas": workload.settings.replicas,
        "revisionHistoryLimit": 3,
        "minReadySeconds": SETTLE_S,
        "progressDeadlineSeconds": workload.startup_s + 300,
        # a new server answers before an old one ends; needs capacity for one more
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": labels(workload.name)},
        "template": pod_template(workload, workload.command),
    }
    return cluster_object("apps/v1", "Deployment", workload, spec)


def _leader_worker_set(workload: ClusterWorkload, number: int) -> dict[str, Any]:
    """Return groups of machines: the leader of each serves, using the workers' GPUs."""
    nodes = workload.serving.nodes
    assert nodes is not None  # checked by machines()
    leader = ["sh", "-c", f"{nodes.leader} && exec {shlex.join(workload.command)}"]
    worker = main_container(workload, ["sh", "-c", f"exec {nodes.worker}"])
    template = {
        "size": number,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": pod_template(workload, leader),
        "workerTemplate": {
            "metadata": {"labels": all_labels(workload)},
            "spec": pod_spec(workload, worker),
        },
    }
    spec = {"replicas": workload.settings.replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}
    return cluster_object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", workload, spec)


def service(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the Service for clients in the cluster."""
    ports = [{"name": name, "port": port, "targetPort": name, "protocol": "TCP"} for name, port in PORTS.items()]
    spec = {"type": "ClusterIP", "selector": served(workload), "ports": ports}
    return cluster_object("v1", "Service", workload, spec)


def disruption_budget(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the budget that limits voluntary disruptions to one server at a time."""
    selector = {"matchLabels": served(workload)}
    spec = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": selector}
    return cluster_object("policy/v1", "PodDisruptionBudget", workload, spec)


def network_policy(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the policy: ingress from this namespace, the gateway and Prometheus; egress between own pods only."""
    gateway = workload.settings.gateway.partition("/")[0]
    clients = [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": {NAMESPACE: gateway}}}]
    entries = [{"protocol": "TCP", "port": port} for port in (PORTS["http"], PORTS["grpc"], PORTS["openai"])]
    metrics = [{"protocol": "TCP", "port": PORTS["metrics"]}, {"protocol": "TCP", "port": PORTS["openai"]}]
    ingress: list[dict[str, Any]] = [
        {"from": clients, "ports": entries},
        {"from": [{"namespaceSelector": {"matchLabels": {NAMESPACE: MONITORING}}}], "ports": metrics},
    ]
    egress: list[dict[str, Any]] = []
    if workload.machines > 1:
        own = {"podSelector": {"matchLabels": labels(workload.name)}}
        dns = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
        ingress, egress = [*ingress, {"from": [own]}], [{"to": [own]}, dns]
    spec = {
        "podSelector": {"matchLabels": labels(workload.name)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return cluster_object("networking.k8s.io/v1", "NetworkPolicy", workload, spec)
