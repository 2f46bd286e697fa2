# SPDX-License-Identifier: Apache-2.0
"""Objects for a cluster's operators: kustomize components, and objects of KServe and Dynamo.

The components are for metrics, autoscaling and canary routing. nv_inference_pending_request_count is the length of
Triton's queue. trtspec_requests_waiting is the length of the queue in trtspec's models and their engines.

KServe and Dynamo serve the engine without Triton. Checkpoints and engine arguments are the artifact's, so drafting and
verification are unchanged; trtspec's models, gateway and gates are not available. Sources:
kserve/kserve:pkg/apis/serving/v1alpha2@v0.20.0, ai-dynamo/dynamo:deploy/operator/api/v1beta1@006b6e10.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from trtspec.backends.serving import StandaloneServer
from trtspec.core.errors import DeployError
from trtspec.deployment.containers import ARTIFACT, PORTS, PROPAGATION_S, quantity
from trtspec.deployment.targets.kubernetes.serving_pod import (
    all_labels,
    labels,
    main_container,
    mounts,
    pod_spec,
    scratch,
    scratch_mounts,
)
from trtspec.deployment.targets.kubernetes.settings import ClusterWorkload
from trtspec.deployment.targets.kubernetes.workloads import (
    annotated_object,
    cluster_object,
    served,
    workload_object,
)

KV_FULL = "0.9"  # share of used blocks above which requests wait for memory
QUEUES = ("nv_inference_pending_request_count", "trtspec_requests_waiting")
PICKER_PORT = 9002


def pod_monitor(workload: ClusterWorkload) -> dict[str, Any]:
    spec = {
        "selector": {"matchLabels": served(workload)},
        "podMetricsEndpoints": [{"port": "metrics", "path": "/metrics", "interval": "15s"}],
    }
    return cluster_object("monitoring.coreos.com/v1", "PodMonitor", workload, spec)


def scaled_object(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the KEDA ScaledObject, which scales up if many requests wait per server or the KV caches are full."""
    waiting = " + ".join(f"(sum({_of(queue, workload)}) or vector(0))" for queue in QUEUES)
    triggers = [_trigger(workload, "queue", waiting, str(_many_waiting(workload)))]
    if usage := workload.serving.kv_usage:
        query = f"avg({_of(usage, workload)})"
        triggers.append(_trigger(workload, "kv-cache", query, KV_FULL) | {"metricType": "Value"})
    spec = {
        "scaleTargetRef": _scaled(workload),
        "minReplicaCount": workload.settings.replicas,
        "maxReplicaCount": workload.settings.max_replicas,
        "pollingInterval": 15,
        "cooldownPeriod": max(300, workload.startup_s),  # a stopped server needs that long to start again
        "fallback": {"failureThreshold": 3, "replicas": workload.settings.replicas},
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behaviour(workload)}},
        "triggers": triggers,
    }
    return cluster_object("keda.sh/v1alpha1", "ScaledObject", workload, spec)


