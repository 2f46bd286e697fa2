# SPDX-License-Identifier: Apache-2.0
"""A workload in a Kubernetes cluster: its settings, and its objects for any cluster.

The objects are a Deployment or LeaderWorkerSet, Service, disruption budget and network policy. The pods conform to the
Pod Security profile "restricted".
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from trtspec.core.errors import DeployError
from trtspec.core.gpus import GPUS
from trtspec.core.image_references import IMAGE_BY_DIGEST
from trtspec.deployment.containers import (
    ALIVE_S,
    ARTIFACT,
    ENVIRONMENT,
    LABEL,
    PORTS,
    PROBE_S,
    PROPAGATION_S,
    SHM,
    STATE,
    STATE_BYTES,
    TMP,
    USER,
    ContainerWorkload,
    parse_settings,
    quantity,
)

FORMS = ("deployment", "kserve", "dynamo")
MODELPACK = "model.csi.modelpack.org"  # the driver of modelpack/model-csi-driver
WHERE = "pvc:CLAIM[/DIR], image:NAME@sha256:... or modelpack:NAME@sha256:..."


def _setting(default: Any, description: str) -> Any:
    return field(default=default, metadata={"description": description})


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of the Kubernetes target; their names are the keys of `--target-option`."""

    image: str = _setting("", "serving image, NAME@sha256:...")
    artifact: str = _setting("", f"location: {WHERE}")
    form: str = _setting("deployment", "deployment, kserve or dynamo: how it is run")
    namespace: str = _setting("default", "namespace")
    replicas: int = _setting(1, "minimum number of servers")
    max_replicas: int = _setting(4, "maximum number of servers with autoscaling")
    node_gpus: int = _setting(8, "GPUs per machine")
    prometheus: str = _setting("http://prometheus-operated.monitoring.svc:9090", "address of Prometheus, for KEDA")
    gateway: str = _setting("gateway-system/gateway", "NAMESPACE/NAME of the Gateway for requests")
    canary_of: str = _setting("", "stable deployment whose requests it shares")
    weight: int = _setting(5, "percentage of those requests, 0 to 100")
    dynamo_version: str = _setting("1.6.1", "version of Dynamo in the image")
    context: str = _setting("", "kubectl context (default: the current one)")

    def check(self) -> None:
        """Raise DeployError for an invalid value."""
        namespace, _, gateway = self.gateway.partition("/")
        names = ("namespace", self.namespace), ("canary-of", self.canary_of or "a")
        for name, text in (*names, ("gateway", namespace), ("gateway", gateway)):
            if not LABEL.fullmatch(text) or len(text) > 63:
                raise DeployError(
                    f"option {name}: {text!r} is not a DNS label", hint="use a-z, 0-9 and '-', at most 63 characters"
                )
        if self.form not in FORMS:
            raise DeployError(f"option form: {self.form!r} is not one of {', '.join(FORMS)}")
        if not 1 <= self.replicas <= self.max_replicas <= 1000 or not 1 <= self.node_gpus <= 64 or self.weight > 100:
            hint = "allowed: 1 <= replicas <= max-replicas <= 1000, node-gpus 1 to 64, weight 0 to 100"
            raise DeployError("a number is out of range", hint=hint)
        if not re.fullmatch(r"(0|[1-9]\d{0,3})(\.(0|[1-9]\d{0,3})){2}", self.dynamo_version, re.ASCII):
            raise DeployError(
                f"option dynamo-version: {self.dynamo_version!r} is not a version", hint="for example 1.6.1"
            )
        if not re.fullmatch(r"https?://[\w.:/-]{1,200}", self.prometheus):
            raise DeployError(f"option prometheus: {self.prometheus!r} is not a URL")
        self.volume()

    @property
    def volume_reference(self) -> tuple[str, str]:
        """Return the kind of the artifact's volume (pvc, image or modelpack) and its reference."""
        kind, _, what = self.artifact.partition(":")
        return kind, what

    @property
    def subdirectory(self) -> str:
        """Return the artifact's directory in its volume; "" for the root."""
        kind, what = self.volume_reference
        return what.partition("/")[2].strip("/") if kind == "pvc" else ""

    def volume(self) -> dict[str, Any]:
        """Return the Kubernetes volume source of the artifact; raises DeployError for an invalid reference."""
        kind, what = self.volume_reference
        claim = what.partition("/")[0]
        if kind == "pvc" and LABEL.fullmatch(claim) and ".." not in self.subdirectory.split("/"):
            return {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        if kind == "image" and re.fullmatch(IMAGE_BY_DIGEST, what):
            return {"image": {"reference": what, "pullPolicy": "IfNotPresent"}}
        if kind == "modelpack" and re.fullmatch(IMAGE_BY_DIGEST, what):
            return {
                "csi": {"driver": MODELPACK, "readOnly": True, "volumeAttributes": {f"{MODELPACK}/reference": what}}
            }
        hint = f"--target-option artifact=KIND:WHERE: {WHERE}"
        raise DeployError(f"option artifact: {self.artifact!r} is not an artifact location", hint=hint)


@dataclass(frozen=True, kw_only=True)
class ClusterWorkload(ContainerWorkload):
    """A container workload with the settings of the Kubernetes target."""

    settings: ClusterSettings

    @property
    def machines(self) -> int:
        """Return the number of machines for the artifact's GPUs; raises DeployError if its engine cannot span them."""
        gpus, per_machine = len(self.gpu_ids), self.settings.node_gpus
        if gpus <= per_machine:
            return 1
        if self.serving.nodes is None:
            backend = self.backend
            message = (
                f"{gpus} GPUs, {per_machine} per machine: {backend} does not support serving over several machines"
            )
            hint = "--target-option node-gpus=N for larger machines, or a smaller target.parallel"
            raise DeployError(message, hint=hint)
        if gpus % per_machine:
            message = f"{gpus} GPUs do not fill machines of {per_machine}"
            raise DeployError(message, hint="choose target.parallel so that every machine is full")
        return gpus // per_machine


def cluster_workload(workload: ContainerWorkload) -> ClusterWorkload:
    """Convert a container workload by parsing the settings in its options; raises DeployError for invalid ones."""
    settings = parse_settings(ClusterSettings, workload.options.settings)
    shared = {each.name: getattr(workload, each.name) for each in fields(ContainerWorkload)}
    return ClusterWorkload(**shared, settings=settings)


GPU = "nvidia.com/gpu"
STARTUP_PERIOD_S = 5
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
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": workload.grace_s,
        "containers": [dict(container)],
        "volumes": [{"name": "artifact", **workload.settings.volume()}, *scratch(workload)],
    }
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
        "env": [{"name": name, "value": value} for name, value in sorted(ENVIRONMENT.items())],
        "envFrom": [{"secretRef": {"name": f"{workload.name}-env", "optional": True}}],
        "resources": resources(workload),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": mounts(workload),
    }


