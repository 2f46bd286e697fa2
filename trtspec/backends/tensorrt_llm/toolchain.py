# SPDX-License-Identifier: Apache-2.0
"""Detection of the engine builder: trtllm-build on PATH or in a container image, its versions, and the GPUs.

Without a builder, the toolchain has the recipe's expected versions, so that a plan can still be shown.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trtspec.backends.common.build_tools import installed_versions
from trtspec.backends.common.trtllm_versions import find_version_spec, is_release
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import Gpu, detect_gpus, find_gpu
from trtspec.core.installation import DoctorCheck, installed_version

BUILDER, PACKAGE = "trtllm-build", "tensorrt_llm"
RUNTIMES = ("docker", "podman")
WORKDIR = "/build"  # working directory in a container
PASSED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # variables passed into a container

NO_KEY = {"key": False}


@dataclass(frozen=True)
class EngineToolchain:
    """The toolchain that builds an engine; `image` is the container image by digest, "" for trtllm-build on PATH.

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
    missing: str = field(default="", metadata=NO_KEY)
    hint: str = field(default="", metadata=NO_KEY)

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


def probe_toolchain(image: str, version: str, gpu_name: str) -> EngineToolchain:
    """Return the toolchain for a TensorRT-LLM version and a GPU; `image` is "" for trtllm-build on PATH.

    Raise TrtspecError if another version is installed. A process is started only if trtllm-build is on PATH.
    """
    gpu, release = find_gpu(gpu_name), find_version_spec(version).release(version)
    expected = EngineToolchain("absent", image, version, release.tensorrt, gpu.name, gpu.sm, release.driver)
    return _in_image(expected, gpu) if image else _on_path(expected, gpu)


def _in_image(expected: EngineToolchain, gpu: Gpu) -> EngineToolchain:
    """Return the toolchain in a container image; its TensorRT-LLM version is checked when the build starts."""
    runtime = next((name for name in RUNTIMES if shutil.which(name)), None)
    if runtime is None:
        hint = "install one of them, or remove engine.build.image to use trtllm-build on PATH"
        return replace(expected, missing=f"{' and '.join(RUNTIMES)} are not on PATH, to run the image", hint=hint)
    return _on_gpus(replace(expected, kind="image", runtime=runtime), gpu)


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
