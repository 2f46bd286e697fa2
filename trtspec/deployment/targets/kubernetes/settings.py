# SPDX-License-Identifier: Apache-2.0
"""Settings of the Kubernetes target, and a container workload with them."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from ipaddress import ip_network
from typing import Any

from trtspec.core.errors import DeployError
from trtspec.core.image_references import IMAGE_BY_DIGEST
from trtspec.deployment.containers import LABEL, ContainerWorkload, check_label, parse_settings, quantity, setting

FORMS = ("deployment", "kserve", "dynamo")
MODELPACK = "model.csi.modelpack.org"  # the driver of modelpack/model-csi-driver
WHERE = "pvc:CLAIM[/DIR], or oci, image or modelpack with :HOST/NAME@sha256:..."
PULL_BYTES = 1 << 30  # additional disk space for a pull
FETCH_BYTES_S = 50 << 20  # throughput of a slow network
REGISTRY_KINDS = ("oci", "image", "modelpack")  # an init container that pulls, an image volume, the CSI driver


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class ClusterSettings:
    """Settings of the Kubernetes target; their names are the keys of `--target-option`."""

    image: str = setting("", "serving image, NAME@sha256:...")
    artifact: str = setting("", f"location: {WHERE} (default for oci://...: oci)")
    pull_secret: str = setting("", "Secret of the type kubernetes.io/dockerconfigjson with the registry's credentials")
    pull_image: str = setting("", "image with trtspec for the init container (default: the serving image)")
    registry_cidr: str = setting("", "addresses of the registry, for the network policy (default: any)")
    form: str = setting("deployment", "deployment, kserve or dynamo: how it is run")
    namespace: str = setting("default", "namespace")
    replicas: int = setting(1, "minimum number of servers")
    max_replicas: int = setting(4, "maximum number of servers with autoscaling")
    node_gpus: int = setting(8, "GPUs per machine")
    prometheus: str = setting("http://prometheus-operated.monitoring.svc:9090", "address of Prometheus, for KEDA")
    gateway: str = setting("gateway-system/gateway", "NAMESPACE/NAME of the Gateway for requests")
    canary_of: str = setting("", "stable deployment whose requests it shares")
    weight: int = setting(5, "percentage of those requests, 0 to 100")
    dynamo_version: str = setting("1.6.1", "version of Dynamo in the image")
    context: str = setting("", "kubectl context (default: the current one)")

    def check(self) -> None:
        """Raise DeployError for an invalid value."""
        namespace, _, gateway = self.gateway.partition("/")
        names = [("namespace", self.namespace), ("canary-of", self.canary_of or "a")]
        names.append(("pull-secret", self.pull_secret or "a"))
        for name, text in (*names, ("gateway", namespace), ("gateway", gateway)):
            check_label(name, text)
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
        if self.registry_cidr and not _is_network(self.registry_cidr):
            raise DeployError(f"option registry-cidr: {self.registry_cidr!r} is not a network", hint="as 10.0.0.0/8")
        if self.pull_image and not re.fullmatch(IMAGE_BY_DIGEST, self.pull_image):
            raise DeployError(f"option pull-image: {self.pull_image!r} is not an image with a digest")
        if self.form != "deployment" and self.pulls and not self.pull_image:
            message = (
                f"form {self.form} requires an image with trtspec that pulls the artifact; the engine's image lacks it"
            )
            hint = "--target-option pull-image=NAME@sha256:..., or artifact=image or artifact=modelpack"
            raise DeployError(message, hint=hint)
        self.volume()

    def from_registry(self, reference: str) -> ClusterSettings:
        """Return the settings for an artifact at HOST/NAME@sha256:..., unless the artifact option names another one."""
        kind = self.artifact or REGISTRY_KINDS[0]
        return replace(self, artifact=f"{kind}:{reference}") if kind in REGISTRY_KINDS else self

    @property
    def volume_reference(self) -> tuple[str, str]:
        """Return the kind of the artifact's volume (pvc or one of REGISTRY_KINDS) and its reference."""
        kind, _, what = self.artifact.partition(":")
        return kind, what

    @property
    def subdirectory(self) -> str:
        """Return the artifact's directory in its volume; "" for the root."""
        kind, what = self.volume_reference
        return what.partition("/")[2].strip("/") if kind == "pvc" else ""

    @property
    def pulls(self) -> bool:
        """Return whether an init container pulls the artifact."""
        return self.volume_reference[0] == "oci"

    def volume(self, nbytes: int = 0) -> dict[str, Any]:
        """Return the Kubernetes volume source of the artifact of `nbytes` bytes.

        Raises DeployError for an invalid reference.
        """
        kind, what = self.volume_reference
        claim = what.partition("/")[0]
        if kind == "pvc" and LABEL.fullmatch(claim) and ".." not in self.subdirectory.split("/"):
            return {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        if kind == "image" and re.fullmatch(IMAGE_BY_DIGEST, what):
            return {"image": {"reference": what, "pullPolicy": "IfNotPresent"}}
        if self.pulls and re.fullmatch(IMAGE_BY_DIGEST, what):
            return {"emptyDir": {"sizeLimit": quantity(nbytes + PULL_BYTES)}}
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
    def pulled_bytes(self) -> int:
        """Return the bytes of ephemeral storage for the artifact if an init container pulls it, else 0."""
        return self.total_bytes + PULL_BYTES if self.settings.pulls else 0

    @property
    def fetch_s(self) -> int:
        """Return the seconds in which a slow network fetches the artifact from a registry; 0 from a claim."""
        return self.total_bytes // FETCH_BYTES_S if self.settings.volume_reference[0] in REGISTRY_KINDS else 0

    @property
    def annotations(self) -> dict[str, str]:
        """Return annotations with the artifact's place in a registry, and the tag that it had when rendered."""
        source = self.options.source
        found = {"trtspec/artifact": source.address, "trtspec/tag": source.tag} if source else {}
        return {name: value for name, value in found.items() if value}

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
    if workload.options.source:
        settings = settings.from_registry(workload.options.source.reference)
    shared = {each.name: getattr(workload, each.name) for each in fields(ContainerWorkload)}
    return ClusterWorkload(**shared, settings=settings)
