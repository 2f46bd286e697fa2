# SPDX-License-Identifier: Apache-2.0
"""A RayJob of KubeRay (ray.io/v1): a cluster with a group of workers for each kind of node that the cells need.

The job's command runs on the head. It builds all cells on the cluster and pushes the artifacts. Workers hand over the
results of steps through the team store. The groups' labels are Ray node labels, by which the build places its steps.
Sources: ray-project/kuberay:ray-operator/apis/ray/v1/rayjob_types.go@v1.7.0 and raycluster_types.go@v1.7.0.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any

from trtspec.core.errors import DeployError
from trtspec.deployment.build_jobs.job import BuildCell, BuildJob, BuildJobKind
from trtspec.deployment.build_jobs.pod import (
    WORK,
    container,
    job_labels,
    job_object,
    pod_spec,
    recipe_config_map,
    resources,
)

HEAD_BYTES = 8 << 30  # memory of Ray's head and of the command
ON_THE_CLUSTER = '"--on=ray:$RAY_ADDRESS" --wait-for-nodes=30m'  # Ray sets the variable for a job's command
CLUSTER_KEEP_S = 60  # time to read the logs of a finished cluster
OBJECT_STORE = {"object-store-memory": str(256 << 20)}  # results are handed over through the team store
OPERATOR = {"app.kubernetes.io/name": "kuberay-operator"}  # labels of the pods of its Helm chart
PORTS = (("gcs-server", 6379), ("dashboard", 8265), ("client", 10001))


def render(job: BuildJob) -> list[dict[str, Any]]:
    """Return the documents; raises DeployError without a team store."""
    if not job.settings.remote:
        hint = "--option remote=oci://HOST/NAME or s3://BUCKET/PREFIX"
        raise DeployError("kind ray requires a team store, through which its workers hand over results", hint=hint)
    disk = sum(cell.disk_bytes for cell in job.cells)
    head = container(job, "ray-head", (), resources(job, HEAD_BYTES, disk))
    head["ports"] = [{"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS]
    cluster = {
        "headGroupSpec": {
            "rayStartParams": {**OBJECT_STORE, "num-cpus": "0"},  # steps run on workers
            "template": _template(job, pod_spec(job, disk, containers=[head])),
        },
        "workerGroupSpecs": [_group(job, index, cells) for index, cells in enumerate(_groups(job.cells))],
    }
    spec = {
        "entrypoint": entrypoint(job),
        "submissionMode": "HTTPMode",  # the operator submits; a submitter pod would need more permissions
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": CLUSTER_KEEP_S,
        "activeDeadlineSeconds": job.settings.deadline_s,
        "backoffLimit": job.settings.retries,
        "rayClusterSpec": cluster,
    }
    return [*recipe_config_map(job), _network_policy(job), job_object("ray.io/v1", "RayJob", job, job.name, spec=spec)]


def entrypoint(job: BuildJob) -> str:
    """Return the shell command that Ray runs on the head: build all cells, then push each artifact."""
    build = shlex.join(job.build_command(*(cell.name for cell in job.cells)))
    pushes = [shlex.join(["trtspec", "push", f"build/{cell.name}", cell.address]) for cell in job.cells]
    return " && ".join([f"cd {WORK}", f"{build} {ON_THE_CLUSTER}", *pushes])


def _groups(cells: Sequence[BuildCell]) -> list[list[BuildCell]]:
    """Return the cells by what their nodes need; cells without a GPU have their own group only if no cell needs one."""
    found: dict[Any, list[BuildCell]] = {}
    for cell in cells:
        found.setdefault((tuple(sorted(cell.labels.items())), cell.step_gpus), []).append(cell)
    return [group for (_, gpus), group in found.items() if gpus] or list(found.values())


def _group(job: BuildJob, index: int, cells: Sequence[BuildCell]) -> dict[str, Any]:
    first, replicas = cells[0], min(len(cells), job.settings.workers)
    gpu = first.gpu if first.step_gpus else None
    disk = sum(cell.disk_bytes for cell in cells)
    needs = resources(job, max(cell.memory_bytes for cell in cells), disk, first.step_gpus)
    worker = container(job, "ray-worker", (), needs)
    return {
        "groupName": f"{gpu.name if gpu else 'cpu'}-{index}",
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        **({"labels": dict(first.labels)} if first.labels else {}),
        "rayStartParams": OBJECT_STORE,
        "template": _template(job, pod_spec(job, disk, first.shm_bytes, gpu, containers=[worker])),
    }


def _template(job: BuildJob, spec: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"labels": job_labels(job)}, "spec": spec}


def _network_policy(job: BuildJob) -> dict[str, Any]:
    """Return the NetworkPolicy: only the job's pods and the operator may connect: Ray runs any client's code."""
    clients = [
        {"podSelector": {"matchLabels": job_labels(job)}},
        {"namespaceSelector": {}, "podSelector": {"matchLabels": OPERATOR}},
    ]
    spec = {
        "podSelector": {"matchLabels": job_labels(job)},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": clients}],
    }
    return job_object("networking.k8s.io/v1", "NetworkPolicy", job, job.name, spec=spec)


KIND = BuildJobKind(render=render)
