# SPDX-License-Identifier: Apache-2.0
"""Serving the engine without Triton through operators that start engines: KServe and Dynamo.

Checkpoints and engine arguments are the artifact's, so drafting and verification are unchanged; trtspec's models,
gateway and gates are not available.
kserve/kserve:pkg/apis/serving/v1alpha2@v0.20.0, ai-dynamo/dynamo:deploy/operator/api/v1beta1@006b6e10.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from trtspec.backends.serving import StandaloneServer
from trtspec.core.errors import DeployError
from trtspec.deployment.containers import ARTIFACT, PROPAGATION_S, ContainerWorkload, quantity
from trtspec.deployment.targets.kubernetes.pod import (
    all_labels,
    labels,
    main_container,
    pod_spec,
    scratch,
    scratch_mounts,
)
from trtspec.deployment.targets.kubernetes.settings import ClusterSettings

MODELS = "/mnt/models"  # mount point of KServe's storage initializer
PORT = 8000
URIS = {"pvc": "pvc://", "image": "oci://"}
CONFIG = "/config"


def standalone_engine(workload: ContainerWorkload, repository: Path, artifact: str, form: str) -> StandaloneServer:
    """Return how the engine serves without Triton; raise DeployError if it cannot."""
    if len(workload.gpu_ids) > 0 and (found := workload.serving.alone(repository, artifact)):
        return found
    backend = workload.manifest.backend.name
    message = f"form {form} requires an engine that serves without Triton, which {backend} does not here"
    raise DeployError(message, hint="--target-option form=deployment")


def llm_inference_service(
    workload: ContainerWorkload, repository: Path, settings: ClusterSettings
) -> list[dict[str, Any]]:
    """Return KServe's documents; a canary joins its stable deployment's group with its weight."""
    kind, what = settings.place
    if kind not in URIS:
        raise DeployError(
            f"KServe does not support artifact kind {kind}", hint="--target-option artifact=pvc:... or image:..."
        )
    engine = standalone_engine(workload, repository, MODELS, settings.form)
    group = settings.canary_of or workload.name
    weight = settings.weight if settings.canary_of else 100
    spec = {
        "model": {"uri": f"{URIS[kind]}{what}", "name": workload.manifest.recipe.name},
        "replicas": settings.replicas,
        "labels": all_labels(workload),
        "parallelism": _parallelism(workload),
        "router": {"gateway": {}, "route": {"group": group, "weight": weight}, "scheduler": {}},
        "template": _kserve_pod(workload, engine, settings),
    }
    metadata = _metadata(workload, settings)
    service = {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": metadata,
        "spec": spec,
    }
    return [*_config_maps(workload, engine, settings), service]


def graph_deployment(workload: ContainerWorkload, repository: Path, settings: ClusterSettings) -> list[dict[str, Any]]:
    """Return Dynamo's documents: its frontend, and workers that run the engine."""
    engine = standalone_engine(workload, repository, ARTIFACT, settings.form)
    frontend = main_container(workload, settings, ["python3", "-m", "dynamo.frontend"]) | {
        "name": "main",
        "volumeMounts": scratch_mounts(),
        "resources": {"requests": {"cpu": "2", "memory": "4Gi"}, "limits": {"memory": "4Gi"}},
    }
    spec = pod_spec(workload, settings, frontend) | {"volumes": scratch(workload)}
    spec.pop("affinity", None)
    face = {
        "name": "frontend",
        "type": "frontend",
        "runtimeVersionOverride": settings.dynamo_version,
        "replicas": 1,
        "podTemplate": _template(workload, spec),
    }
    graph = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": _metadata(workload, settings),
        "spec": {"backendFramework": engine.framework, "components": [face, _worker(workload, engine, settings)]},
    }
    return [*_config_maps(workload, engine, settings), graph]


def _worker(workload: ContainerWorkload, engine: StandaloneServer, settings: ClusterSettings) -> dict[str, Any]:
    """Return the workers; the operator mounts /dev/shm itself and cannot derive its version from a digest."""
    name = f"--served-model-name={workload.manifest.recipe.name}"
    command = ["python3", "-m", f"dynamo.{engine.framework}", *engine.arguments, name]
    main = main_container(workload, settings, command) | {"name": "main"}
    spec = _with_config(pod_spec(workload, settings, main), workload, engine)
    for listed in (spec["volumes"], spec["containers"][0]["volumeMounts"]):
        listed[:] = [each for each in listed if each["name"] != "shm"]
    return {
        "name": "worker",
        "type": "worker",
        "runtimeVersionOverride": settings.dynamo_version,
        "replicas": settings.replicas,
        "sharedMemorySize": quantity(workload.shm_bytes),
        "podTemplate": _template(workload, spec),
    }


def _kserve_pod(workload: ContainerWorkload, engine: StandaloneServer, settings: ClusterSettings) -> dict[str, Any]:
    """Return the pod; KServe mounts the model itself."""
    command = [*engine.serve, f"--port={PORT}", f"--served-model-name={workload.manifest.recipe.name}"]
    health = {"httpGet": {"path": "/health", "port": PORT, "scheme": "HTTP"}, "timeoutSeconds": 10}
    main = main_container(workload, settings, command) | {
        "name": "main",
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "volumeMounts": scratch_mounts(),
        "startupProbe": {**health, "periodSeconds": 10, "failureThreshold": workload.startup_s // 10},
        "readinessProbe": {**health, "periodSeconds": 10, "failureThreshold": 3},
        "livenessProbe": {**health, "periodSeconds": 30, "failureThreshold": 5},
        "lifecycle": {"preStop": {"sleep": {"seconds": PROPAGATION_S}}},
    }
    spec = _with_config(pod_spec(workload, settings, main), workload, engine)
    spec["volumes"] = [each for each in spec["volumes"] if each["name"] != "artifact"]
    return spec


def _with_config(spec: dict[str, Any], workload: ContainerWorkload, engine: StandaloneServer) -> dict[str, Any]:
    """Return the pod spec with the engine's configuration mounted."""
    if engine.files:
        spec["volumes"].append({"name": "config", "configMap": {"name": _config_name(workload, engine)}})
        spec["containers"][0]["volumeMounts"].append({"name": "config", "mountPath": CONFIG, "readOnly": True})
    return spec


def _config_maps(
    workload: ContainerWorkload, engine: StandaloneServer, settings: ClusterSettings
) -> list[dict[str, Any]]:
    if not engine.files:
        return []
    metadata = _metadata(workload, settings) | {"name": _config_name(workload, engine)}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(engine.files), "immutable": True}
    ]


def _config_name(workload: ContainerWorkload, engine: StandaloneServer) -> str:
    """Return a name with a content digest, so that running pods keep their configuration."""
    digest = hashlib.sha256("\0".join([*engine.files, *engine.files.values()]).encode()).hexdigest()
    return f"{workload.name}-{digest[:8]}"


def _parallelism(workload: ContainerWorkload) -> dict[str, int]:
    parallel = workload.manifest.recipe.target.parallel
    return {"tensor": parallel.tensor, "pipeline": parallel.pipeline}


def _template(workload: ContainerWorkload, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": labels(workload.name)}, "spec": spec}


def _metadata(workload: ContainerWorkload, settings: ClusterSettings) -> dict[str, Any]:
    return {"name": workload.name, "namespace": settings.namespace, "labels": all_labels(workload)}
