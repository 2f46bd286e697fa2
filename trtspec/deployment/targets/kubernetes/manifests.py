# SPDX-License-Identifier: Apache-2.0
"""Manifests of a deployment in a cluster: a base for any cluster, components for operators, and overlays of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trtspec.core.errors import DeployError
from trtspec.core.ports import LOOPBACK
from trtspec.deployment.containers import (
    PORTS,
    ContainerWorkload,
    RenderedFiles,
    as_yaml,
    check_image,
    dockerfile,
)
from trtspec.deployment.targets.kubernetes import operators, workloads
from trtspec.deployment.targets.kubernetes import operators as parts
from trtspec.deployment.targets.kubernetes.settings import ClusterWorkload, cluster_workload

HEAD = """\
Serves {name} in the namespace {namespace}: kubectl apply -k overlays/NAME
NAME is one of {overlays}.

Ports, inside the cluster only: http {http}, gRPC {grpc}, OpenAI gateway {openai}, metrics {metrics}.
The network policy admits this namespace and the gateway's ({gateway}), and Prometheus (namespace monitoring)
to the metrics; egress is denied. Only the OpenAI gateway supports keys, which it reads from the Secret {name}-env
(optional, not rendered). Triton's control APIs require a token that is created in each container and never leaves it.
The pods conform to the Pod Security profile "restricted"."""

ALONE = """\
Serves {name} in the namespace {namespace} with the engine alone: kubectl apply -f {file}

The engine's own OpenAI API listens without a key; authentication is up to the cluster's gateway. trtspec's models,
metrics and gates are not included."""

# the components of each overlay; NEEDS has the requirements of each component
OVERLAYS: Mapping[str, tuple[str, ...]] = {
    "plain": (),
    "monitored": ("monitoring",),
    "scaled": ("monitoring", "keda"),
    "scaled-hpa": ("monitoring", "hpa"),
    "canary": ("monitoring", "gateway"),
}
NEEDS = {
    "monitoring": "The Prometheus operator (monitoring.coreos.com/v1).",
    "keda": "KEDA 2 (keda.sh/v1alpha1).",
    "hpa": "prometheus-adapter, which exposes the queues per pod in the metrics API.",
    "gateway": "Gateway API 1 and the inference extension 1 (InferencePool v1), whose chart installs {name}-epp.",
}
DEFAULT_OVERLAY = "plain"


def render_kubernetes(workload: ContainerWorkload, repository: Path) -> RenderedFiles:
    """Return the files; without an image only the Dockerfile, because an image gets its digest when built."""
    options = workload.options
    if options.host != LOOPBACK or options.ports:
        raise DeployError("a cluster's service has its own address and ports", hint="omit --host and the port options")
    wanted = cluster_workload(workload)
    settings = wanted.settings
    if not settings.image and settings.form == "deployment":
        return {"Dockerfile": dockerfile(workload)}
    settings.check()
    check_image(settings.image, workload)
    if settings.form != "deployment":
        return _alone(wanted, repository)
    files = {f"base/{path}": text for path, text in _base(wanted)}
    files |= {f"components/{path}": text for path, text in _components(wanted)}
    for overlay, components in OVERLAYS.items():
        files[f"overlays/{overlay}/kustomization.yaml"] = _overlay(components)
    return files | {"Dockerfile": dockerfile(workload)}


def _base(workload: ClusterWorkload) -> Iterator[tuple[str, str]]:
    objects = {
        "workload.yaml": workloads.workload_object(workload),
        "service.yaml": workloads.service(workload),
        "disruption-budget.yaml": workloads.disruption_budget(workload),
        "network-policy.yaml": workloads.network_policy(workload),
    }
    head = HEAD.format(
        name=workload.name,
        namespace=workload.settings.namespace,
        gateway=workload.settings.gateway.partition("/")[0],
        overlays=", ".join(OVERLAYS),
        **PORTS,
    )
    yield "kustomization.yaml", _kustomization("Kustomization", {"resources": [*objects]}, head)
    for path, document in objects.items():
        yield path, as_yaml(document)


def _components(workload: ClusterWorkload) -> Iterator[tuple[str, str]]:
    found = {
        "monitoring": {"pod-monitor.yaml": parts.pod_monitor(workload)},
        "keda": {"scaled-object.yaml": parts.scaled_object(workload)},
        "hpa": {"autoscaler.yaml": parts.autoscaler(workload)},
        "gateway": {
            "inference-pool.yaml": parts.inference_pool(workload),
            "route.yaml": parts.route(workload),
        },
    }
    for name, objects in found.items():
        needs = f"Requires: {NEEDS[name].format(name=workload.name)}"
        yield f"{name}/kustomization.yaml", _kustomization("Component", {"resources": [*objects]}, needs)
        for path, document in objects.items():
            yield f"{name}/{path}", as_yaml(document)


def _overlay(components: Sequence[str]) -> str:
    chosen = {"components": [f"../../components/{name}" for name in components]} if components else {}
    return _kustomization("Kustomization", {"resources": ["../../base"], **chosen})


def _kustomization(kind: str, lists: Mapping[str, Any], head: str = "") -> str:
    version = "v1alpha1" if kind == "Component" else "v1beta1"
    return as_yaml({"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, **lists}, head=head)


def _alone(workload: ClusterWorkload, repository: Path) -> RenderedFiles:
    make = {"kserve": operators.llm_inference_service, "dynamo": operators.graph_deployment}[workload.settings.form]
    file = f"{workload.settings.form}.yaml"
    head = ALONE.format(name=workload.name, namespace=workload.settings.namespace, file=file)
    return {file: as_yaml(*make(workload, repository), head=head)}
