# SPDX-License-Identifier: Apache-2.0
"""Requirements of a container that serves an artifact, derived from the manifest; common to all container targets.

A container runs `trtspec deploy` in the foreground, which stages the models, starts the server, evaluates the gates and
supervises the server, as on this machine. It runs as an unprivileged user, writes only to /state, /tmp and /dev/shm and
does not need a network. The token of the control APIs is created in the container and never leaves it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trtspec.backends.base import find_backend
from trtspec.backends.serving import ServingHooks
from trtspec.core.errors import DeployError
from trtspec.core.version import __version__
from trtspec.deployment.options import DEFAULT_PORTS
from trtspec.recipe.schema import IMAGE
from trtspec.store.artifact_paths import CHECKPOINTS, ENGINES
from trtspec.store.manifest import Manifest

ARTIFACT, STATE, TMP, SHM = "/artifact", "/state", "/tmp", "/dev/shm"
USER = 1000  # triton-server in Triton's images
PORTS = DEFAULT_PORTS  # each is an option of `trtspec deploy`
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "HOME": TMP,
    "PYTHONDONTWRITEBYTECODE": "1",
    "TRTSPEC_CACHE": f"{STATE}/cache",
    "TRTSPEC_STATE": STATE,
    "USER": "trtspec",  # torch looks the user up, who is not in /etc/passwd
}
PROBE_S, ALIVE_S = 10, 60  # time limits for a text: readiness, liveness
PROPAGATION_S = 15  # until proxies stop sending requests to a terminating server
CLEANUP_S = 30
MAX_DRAIN_S = 600
MAX_GRACE_S = PROPAGATION_S + MAX_DRAIN_S + CLEANUP_S
STATE_BYTES = 4 << 30
HOST_BYTES, GPU_HOST_BYTES = 4 << 30, 8 << 30  # processes without weights: Python, torch, and CUDA with a GPU
READ_BYTES_S = 200 << 20  # of a slow disk
MIN_TOKENS_PER_S = 20  # slowest assumed stream, about reading speed
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
MAX_LABEL_CHARS = 50  # of 63; names of components append a suffix


@dataclass(frozen=True)
class ContainerWorkload:
    """An artifact to serve in containers, described by its manifest; `name` is a DNS label.

    `skip_gates` are gates that the server skips; `drain` overrides `drain_s`. `digest` is the SHA-256 of the manifest,
    which the container checks. `trusted_report` is the SHA-256 of the report in the artifact that settles the gates
    there.
    """

    name: str
    manifest: Manifest
    skip_gates: tuple[str, ...] = ()
    drain: int | None = None
    digest: str = ""
    trusted_report: str = ""

    @cached_property
    def serving(self) -> ServingHooks:
        """Return the serving hooks of the artifact's backend."""
        return find_backend(self.manifest.backend.name).serving()

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        """Return the visible GPUs: all up to the highest in the recipe's placement; empty on a CPU.

        A container numbers its GPUs from 0, and the artifact's models refer to GPUs by number.
        """
        recipe = self.manifest.recipe
        if recipe.engine.device == "cpu" or find_backend(self.manifest.backend.name).in_process:
            return ()
        return tuple(range(max(*recipe.serving.placement.target, *recipe.serving.placement.draft, 0) + 1))

    @property
    def weight_bytes(self) -> int:
        """Return the size of the checkpoints and engines, which are read at startup."""
        roots = (f"{CHECKPOINTS}/", f"{ENGINES}/")
        return sum(record.size for record in self.manifest.files if record.path.startswith(roots))

    @property
    def shm_bytes(self) -> int:
        """Return the shared memory for tensors of Triton's Python models and NCCL's buffers between GPUs."""
        return (2 + max(len(self.gpu_ids) - 1, 0)) << 30

    @property
    def memory_bytes(self) -> int:
        """Return the host memory per machine: 1.25 times the plan on a CPU, else room to load the weights."""
        if self.gpu_ids:
            return _in_gib(GPU_HOST_BYTES + self.shm_bytes + self.weight_bytes)
        planned = sum(device.total_bytes for device in self.manifest.memory)
        return _in_gib(HOST_BYTES + self.shm_bytes + (planned * 5 // 4 or 8 * self.weight_bytes))

    @property
    def cpus(self) -> int:
        """Return the number of requested CPUs."""
        return 4 + 2 * len(self.gpu_ids)

    @property
    def startup_s(self) -> int:
        """Return the time limit of loading in seconds."""
        return 300 + 60 * (self.weight_bytes // READ_BYTES_S // 60)

    @property
    def drain_s(self) -> int:
        """Return the seconds in which open streams may finish on shutdown (the longest stream); at most 600."""
        longest_s = max(60, self.manifest.recipe.engine.max_seq_len // MIN_TOKENS_PER_S)
        return min(MAX_DRAIN_S, self.drain or longest_s)

    @property
    def grace_s(self) -> int:
        """Return the seconds between the request to stop and SIGKILL."""
        return PROPAGATION_S + self.drain_s + CLEANUP_S

    @property
    def command(self) -> list[str]:
        """Return the argv of the container."""
        ports = [f"--{name}-port={port}" for name, port in PORTS.items()]
        skipped = [f"--skip-gate={gate}" for gate in self.skip_gates]
        place = [
            f"--name={self.name}",
            "--host=0.0.0.0",
            *ports,
            f"--timeout={self.startup_s}",
            f"--drain={self.drain_s}",
        ]
        digests = {"manifest": self.digest, "trust-report": self.trusted_report}
        bound = [f"--{option}=sha256:{digest}" for option, digest in digests.items() if digest]
        return ["trtspec", "deploy", ARTIFACT, *place, *skipped, *bound]

    def probe(self, within_s: int) -> list[str]:
        """Return the argv of the probe that requests a text and exits with 1 if none arrives in time."""
        return ["python3", "-m", "trtspec.deployment.health.request", self.name, f"--within={within_s}"]


def make_workload(
    manifest: Manifest,
    name: str | None = None,
    skip_gates: tuple[str, ...] = (),
    drain: int | None = None,
    digest: str = "",
    trusted_report: str = "",
) -> ContainerWorkload:
    """Return the workload of an artifact; the name defaults to the recipe's."""
    return ContainerWorkload(
        dns_label(name or manifest.recipe.name), manifest, skip_gates, drain, digest, trusted_report
    )


def dns_label(name: str) -> str:
    """Return a name as a DNS label; a changed name gets a digest suffix."""
    if LABEL.fullmatch(name) and len(name) <= MAX_LABEL_CHARS:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[: MAX_LABEL_CHARS - 9].strip("-")
    return f"{plain}-{digest}" if plain else f"trtspec-{digest}"


def check_image(image: str, workload: ContainerWorkload) -> str:
    """Return an image reference with a digest; raise DeployError, with instructions, for any other."""
    if re.fullmatch(IMAGE, image):
        return image
    bases = workload.serving.images(workload.manifest.recipe.engine.version)
    made = f" from {bases[0]}" if bases else ""
    hint = (
        f"--image NAME@sha256:...; --render DIR without --image writes a Dockerfile: build it{made}, push it, "
        "and `docker buildx imagetools inspect` prints the digest"
    )
    raise DeployError(f"{image!r} is not an image with a digest" if image else "no image given", hint=hint)


def dockerfile(workload: ContainerWorkload) -> str:
    """Return the Dockerfile of the serving image: a tritonserver base image, by digest, plus trtspec."""
    serving, version = workload.serving, workload.manifest.recipe.engine.version
    bases = serving.images(version) or ("nvcr.io/nvidia/tritonserver:<release>-py3",)
    extra = f"[{serving.extra}]" if serving.extra else ""
    wheel = f"trtspec-{__version__}-py3-none-any.whl"
    packages = " ".join(f"'{each}'" for each in (f"/tmp/{wheel}{extra}", *serving.requirements(version)))
    held = "\n".join(f"#   {base}" for base in bases)
    return f"""\
# (rendered by trtspec) Serving image: Triton with the engine, plus trtspec.
# BASE must have a digest because tags can move. Images with this engine, by tag:
{held}
# `docker buildx imagetools inspect TAG` prints a tag's digest. Build the wheel into this directory first:
#   python3 -m pip wheel --no-deps --wheel-dir . PATH-TO-A-CLONE-OF-TRTSPEC
#   docker build --build-arg BASE=NAME@sha256:... --tag REGISTRY/NAME . && docker push REGISTRY/NAME
ARG BASE
FROM ${{BASE}}
COPY {wheel} /tmp/
RUN python3 -m pip install --no-cache-dir --break-system-packages {packages} && rm /tmp/{wheel}
USER {USER}:{USER}
ENTRYPOINT []
"""


def quantity(number: int) -> str:
    """Return bytes in Kubernetes notation, e.g. 24Gi."""
    return f"{-(-number // (1 << 30))}Gi"


def environment() -> list[dict[str, Any]]:
    """Return the environment in Kubernetes notation."""
    return [{"name": name, "value": value} for name, value in sorted(ENVIRONMENT.items())]


def _in_gib(number: int) -> int:
    return -(-number // (1 << 30)) << 30
