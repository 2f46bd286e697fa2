# SPDX-License-Identifier: Apache-2.0
"""Workload objects: Deployment or LeaderWorkerSet, Service, disruption budget and network policy."""

from __future__ import annotations

import shlex
from typing import Any

from trtspec.core.errors import DeployError
from trtspec.deployment.containers import PORTS, ContainerWorkload
from trtspec.deployment.targets.kubernetes.pod import all_labels, labels, main_container, pod_spec, pod_template
from trtspec.deployment.targets.kubernetes.settings import ClusterSettings

MONITORING = "monitoring"
NAMESPACE = "kubernetes.io/metadata.name"
LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
SETTLE_S = 15  # minReadySeconds: a pod must stay ready this long to count as available


def machines(workload: ContainerWorkload, settings: ClusterSettings) -> int:
    """Return the number of machines for the artifact's GPUs; raise DeployError if its engine cannot span them."""
    number = max(1, -(-len(workload.gpu_ids) // settings.node_gpus))
    if number == 1:
        return 1
    backend = workload.manifest.backend.name
    if workload.serving.nodes is None:
        gpus = f"{len(workload.gpu_ids)} GPUs, {settings.node_gpus} per machine"
        message = f"{gpus}: {backend} does not support serving over several machines"
        raise DeployError(message, hint="--target-option node-gpus=N for larger machines, or a smaller target.parallel")
    if len(workload.gpu_ids) % settings.node_gpus:
        message = f"{len(workload.gpu_ids)} GPUs do not fill machines of {settings.node_gpus}"
        raise DeployError(message, hint="choose target.parallel so that every machine is full")
    return number


def served(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, str]:
    """Return the labels of the pods that receive requests."""
    return labels(workload.name) | (LEADER if machines(workload, settings) > 1 else {})


def workload_object(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    """Return the Deployment, or the LeaderWorkerSet for several machines."""
    number = machines(workload, settings)
    return _deployment(workload, settings) if number == 1 else _leader_worker_set(workload, settings, number)


def _metadata(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    return {"name": workload.name, "namespace": settings.namespace, "labels": all_labels(workload)}


def _deployment(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(workload, settings),
        "spec": {
            "replicas": settings.replicas,
            "revisionHistoryLimit": 3,
            "minReadySeconds": SETTLE_S,
            "progressDeadlineSeconds": workload.startup_s + 300,
            # a new server answers before an old one ends; needs capacity for one more
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": labels(workload.name)},
            "template": pod_template(workload, settings, workload.command),
        },
    }


def _leader_worker_set(workload: ContainerWorkload, settings: ClusterSettings, number: int) -> dict[str, Any]:
    """Return groups of machines: the leader of each serves, using the workers' GPUs."""
    nodes = workload.serving.nodes
    assert nodes is not None  # checked by machines()
    leader = ["sh", "-c", f"{nodes.leader} && exec {shlex.join(workload.command)}"]
    worker = main_container(workload, settings, ["sh", "-c", f"exec {nodes.worker}"])
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": _metadata(workload, settings),
        "spec": {
            "replicas": settings.replicas,
            "startupPolicy": "LeaderCreated",
            "leaderWorkerTemplate": {
                "size": number,
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": pod_template(workload, settings, leader),
                "workerTemplate": {
                    "metadata": {"labels": all_labels(workload)},
                    "spec": pod_spec(workload, settings, worker),
                },
            },
        },
    }


def service(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    """Return the Service for clients in the cluster."""
    ports = [{"name": name, "port": port, "targetPort": name, "protocol": "TCP"} for name, port in PORTS.items()]
    spec = {"type": "ClusterIP", "selector": served(workload, settings), "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": _metadata(workload, settings), "spec": spec}


def disruption_budget(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    """Return the budget that limits voluntary disruptions to one server at a time."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(workload, settings),
        "spec": {
            "maxUnavailable": 1,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": served(workload, settings)},
        },
    }


def network_policy(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    """Return the policy: ingress from this namespace, the gateway and Prometheus; egress between own pods only."""
    gateway = settings.gateway.partition("/")[0]
    clients = [{"podSelector": {}}, {"namespaceSelector": {"matchLabels": {NAMESPACE: gateway}}}]
    entries = [{"protocol": "TCP", "port": port} for port in (PORTS["http"], PORTS["grpc"], PORTS["openai"])]
    metrics = [{"protocol": "TCP", "port": PORTS["metrics"]}, {"protocol": "TCP", "port": PORTS["openai"]}]
    ingress: list[dict[str, Any]] = [
        {"from": clients, "ports": entries},
        {"from": [{"namespaceSelector": {"matchLabels": {NAMESPACE: MONITORING}}}], "ports": metrics},
    ]
    egress: list[dict[str, Any]] = []
    if machines(workload, settings) > 1:
        own = {"podSelector": {"matchLabels": labels(workload.name)}}
        dns = {"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]}
        ingress, egress = [*ingress, {"from": [own]}], [{"to": [own]}, dns]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(workload, settings),
        "spec": {
            "podSelector": {"matchLabels": labels(workload.name)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }
