# SPDX-License-Identifier: Apache-2.0
"""Settings of the kubernetes target: the volume that contains the artifact, and a workload with its settings."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trtspec.core.errors import DeployError
from trtspec.deployment.containers import LABEL, ContainerWorkload, parse_settings
from trtspec.recipe.schema import IMAGE

OPTIONS = {
    "image": "serving image, NAME@sha256:...",
    "artifact": "location: pvc:CLAIM[/DIR], image:NAME@sha256:... or modelpack:NAME@sha256:...",
    "form": "deployment, kserve or dynamo: how it is run",
    "namespace": "namespace",
    "replicas": "minimum number of servers",
    "max-replicas": "maximum number of servers with autoscaling",
    "node-gpus": "GPUs per machine",
    "prometheus": "address of Prometheus, for KEDA",
    "gateway": "NAMESPACE/NAME of the Gateway for requests",
    "canary-of": "stable deployment whose requests it shares",
    "weight": "percentage of those requests, 0 to 100",
    "dynamo-version": "version of Dynamo in the image",
    "context": "kubectl context (default: the current one)",
}
FORMS = ("deployment", "kserve", "dynamo")
KINDS = ("pvc", "image", "modelpack")
MODELPACK = "model.csi.modelpack.org"  # the driver of modelpack/model-csi-driver


@dataclass(frozen=True)
class ClusterSettings:
    """The target's settings; OPTIONS describes them."""

    image: str = ""
    artifact: str = ""
    form: str = "deployment"
    namespace: str = "default"
    replicas: int = 1
    max_replicas: int = 4
    node_gpus: int = 8
    prometheus: str = "http://prometheus-operated.monitoring.svc:9090"
    gateway: str = "gateway-system/gateway"
    canary_of: str = ""
    weight: int = 5
    dynamo_version: str = "1.6.1"
    context: str = ""

    def check(self) -> None:
        """Raise DeployError for an invalid value."""
        for name, text in (("namespace", self.namespace), ("canary-of", self.canary_of or "a"), *self._gateway_names):
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
    def _gateway_names(self) -> tuple[tuple[str, str], ...]:
        namespace, _, name = self.gateway.partition("/")
        return (("gateway", namespace), ("gateway", name))

    @property
    def volume_reference(self) -> tuple[str, str]:
        """Return the kind of the artifact's volume and its reference."""
        kind, _, what = self.artifact.partition(":")
        return kind, what

    @property
    def subdirectory(self) -> str:
        """Return the artifact's directory in its volume, "" for the root."""
        kind, what = self.volume_reference
        return what.partition("/")[2].strip("/") if kind == "pvc" else ""

    def volume(self) -> dict[str, Any]:
        """Return the volume source of the artifact; raise DeployError for an invalid reference."""
        kind, what = self.volume_reference
        claim = what.partition("/")[0]
        if kind == "pvc" and LABEL.fullmatch(claim) and ".." not in self.subdirectory.split("/"):
            return {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        if kind == "image" and re.fullmatch(IMAGE, what):
            return {"image": {"reference": what, "pullPolicy": "IfNotPresent"}}
        if kind == "modelpack" and re.fullmatch(IMAGE, what):
            return {
                "csi": {"driver": MODELPACK, "readOnly": True, "volumeAttributes": {f"{MODELPACK}/reference": what}}
            }
        hint = f"--target-option artifact=KIND:WHERE: {OPTIONS['artifact'].partition(': ')[2]}"
        raise DeployError(f"option artifact: {self.artifact!r} is not an artifact location", hint=hint)


@dataclass(frozen=True)
class ClusterWorkload(ContainerWorkload):
    """A workload in a cluster, with the target's settings."""

    settings: ClusterSettings

    @property
    def machines(self) -> int:
        """Return the number of machines for the artifact's GPUs; raise DeployError if its engine cannot span them."""
        gpus, per_machine = len(self.gpu_ids), self.settings.node_gpus
        if gpus <= per_machine:
            return 1
        if self.serving.nodes is None:
            backend = self.manifest.backend.name
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
    """Return a workload with the settings among its options; raise DeployError for an unknown or invalid one."""
    settings = parse_settings(ClusterSettings, workload.options.settings)
    return ClusterWorkload(workload.name, workload.manifest, workload.digest, workload.options, settings)
