# SPDX-License-Identifier: Apache-2.0
"""Detection of the engine builder: trtllm-build on PATH or in a container image, its versions, and the GPUs.

Without a builder, the toolchain has the recipe's expected versions, so that a plan can still be shown.

The digest of a container image comes from the container runtime and, for a build, from the registry. An image on this
machine has precedence over the registry's, as for `docker run`. The digest is that of the index if the image is for
several platforms, both in `RepoDigests` of an image that was pulled and in the registry.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trtspec.backends.common.build_tools import installed_versions
from trtspec.backends.common.trtllm_versions import find_version_spec, is_release
from trtspec.core.container_tools import DOCKER_CAUSES, FailureCause, ToolFailed, run_tool
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import Gpu, detect_gpus, find_gpu
from trtspec.core.image_references import DIGEST, parse_image
from trtspec.core.installation import DoctorCheck, installed_version
from trtspec.store.digest import key_fields

BUILDER, PACKAGE = "trtllm-build", "tensorrt_llm"
DOCKER, DOCKER_HUB = "docker", "docker.io/"
RUNTIMES = (DOCKER, "podman")
WORKDIR = "/build"  # working directory in a container
PASSED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # variables passed into a container
INSPECT_S, REGISTRY_S, PULL_S = 20.0, 60.0, 7200.0  # an image of TensorRT-LLM has tens of GB
ABSENT = FailureCause(r"(?i)no such (?:image|object)|image not known", "the image is not on this machine", "pull it")

NO_KEY = {"key": False}


@dataclass(frozen=True)
class EngineToolchain:
    """The toolchain that builds an engine; `image` is the container image, "" for trtllm-build on PATH.

    `reference` is the recipe's name of the image. `image` is NAME@sha256:..., or the image's id (sha256:...) if it has
    no registry digest, or the recipe's tag while the digest is unknown; then `is_final` is False.

    The versions, the GPU, its compute capability times ten (`sm`) and the driver decide whether an engine can be
    loaded, so they are part of its key. For the kind "absent" they are the recipe's expected values, and `missing` is
    the reason why engines cannot be built. `devices` are the ids of suitable GPUs, as in CUDA_VISIBLE_DEVICES.
    `runtime` is the container runtime.
    """

    kind: Literal["local", "image", "absent"]
    image: str
    tensorrt_llm: str
    tensorrt: str
    gpu: str
    sm: int
    driver: str
    runtime: str = field(default=RUNTIMES[0], metadata=NO_KEY)
    devices: tuple[str, ...] = field(default=(), metadata=NO_KEY)
    reference: str = field(default="", metadata=NO_KEY)
    missing: str = field(default="", metadata=NO_KEY)
    hint: str = field(default="", metadata=NO_KEY)

    @property
    def is_final(self) -> bool:
        """Return whether an image is identified by its content, so that keys with this toolchain are final."""
        return not self.image or "sha256:" in self.image

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """Return the names and values of the fields that decide whether an engine can be loaded."""
        return tuple((name, str(value)) for name, value in key_fields(self).items())

    @property
    def image_record(self) -> str:
        """Return the image for the manifest: its name in the recipe and, for a tag, what the tag was."""
        return self.reference if "@" in self.reference or not self.image else f"{self.reference} ({self.image})"

    def image_note(self) -> str:
        """Return a remark for users about an image without a digest, or ""."""
        if not self.is_final:
            finds = f"a build finds it; so does {self.runtime} pull {self.reference}"
            return f"the digest of {self.reference} is not known here, so the engines' keys are not final: {finds}"
        if is_image_id(self.image):
            local = f"no registry has assigned a digest, so only the {self.runtime} of this machine has it"
            return f"{self.reference} is identified by its image id {self.image}: {local}"
        return ""

    def lack(self) -> Diagnostic | None:
        """Return a diagnostic if engines cannot be built on this machine, otherwise None."""
        if self.kind != "absent":
            return None
        return Diagnostic("engine", "no-toolchain", f"cannot build engines: {self.missing}", self.hint)

    def command(
        self, arguments: Sequence[str], *, reads: Sequence[str], writes: str, cid_file: str, user: str = ""
    ) -> tuple[str, ...]:
        """Return the command line of a build in the current directory.

        A container can access only the paths in `reads` and `writes`. Its id is written to `cid_file`, and its files
        belong to `user`, by default the current user.
        """
        if not self.image:
            return (BUILDER, *arguments)
        volumes = [f"--volume=./{path}:{WORKDIR}/{path}:ro" for path in reads]
        volumes.append(f"--volume=./{writes}:{WORKDIR}/{writes}")
        return (*self._container(cid_file, user), *volumes, self.image, BUILDER, *arguments)

    def cleanup(self, cid_file: str) -> tuple[str, ...]:
        """Return the command that removes a build's container; empty without a container."""
        return ("xargs", f"--arg-file={cid_file}", self.runtime, "rm", "--force") if self.image else ()

    def _container(self, cid_file: str, user: str) -> tuple[str, ...]:
        """Return the start of a container's command line, with all GPUs and without network access."""
        gpus, owner = "--gpus=all", f"--user={user or f'{os.getuid()}:{os.getgid()}'}"
        if self.runtime == "podman":  # podman's root is the current user
            gpus, owner = "--device=nvidia.com/gpu=all", "--userns=keep-id"
        where = (f"--tmpfs={WORKDIR}:mode=1777", f"--workdir={WORKDIR}", "--env=HOME=/tmp")
        passed = [f"--env={variable}" for variable in PASSED]
        return (self.runtime, "run", "--rm", "--init", "--network=none", f"--cidfile={cid_file}", gpus, owner, *passed,
                *where)  # fmt: skip


