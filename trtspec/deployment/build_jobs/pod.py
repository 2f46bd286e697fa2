# SPDX-License-Identifier: Apache-2.0
"""Parts of the pods of build jobs: containers, volumes, resources and placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.core.gpus import Gpu
from trtspec.deployment.build_jobs.job import FILES, RECIPE_FILE, RECIPES, SCRATCH_BYTES, BuildJob
from trtspec.deployment.containers import SHM, TMP, quantity
from trtspec.deployment.pods import (
    CONTAINER_SECURITY,
    GPU,
    POD_SECURITY,
    capability_expressions,
    environment_list,
    memory_expressions,
    node_affinity,
    registry_credentials,
)

WORK = "/work"
ENVIRONMENT = {
    "HF_HUB_CACHE": f"{WORK}/hub",
    "HOME": TMP,
    "PYTHONDONTWRITEBYTECODE": "1",
    "TRTSPEC_CACHE": f"{WORK}/cache",
    "TRTSPEC_STATE": f"{TMP}/state",
    "USER": "trtspec",  # torch looks up the user, which is not in /etc/passwd
}
MIN_SHM_BYTES = 1 << 30
CPUS, GPU_CPUS = 4, 4  # of a pod, and in addition for each GPU


def job_labels(job: BuildJob) -> dict[str, str]:
    return {"app.kubernetes.io/name": job.name, "app.kubernetes.io/managed-by": "trtspec"}


def job_object(version: str, kind: str, job: BuildJob, name: str, **body: Any) -> dict[str, Any]:
    """Return an object in the job's namespace, with its labels."""
    metadata = {"name": name, "namespace": job.settings.namespace, "labels": job_labels(job)}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}


def recipe_config_map(job: BuildJob) -> list[dict[str, Any]]:
    """Return the ConfigMap with the recipe, if the recipe does not come from a claim."""
    if not job.recipe_text:
        return []
    return [job_object("v1", "ConfigMap", job, job.name, data={RECIPE_FILE: job.recipe_text}, immutable=True)]


def container(job: BuildJob, name: str, command: Sequence[str], resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container that runs a command in /work, with the recipe, the credentials and the team store."""
    credentials = registry_credentials(job.settings.pull_secret)
    remote = {"TRTSPEC_REMOTE": job.settings.remote} if job.settings.remote else {}
    found: dict[str, Any] = {
        "name": name,
        "image": job.image,
        "imagePullPolicy": "IfNotPresent",
        "workingDir": WORK,
        "env": environment_list({**ENVIRONMENT, **credentials.environment, **remote}),
        "resources": dict(resources),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            *({"name": name, "mountPath": path} for name, path in (("work", WORK), ("tmp", TMP), ("shm", SHM))),
            _recipe_mount(job),
            *credentials.mounts,
        ],
    }
    if command:
        found["command"] = list(command)
    if job.settings.env_secret:
        found["envFrom"] = [{"secretRef": {"name": job.settings.env_secret}}]
    return found


def pod_spec(
    job: BuildJob, disk_bytes: int, shm_bytes: int = MIN_SHM_BYTES, gpu: Gpu | None = None, **containers: Any
) -> dict[str, Any]:
    """Return the spec of a pod with `disk_bytes` for its work, on a node with a GPU of a model if it is not None."""
    settings = job.settings
    work = {"emptyDir": {"sizeLimit": quantity(disk_bytes)}}
    if settings.cache:
        work = {"persistentVolumeClaim": {"claimName": settings.cache}}
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "securityContext": POD_SECURITY,
        **containers,
        "volumes": [
            {"name": "work", **work},
            {"name": "tmp", "emptyDir": {"sizeLimit": quantity(SCRATCH_BYTES)}},
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": quantity(shm_bytes)}},
            _recipe_volume(job),
            *registry_credentials(settings.pull_secret).volumes,
        ],
    }
    if settings.pull_secret:
        spec["imagePullSecrets"] = [{"name": settings.pull_secret}]
    if gpu:
        product = [{"key": f"{GPU}.product", "operator": "In", "values": [settings.gpu_product]}]
        by_model = [*capability_expressions(gpu), *memory_expressions(gpu)]
        spec["affinity"] = node_affinity(product if settings.gpu_product else by_model)
    return spec


def resources(job: BuildJob, memory_bytes: int, disk_bytes: int, gpus: int = 0) -> dict[str, Any]:
    """Return the resources of a container, whose memory includes shared memory, and the disk /work unless a claim."""
    memory = quantity(memory_bytes)
    disk = quantity(SCRATCH_BYTES if job.settings.cache else disk_bytes + SCRATCH_BYTES)
    limits = {"memory": memory, "ephemeral-storage": disk, **({GPU: str(gpus)} if gpus else {})}
    return {"requests": {"cpu": str(CPUS + GPU_CPUS * gpus), **limits}, "limits": limits}


def _recipe_mount(job: BuildJob) -> dict[str, Any]:
    directory = job.settings.files.partition("/")[2].strip("/")
    path = RECIPES if job.recipe_text else FILES
    return {"name": "recipe", "mountPath": path, "readOnly": True, **({"subPath": directory} if directory else {})}


def _recipe_volume(job: BuildJob) -> dict[str, Any]:
    if job.recipe_text:
        return {"name": "recipe", "configMap": {"name": job.name}}
    claim = job.settings.files.partition("/")[0]
    return {"name": "recipe", "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
