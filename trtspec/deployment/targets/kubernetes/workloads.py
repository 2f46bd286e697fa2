# SPDX-License-Identifier: Apache-2.0
"""Objects for any cluster: a Deployment or LeaderWorkerSet, Service, disruption budget and network policy."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from trtspec.deployment.containers import PORTS
from trtspec.deployment.targets.kubernetes.serving_pod import all_labels, labels, main_container, pod_spec, pod_template
from trtspec.deployment.targets.kubernetes.settings import ClusterSettings, ClusterWorkload

HTTPS_PORT = 443
MONITORING = "monitoring"
NAMESPACE = "kubernetes.io/metadata.name"
LEADER = {"leaderworkerset.sigs.k8s.io/worker-index": "0"}
SETTLE_S = 15  # minReadySeconds: a pod must stay ready this long to count as available


def served(workload: ClusterWorkload) -> dict[str, str]:
    """Return the labels of the pods that receive requests."""
    return labels(workload.name) | (LEADER if workload.machines > 1 else {})


def workload_object(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the Deployment, or the LeaderWorkerSet for several machines."""
    return _deployment(workload) if workload.machines == 1 else _leader_worker_set(workload)


def cluster_object(version: str, kind: str, workload: ClusterWorkload, spec: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {"name": workload.name, "namespace": workload.settings.namespace, "labels": all_labels(workload)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def annotated_object(version: str, kind: str, workload: ClusterWorkload, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object with the artifact's place in annotations; pods lack them, so a new tag alone restarts none."""
    found = cluster_object(version, kind, workload, spec)
    if workload.annotations:
        found["metadata"]["annotations"] = workload.annotations
    return found


def _deployment(workload: ClusterWorkload) -> dict[str, Any]:
    spec = {
        "replicas": workload.settings.replicas,
        "revisionHistoryLimit": 3,
        "minReadySeconds": SETTLE_S,
        "progressDeadlineSeconds": workload.startup_s + workload.fetch_s + 300,
        # a new server answers before an old one ends; needs capacity for one more
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
        "selector": {"matchLabels": labels(workload.name)},
        "template": pod_template(workload, workload.command),
    }
    return annotated_object("apps/v1", "Deployment", workload, spec)


def _leader_worker_set(workload: ClusterWorkload) -> dict[str, Any]:
    """Return a LeaderWorkerSet; the leader of each group of machines serves with the GPUs of the whole group."""
    nodes = workload.serving.nodes
    assert nodes is not None  # checked by `machines`
    leader = ["sh", "-c", f"{nodes.leader} && exec {shlex.join(workload.command)}"]
    worker = main_container(workload, ["sh", "-c", f"exec {nodes.worker}"])
    template = {
        "size": workload.machines,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "leaderTemplate": pod_template(workload, leader),
        "workerTemplate": {"metadata": {"labels": all_labels(workload)}, "spec": pod_spec(workload, worker)},
    }
    spec = {"replicas": workload.settings.replicas, "startupPolicy": "LeaderCreated", "leaderWorkerTemplate": template}
    return annotated_object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", workload, spec)


def service(workload: ClusterWorkload) -> dict[str, Any]:
    ports = [{"name": name, "port": port, "targetPort": name, "protocol": "TCP"} for name, port in PORTS.items()]
    spec = {"type": "ClusterIP", "selector": served(workload), "ports": ports}
    return cluster_object("v1", "Service", workload, spec)


def disruption_budget(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the PodDisruptionBudget that limits voluntary disruptions to one server at a time."""
    selector = {"matchLabels": served(workload)}
    spec = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": selector}
    return cluster_object("policy/v1", "PodDisruptionBudget", workload, spec)


def network_policy(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the NetworkPolicy: ingress from the namespace, gateway and Prometheus.

    Egress is limited to the deployment's own pods on several machines, and to the registry if an init container pulls.
    """
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
        ingress, egress = [*ingress, {"from": [own]}], [{"to": [own]}]
    if workload.settings.pulls:
        egress.append(_to_registry(workload.settings))
    if egress:
        egress.append({"ports": [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]})
    spec = {
        "podSelector": {"matchLabels": labels(workload.name)},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": ingress,
        "egress": egress,
    }
    return cluster_object("networking.k8s.io/v1", "NetworkPolicy", workload, spec)


def _to_registry(settings: ClusterSettings) -> dict[str, Any]:
    """Return the egress rule for a registry's port, and for HTTPS, which its token server and storage use."""
    host = settings.volume_reference[1].partition("/")[0]
    ports = sorted({HTTPS_PORT, int(host.rpartition(":")[2])} if ":" in host else {HTTPS_PORT})
    to = {"to": [{"ipBlock": {"cidr": settings.registry_cidr}}]} if settings.registry_cidr else {}
    return {**to, "ports": [{"protocol": "TCP", "port": port} for port in ports]}