def probe_toolchain(image: str, version: str, gpu_name: str, *, online: bool = False) -> EngineToolchain:
    """Return the toolchain for a TensorRT-LLM version and a GPU; `image` is "" for trtllm-build on PATH.

    The digest of a tag comes from the container runtime and, if `online`, from the registry. Starts a process only if
    there is a builder. Raise TrtspecError if another version is installed.
    """
    gpu, release = find_gpu(gpu_name), find_version_spec(version).release(version)
    pinned = (parse_image(image).pinned or image) if image else ""
    expected = EngineToolchain(
        "absent", pinned, version, release.tensorrt, gpu.name, gpu.sm, release.driver, reference=image
    )
    return _in_image(expected, gpu, online=online) if image else _on_path(expected, gpu)


def _in_image(expected: EngineToolchain, gpu: Gpu, *, online: bool) -> EngineToolchain:
    """Return the toolchain in a container image; its TensorRT-LLM version is checked when the build starts."""
    runtime = next((name for name in RUNTIMES if shutil.which(name)), None)
    if runtime is None:
        hint = "install one of them, or remove engine.build.image to use trtllm-build on PATH"
        return replace(expected, missing=f"{' and '.join(RUNTIMES)} are not on PATH, to run the image", hint=hint)
    toolchain = _on_gpus(replace(expected, kind="image", runtime=runtime), gpu)
    if toolchain.kind == "absent" or toolchain.is_final:
        return toolchain
    try:
        return replace(toolchain, image=find_image(runtime, expected.reference, online=online) or expected.image)
    except TrtspecError as error:
        return replace(toolchain, kind="absent", missing=error.message, hint=error.hint or "")


def _on_path(expected: EngineToolchain, gpu: Gpu) -> EngineToolchain:
    builder, wanted = shutil.which(BUILDER), f"tensorrt-llm=={expected.tensorrt_llm}"
    if builder is None:
        hint = f"pip install {wanted} on a machine with the GPU, or set engine.build.image to a container image"
        return replace(expected, missing=f"{BUILDER} is not on PATH", hint=hint)
    found, tensorrt = installed_versions(Path(builder), PACKAGE)
    if not is_release(found, expected.tensorrt_llm) or tensorrt is None:
        here = f"TensorRT-LLM {found or '(none)'} with TensorRT {tensorrt or '(none)'} is installed"
        hint = f"pip install {wanted}, or set engine.version: an engine requires the version that built it"
        raise TrtspecError(f"{here}, but the recipe requires {expected.tensorrt_llm}", where=builder, hint=hint)
    return _on_gpus(replace(expected, kind="local", tensorrt_llm=str(found), tensorrt=tensorrt), gpu)