def resources(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the resources of a pod, for one machine; the memory request equals the limit to avoid early eviction."""
    memory = quantity(workload.memory_bytes)
    gpus = {GPU: str(min(len(workload.gpu_ids), workload.settings.node_gpus))} if workload.gpu_ids else {}
    disk, cpus = quantity(STATE_BYTES), 4 + 2 * len(workload.gpu_ids)
    return {
        "requests": {"cpu": str(cpus), "memory": memory, "ephemeral-storage": disk, **gpus},
        "limits": {"memory": memory, "ephemeral-storage": quantity(3 * STATE_BYTES), **gpus},
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


def mounts(workload: ClusterWorkload) -> list[dict[str, Any]]:
    inside = {"subPath": workload.settings.subdirectory} if workload.settings.subdirectory else {}
    return [{"name": "artifact", "mountPath": ARTIFACT, "readOnly": True, **inside}, *scratch_mounts()]


def scratch_mounts() -> list[dict[str, Any]]:
    return [{"name": name, "mountPath": path} for name, path in (("state", STATE), ("tmp", TMP), ("shm", SHM))]


def _affinity(workload: ContainerWorkload) -> dict[str, Any]:
    """Return the affinity for machines with the artifact's GPU, by labels of NVIDIA's GPU feature discovery; or {}."""
    gpu = GPUS.get(workload.recipe.engine.gpu.lower())
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
    return _deployment(workload) if workload.machines == 1 else _leader_worker_set(workload)


def cluster_object(version: str, kind: str, workload: ClusterWorkload, spec: Mapping[str, Any]) -> dict[str, Any]:
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
    return cluster_object("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", workload, spec)


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
    """Return the NetworkPolicy: ingress from the namespace, gateway and Prometheus; egress only between own pods."""
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
