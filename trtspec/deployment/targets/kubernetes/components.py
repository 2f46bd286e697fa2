# SPDX-License-Identifier: Apache-2.0
"""Optional kustomize components for a cluster's operators: metrics, autoscaling and canary routing.

Metrics: nv_inference_pending_request_count is Triton's queue, trtspec_requests_waiting the queue of trtspec's models.
"""

from __future__ import annotations

from typing import Any

from trtspec.deployment.containers import PORTS, ContainerWorkload
from trtspec.deployment.targets.kubernetes.pod import all_labels
from trtspec.deployment.targets.kubernetes.settings import ClusterSettings
from trtspec.deployment.targets.kubernetes.workloads import machines, served, workload_object

KV_FULL = "0.9"  # share of used blocks above which requests wait for memory
QUEUES = ("nv_inference_pending_request_count", "trtspec_requests_waiting")
PICKER_PORT = 9002


def pod_monitor(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    """Return the PodMonitor by which Prometheus scrapes the pods."""
    return _object(
        "monitoring.coreos.com/v1",
        "PodMonitor",
        workload,
        settings,
        {
            "selector": {"matchLabels": served(workload, settings)},
            "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": "15s"}],
        },
    )


def scaled_object(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    """Return the KEDA ScaledObject: scale up when a batch is queued per server, or the KV caches are full."""
    waiting = " + ".join(f"(sum({_of(queue, workload, settings)}) or vector(0))" for queue in QUEUES)
    triggers = [_trigger("queue", waiting, _batch(workload), settings)]
    if usage := workload.serving.kv_usage:
        query = f"avg({_of(usage, workload, settings)})"
        triggers.append(_trigger("kv-cache", query, KV_FULL, settings) | {"metricType": "Value"})
    spec = {
        "scaleTargetRef": _scaled(workload, settings),
        "minReplicaCount": settings.replicas,
        "maxReplicaCount": settings.max_replicas,
        "pollingInterval": 15,
        "cooldownPeriod": max(300, workload.startup_s),  # a stopped server needs that long to start again
        "fallback": {"failureThreshold": 3, "replicas": settings.replicas},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behaviour(workload)}},
        "triggers": triggers,
    }
    return _object("keda.sh/v1alpha1", "ScaledObject", workload, settings, spec)


def autoscaler(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    """Return the HorizontalPodAutoscaler for a cluster without KEDA; its metrics API needs prometheus-adapter."""
    metrics = [
        {
            "type": "Pods",
            "pods": {"metric": {"name": queue}, "target": {"type": "AverageValue", "averageValue": _batch(workload)}},
        }
        for queue in QUEUES
    ]
    spec = {
        "scaleTargetRef": _scaled(workload, settings),
        "minReplicas": settings.replicas,
        "maxReplicas": settings.max_replicas,
        "metrics": metrics,
        "behavior": _behaviour(workload),
    }
    return _object("autoscaling/v2", "HorizontalPodAutoscaler", workload, settings, spec)


def inference_pool(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    """Return the InferencePool of the pods; its endpoint picker is installed by a separate chart."""
    spec = {
        "selector": {"matchLabels": served(workload, settings)},
        "targetPorts": [{"number": PORTS["openai"]}],
        "endpointPickerRef": {
            "name": f"{workload.name}-epp",
            "kind": "Service",
            "port": {"number": PICKER_PORT},
            "failureMode": "FailOpen",
        },
    }
    return _object("inference.networking.k8s.io/v1", "InferencePool", workload, settings, spec)


def route(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    """Return the HTTPRoute to the pool; a canary's replaces the stable deployment's and splits requests by weight."""
    namespace, _, gateway = settings.gateway.partition("/")
    shares = [(workload.name, 100)]
    if settings.canary_of:
        shares = [(settings.canary_of, 100 - settings.weight), (workload.name, settings.weight)]
    pools = [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": name, "weight": weight}
        for name, weight in shares
    ]
    rule = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/v1"}}],
        "backendRefs": pools,
        "timeouts": {"request": "0s"},  # no limit for streams
    }
    spec = {"parentRefs": [{"name": gateway, "namespace": namespace}], "rules": [rule]}
    document = _object("gateway.networking.k8s.io/v1", "HTTPRoute", workload, settings, spec)
    document["metadata"]["name"] = settings.canary_of or workload.name
    return document


def _object(
    version: str, kind: str, workload: ContainerWorkload, settings: ClusterSettings, spec: Any
) -> dict[str, Any]:
    metadata = {"name": workload.name, "namespace": settings.namespace, "labels": all_labels(workload)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}


def _scaled(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, str]:
    found = workload_object(workload, settings)
    return {"apiVersion": found["apiVersion"], "kind": found["kind"], "name": workload.name}


def _batch(workload: ContainerWorkload) -> str:
    return str(workload.manifest.recipe.engine.max_batch_size)


def _of(metric: str, workload: ContainerWorkload, settings: ClusterSettings) -> str:
    """Return a metric restricted to the pods NAME-x-y (NAME-0-1 over several machines), not NAME-canary's."""
    name, _, rest = metric.partition("{")
    pods = "(-[a-z0-9]+){2}" if machines(workload, settings) == 1 else "(-[0-9]+){1,2}"
    chosen = [f'namespace="{settings.namespace}"', f'pod=~"{workload.name}{pods}"', *([rest[:-1]] if rest else [])]
    return f"{name}{{{', '.join(chosen)}}}"


def _trigger(name: str, query: str, threshold: str, settings: ClusterSettings) -> dict[str, Any]:
    metadata = {"serverAddress": settings.prometheus, "query": query, "threshold": threshold}
    return {"type": "prometheus", "name": name, "metadata": metadata}


def _behaviour(workload: ContainerWorkload) -> dict[str, Any]:
    """Return fast scale-up and slow scale-down, one server at a time, because a start takes minutes."""
    one = [{"type": "Pods", "value": 1, "periodSeconds": max(60, min(workload.grace_s, 1800))}]
    return {
        "scaleUp": {"stabilizationWindowSeconds": 30, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]},
        "scaleDown": {"stabilizationWindowSeconds": 600, "policies": one},
    }