def _on_gpus(toolchain: EngineToolchain, gpu: Gpu) -> EngineToolchain:
    """Return the toolchain with this machine's driver and the ids of the visible GPUs of the recipe's kind."""
    seen = detect_gpus()
    devices = [str(number) for number, each in enumerate(seen) if each.is_a(gpu)]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        devices = [device for device in devices if device in visible.split(",")]
    if not devices:
        here = ", ".join(sorted({each.name for each in seen})) or "none"
        missing = f"the recipe requires the GPU {gpu.name}, but the visible GPUs are: {here}"
        return replace(toolchain, kind="absent", missing=missing, hint="build on the target machine, or set engine.gpu")
    return replace(toolchain, driver=seen[0].driver, devices=tuple(devices))


def probes() -> list[DoctorCheck]:
    installed = installed_version("tensorrt-llm")
    absent = "not installed; the torch engine runs the converted checkpoint"
    builder = shutil.which(BUILDER) or "not on PATH; build engines on a machine that has it, or with engine.build.image"
    return [DoctorCheck("tensorrt-llm", True, installed or absent), DoctorCheck(BUILDER, True, builder)]


def find_image(runtime: str, reference: str, *, online: bool) -> str:
    """Return what a runtime runs exactly the image of a tag by: NAME@sha256:..., or its id, sha256:..., without one.

    Returns "" if the image is not on this machine, unless `online`: then docker looks up the tag in the registry, and
    podman, which has no command for that, pulls the image. Raise DeployError or StepTimeout if the runtime fails.
    """
    found = _on_this_machine(runtime, reference)
    if found or not online:
        return found
    if runtime == DOCKER:
        name = parse_image(reference).name
        return f"{name}@{_in_registry(reference)}"
    run_tool([runtime, "pull", "--quiet", reference], f"{runtime} pull", DOCKER_CAUSES, PULL_S)
    return _on_this_machine(runtime, reference)


def is_image_id(image: str) -> bool:
    """Return whether an image is named by its id, since no registry has assigned a digest."""
    return image.startswith("sha256:")


def _on_this_machine(runtime: str, reference: str) -> str:
    """Return the digest reference or the id of the image that the runtime has for a tag, "" if it has none."""
    command = [runtime, "image", "inspect", "--format", "{{json .}}", reference]
    try:
        output = run_tool(command, f"{runtime} image inspect", (ABSENT, *DOCKER_CAUSES), INSPECT_S)
    except ToolFailed as error:
        if error.cause is ABSENT:
            return ""
        raise
    image = _parsed(output, command)
    digests, name = image.get("RepoDigests") or [], _familiar(parse_image(reference).name)
    digests = sorted(digests, key=lambda each: (_familiar(each.partition("@")[0]) != name, each))
    return str(digests[0]) if digests else f"sha256:{image['Id'].removeprefix('sha256:')}"  # podman omits sha256:


def _in_registry(reference: str) -> str:
    """Return the digest of a tag in its registry, without pulling the image."""
    command = [DOCKER, "buildx", "imagetools", "inspect", "--format", "{{json .Manifest.Digest}}", reference]
    digest = _parsed(run_tool(command, "docker buildx imagetools inspect", DOCKER_CAUSES, REGISTRY_S), command)
    if not re.fullmatch(DIGEST, str(digest)):
        raise TrtspecError(f"docker printed {str(digest)[:80]!r} as the digest of {reference}")
    return str(digest)


def _parsed(output: bytes, command: list[str]) -> Any:
    try:
        return json.loads(output)
    except ValueError:
        raise TrtspecError(f"{' '.join(command[:3])} printed {output[:80]!r}, not JSON") from None


def _familiar(name: str) -> str:
    """Return a name without Docker Hub's prefixes, which docker omits and podman does not."""
    return name.removeprefix(DOCKER_HUB).removeprefix("library/")