def autoscaler(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the HorizontalPodAutoscaler for a cluster without KEDA; it requires prometheus-adapter."""
    target = {"type": "AverageValue", "averageValue": str(_many_waiting(workload))}
    metrics = [{"type": "Pods", "pods": {"metric": {"name": queue}, "target": target}} for queue in QUEUES]
    spec = {
        "scaleTargetRef": _scaled(workload),
        "minReplicas": workload.settings.replicas,
        "maxReplicas": workload.settings.max_replicas,
        "metrics": metrics,
        "behavior": _behaviour(workload),
    }
    return cluster_object("autoscaling/v2", "HorizontalPodAutoscaler", workload, spec)


def inference_pool(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the InferencePool of the pods; its endpoint picker is installed by a separate chart."""
    spec = {
        "selector": {"matchLabels": served(workload)},
        "targetPorts": [{"number": PORTS["openai"]}],
        "endpointPickerRef": {
            "name": f"{workload.name}-epp",
            "kind": "Service",
            "port": {"number": PICKER_PORT},
            "failureMode": "FailOpen",
        },
    }
    return cluster_object("inference.networking.k8s.io/v1", "InferencePool", workload, spec)


def route(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the HTTPRoute to the pool; a canary's route replaces the stable one and splits requests by weight."""
    namespace, _, gateway = workload.settings.gateway.partition("/")
    settings, shares = workload.settings, [(workload.name, 100)]
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
    document = cluster_object("gateway.networking.k8s.io/v1", "HTTPRoute", workload, spec)
    document["metadata"]["name"] = workload.settings.canary_of or workload.name
    return document


def _many_waiting(workload: ClusterWorkload) -> int:
    """Return the waiting requests per server that trigger scaling up: a batch, or half of a shorter queue."""
    recipe = workload.recipe
    return min(recipe.engine.max_batch_size, max(1, recipe.serving.max_queue_size // 2))


def _scaled(workload: ClusterWorkload) -> dict[str, str]:
    found = workload_object(workload)
    return {"apiVersion": found["apiVersion"], "kind": found["kind"], "name": workload.name}


def _of(metric: str, workload: ClusterWorkload) -> str:
    """Return a PromQL selector of a metric for the pods NAME-x-y, or NAME-0-1 on several machines."""
    name, _, rest = metric.partition("{")
    pods = "(-[a-z0-9]+){2}" if workload.machines == 1 else "(-[0-9]+){1,2}"
    chosen = [
        f'namespace="{workload.settings.namespace}"',
        f'pod=~"{workload.name}{pods}"',
        *([rest[:-1]] if rest else []),
    ]
    return f"{name}{{{', '.join(chosen)}}}"


def _trigger(workload: ClusterWorkload, name: str, query: str, threshold: str) -> dict[str, Any]:
    metadata = {"serverAddress": workload.settings.prometheus, "query": query, "threshold": threshold}
    return {"type": "prometheus", "name": name, "metadata": metadata}


def _behaviour(workload: ClusterWorkload) -> dict[str, Any]:
    """Return the scaling behavior: scale up fast, and down slowly by one server at a time, as a start takes minutes."""
    one = [{"type": "Pods", "value": 1, "periodSeconds": max(60, min(workload.grace_s, 1800))}]
    return {
        "scaleUp": {"stabilizationWindowSeconds": 30, "policies": [{"type": "Pods", "value": 2, "periodSeconds": 60}]},
        "scaleDown": {"stabilizationWindowSeconds": 600, "policies": one},
    }


MODELS = "/mnt/models"  # mount point of KServe's storage initializer
PORT = 8000
CONFIG = "/config"


def standalone_engine(workload: ClusterWorkload, repository: Path, artifact: str, form: str) -> StandaloneServer:
    """Return the commands and files that serve the engine without Triton; raises DeployError if unsupported."""
    version = workload.recipe.engine.version
    if len(workload.gpu_ids) > 0 and (found := workload.serving.alone(repository, artifact, version)):
        return found
    backend = workload.backend
    message = f"form {form} requires an engine that serves without Triton, which {backend} does not here"
    raise DeployError(message, hint="--target-option form=deployment")


def llm_inference_service(workload: ClusterWorkload, repository: Path) -> list[dict[str, Any]]:
    """Return the documents for KServe; a canary joins its stable deployment's group with its weight.

    KServe mounts a claim. An artifact in a registry is mounted as on other pods, with KServe's own storage disabled:
    for oci:// it requires an image with /models and a shell, and it does not read ModelPack yet
    (kserve/kserve:pkg/utils/storage.go@v0.20.0).
    """
    kind, what = workload.settings.volume_reference
    engine = standalone_engine(workload, repository, MODELS, workload.settings.form)
    group = workload.settings.canary_of or workload.name
    weight = workload.settings.weight if workload.settings.canary_of else 100
    parallel = workload.recipe.target.parallel
    own = {} if kind == "pvc" else {"storageInitializer": {"enabled": False}}
    spec = {
        "model": {"uri": f"{'pvc' if kind == 'pvc' else 'oci'}://{what}", "name": workload.recipe.name},
        **own,
        "replicas": workload.settings.replicas,
        "labels": all_labels(workload),
        "parallelism": {"tensor": parallel.tensor, "pipeline": parallel.pipeline},
        "router": {"gateway": {}, "route": {"group": group, "weight": weight}, "scheduler": {}},
        "template": _kserve_pod(workload, engine),
    }
    service = annotated_object("serving.kserve.io/v1alpha2", "LLMInferenceService", workload, spec)
    return [*_config_maps(workload, engine), service]


def graph_deployment(workload: ClusterWorkload, repository: Path) -> list[dict[str, Any]]:
    """Return the documents for Dynamo: its frontend, and workers that run the engine."""
    engine = standalone_engine(workload, repository, ARTIFACT, workload.settings.form)
    frontend = main_container(workload, ["python3", "-m", "dynamo.frontend"]) | {
        "name": "main",
        "volumeMounts": scratch_mounts(),
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
    }
    spec = pod_spec(workload, frontend) | {"volumes": scratch(workload)}
    for key in ("affinity", "initContainers"):
        spec.pop(key, None)
    face = {
        "name": "frontend",
        "type": "frontend",
        "runtimeVersionOverride": workload.settings.dynamo_version,
        "replicas": 1,
        "podTemplate": _template(workload, spec),
    }
    spec = {"backendFramework": engine.framework, "components": [face, _worker(workload, engine)]}
    graph = annotated_object("nvidia.com/v1beta1", "DynamoGraphDeployment", workload, spec)
    return [*_config_maps(workload, engine), graph]


def _worker(workload: ClusterWorkload, engine: StandaloneServer) -> dict[str, Any]:
    """Return the worker component of a Dynamo graph.

    The operator mounts /dev/shm itself. It cannot derive Dynamo's version from an image digest, so the version is
    explicit.
    """
    name = f"--served-model-name={workload.recipe.name}"
    command = ["python3", "-m", f"dynamo.{engine.framework}", *engine.arguments, name]
    main = main_container(workload, command) | {"name": "main"}
    spec = _with_config(pod_spec(workload, main), workload, engine)
    for listed in (spec["volumes"], spec["containers"][0]["volumeMounts"]):
        listed[:] = [each for each in listed if each["name"] != "shm"]
    return {
        "name": "worker",
        "type": "worker",
        "runtimeVersionOverride": workload.settings.dynamo_version,
        "replicas": workload.settings.replicas,
        "sharedMemorySize": quantity(workload.shm_bytes),
        "podTemplate": _template(workload, spec),
    }


def _kserve_pod(workload: ClusterWorkload, engine: StandaloneServer) -> dict[str, Any]:
    """Return the pod spec for KServe, without a claim because KServe mounts it itself."""
    mounted = workload.settings.volume_reference[0] != "pvc"
    name = [f"{engine.name_option}={workload.recipe.name}"] if engine.name_option else []
    command = [*engine.serve, f"--port={PORT}", *name]
    health = {"httpGet": {"path": "/health", "port": PORT, "scheme": "HTTP"}, "timeoutSeconds": 10}
    main = main_container(workload, command) | {
        "name": "main",
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "volumeMounts": mounts(workload, MODELS) if mounted else scratch_mounts(),
        "startupProbe": {**health, "periodSeconds": 10, "failureThreshold": workload.startup_s // 10},
        "readinessProbe": {**health, "periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 30, "failureThreshold": 5},
        "lifecycle": {"preStop": {"sleep": {"seconds": PROPAGATION_S}}},
    }
    spec = _with_config(pod_spec(workload, main), workload, engine)
    if not mounted:
        spec["volumes"] = [each for each in spec["volumes"] if each["name"] != "artifact"]
    return spec


def _with_config(spec: dict[str, Any], workload: ClusterWorkload, engine: StandaloneServer) -> dict[str, Any]:
    """Add the engine's configuration files, if any, to a pod spec and return the spec."""
    if engine.files:
        spec["volumes"].append({"name": "config", "configMap": {"name": _config_name(workload, engine)}})
        spec["containers"][0]["volumeMounts"].append({"name": "config", "mountPath": CONFIG, "readOnly": True})
    return spec


def _config_maps(workload: ClusterWorkload, engine: StandaloneServer) -> list[dict[str, Any]]:
    if not engine.files:
        return []
    document = cluster_object("v1", "ConfigMap", workload, {})
    document["metadata"]["name"] = _config_name(workload, engine)
    del document["spec"]
    return [document | {"data": dict(engine.files), "immutable": True}]


def _config_name(workload: ClusterWorkload, engine: StandaloneServer) -> str:
    """Return a ConfigMap name with a content digest, so that running pods keep their configuration."""
    digest = hashlib.sha256("\0".join([*engine.files, *engine.files.values()]).encode()).hexdigest()
    return f"{workload.name}-{digest[:8]}"


def _template(workload: ClusterWorkload, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": labels(workload.name)}, "spec": spec}
