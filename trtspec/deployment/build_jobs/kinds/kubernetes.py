# SPDX-License-Identifier: Apache-2.0
"""Kubernetes Jobs (batch/v1): one for each cell, which builds, verifies and pushes its artifact, in this order.

The commands are containers of one pod, so no shell is needed. A disrupted pod does not count as a failure. A failed
verification ends the job, because another attempt has the same result.
"""

from __future__ import annotations

from typing import Any

from trtspec.core.errors import GateNotMet, VerificationFailed
from trtspec.deployment.build_jobs.job import BuildCell, BuildJob, BuildJobKind
from trtspec.deployment.build_jobs.pod import (
    container,
    job_labels,
    job_object,
    pod_spec,
    recipe_config_map,
    resources,
)

PUSH_BYTES = 1 << 30  # memory of a push: at most 64 MiB, and Python
FINAL = (VerificationFailed.exit_code, GateNotMet.exit_code)
FAILURES = [
    {"action": "FailJob", "onExitCodes": {"containerName": "verify", "operator": "In", "values": [*FINAL]}},
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
]


def render(job: BuildJob) -> list[dict[str, Any]]:
    return [*recipe_config_map(job), *(_job(job, index, cell) for index, cell in enumerate(job.cells))]


def _job(job: BuildJob, index: int, cell: BuildCell) -> dict[str, Any]:
    template = {"metadata": {"labels": job_labels(job), "annotations": {"trtspec/recipe": cell.name}}}
    policy = FAILURES if job.settings.verify == "yes" else FAILURES[1:]
    spec = {
        "backoffLimit": job.settings.retries,
        "activeDeadlineSeconds": job.settings.deadline_s,
        "ttlSecondsAfterFinished": job.settings.keep_s,
        "podFailurePolicy": {"rules": policy},
        "template": {**template, "spec": _pod(job, cell)},
    }
    name = f"{job.name}-{index}" if len(job.cells) > 1 else job.name
    return job_object("batch/v1", "Job", job, name, spec=spec)


def _pod(job: BuildJob, cell: BuildCell) -> dict[str, Any]:
    verifies = job.settings.verify == "yes"
    gpus = max(cell.step_gpus, cell.verify_gpus if verifies else 0)
    artifact, needs = f"build/{cell.name}", resources(job, cell.memory_bytes, cell.disk_bytes, gpus)
    first = [container(job, "build", job.build_command(cell.name), needs)]
    if verifies:
        first.append(container(job, "verify", ["trtspec", "verify", artifact, "--undecided=fail"], needs))
    last = container(
        job, "push", ["trtspec", "push", artifact, cell.address], resources(job, PUSH_BYTES, cell.disk_bytes)
    )
    gpu = cell.gpu if gpus else None
    return pod_spec(job, cell.disk_bytes, cell.shm_bytes, gpu, initContainers=first, containers=[last])


KIND = BuildJobKind(render=render)
