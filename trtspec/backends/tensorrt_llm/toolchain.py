# SPDX-License-Identifier: Apache-2.0
"""What builds engines here: trtllm-build on PATH or in a container image, its versions, and the GPUs it builds on.

A machine without it has a toolchain too, with the versions that are to be expected, so that a plan can be shown.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from trtspec.backends.common.trtllm_versions import version_spec_of
from trtspec.backends.common.trtllm_versions.containers import is_release
from trtspec.backends.tensorrt_llm.installed import installed_versions
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import StepError, TrtspecError
from trtspec.core.gpus import Gpu, find_gpu, seen_gpus

BUILDER = "trtllm-build"
RUNTIMES = ("docker", "podman")
WORKDIR = "/build"  # in a container
PASSED = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")  # into a container

NO_KEY = {"key": False}


@dataclass(frozen=True)
class EngineToolchain:
    """What an engine is built with; `image` is the container's by digest, "" where trtllm-build is on PATH.

    Versions, GPU (by the recipe's name), its compute capability times ten and the driver decide whether an engine can
    be loaded, so they are part of what it is. Of an "absent" toolchain they are what the recipe leads to expect, and
    `missing` is why nothing can be built. `devices` are the GPUs of the kind, as CUDA_VISIBLE_DEVICES names them, and
    `runtime` is what runs containers.
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

    def lacks(self) -> Iterator[Diagnostic]:
        """Yield why engines cannot be built here, if they cannot."""
        if self.kind == "absent":
            yield Diagnostic("engine", "no-toolchain", f"no engine can be built here: {self.missing}", self.hint)

    def check_present(self) -> None:
        """Raise StepError where engines cannot be built here."""
        for lack in self.lacks():
            raise StepError(lack.message, hint=lack.hint)

    def command(
        self, arguments: Sequence[str], *, reads: Sequence[str], writes: str, cid_file: str, user: str = ""
    ) -> tuple[str, ...]:
        """Return the argv of a build in the current directory, whose entries it reads and writes.

        A container sees these alone, and its id goes to `cid_file`; its files belong to `user`, by default to us.
        """
        if not self.image:
            return (BUILDER, *arguments)
        volumes = [f"--volume=./{path}:{WORKDIR}/{path}:ro" for path in reads]
        volumes.append(f"--volume=./{writes}:{WORKDIR}/{writes}")
        return (*self._container(cid_file, user), *volumes, self.image, BUILDER, *arguments)

    def cleanup(self, cid_file: str) -> tuple[str, ...]:
        """Return the command that removes a build's container, none where there is no container."""
        return ("xargs", f"--arg-file={cid_file}", self.runtime, "rm", "--force") if self.image else ()

    def _container(self, cid_file: str, user: str) -> tuple[str, ...]:
        """Return how a container is run: with the GPUs and without a network."""
        gpus, owner = "--gpus=all", f"--user={user or f'{os.getuid()}:{os.getgid()}'}"
        if self.runtime == "podman":  # whose root is us already
            gpus, owner = "--device=nvidia.com/gpu=all", "--userns=keep-id"
        where = (f"--tmpfs={WORKDIR}:mode=1777", f"--workdir={WORKDIR}", "--env=HOME=/tmp")
        passed = [f"--env={variable}" for variable in PASSED]
        return (self.runtime, "run", "--rm", "--init", "--network=none", f"--cidfile={cid_file}", gpus, owner, *passed,
                *where)  # fmt: skip


def probe_toolchain(image: str, version: str, gpu_name: str) -> EngineToolchain:
    """Return what builds engines of a TensorRT-LLM version for a GPU here; `image` is "" for what is on PATH.

    Starts no process where there is nothing to ask. Raises TrtspecError where another version is installed.
    """
    gpu, release = find_gpu(gpu_name), version_spec_of(version).release(version)
    expected = EngineToolchain("absent", image, version, release.tensorrt, gpu.name, gpu.sm, release.driver)
    return _in_image(expected, gpu) if image else _on_path(expected, gpu)


def _in_image(expected: EngineToolchain, gpu: Gpu) -> EngineToolchain:
    """Return the toolchain of an image; which versions it holds is told when it runs."""
    runtime = next((name for name in RUNTIMES if shutil.which(name)), None)
    if runtime is None:
        hint = "install one of them, or leave out engine.build.image for the trtllm-build on PATH"
        return replace(expected, missing=f"{' and '.join(RUNTIMES)} are not on PATH, to run the image", hint=hint)
    return _on_gpus(replace(expected, kind="image", runtime=runtime), gpu)


def _on_path(expected: EngineToolchain, gpu: Gpu) -> EngineToolchain:
    builder, wanted = shutil.which(BUILDER), f"tensorrt-llm=={expected.tensorrt_llm}"
    if builder is None:
        hint = f"pip install {wanted} on a machine with the GPU, or name a container as engine.build.image"
        return replace(expected, missing=f"{BUILDER} is not on PATH", hint=hint)
    found, tensorrt = installed_versions(Path(builder))
    if not is_release(found, expected.tensorrt_llm) or tensorrt is None:
        here = f"TensorRT-LLM {found or '(none)'} with TensorRT {tensorrt or '(none)'} is installed"
        hint = f"pip install {wanted}, or set engine.version: an engine runs on the version that built it"
        raise TrtspecError(f"{here}, and the recipe is for {expected.tensorrt_llm}", where=builder, hint=hint)
    return _on_gpus(replace(expected, kind="local", tensorrt_llm=str(found), tensorrt=tensorrt), gpu)


def _on_gpus(toolchain: EngineToolchain, gpu: Gpu) -> EngineToolchain:
    """Return the toolchain with the driver of this machine and those of its GPUs that the recipe names."""
    seen = seen_gpus()
    devices = [str(number) for number, each in enumerate(seen) if each.is_a(gpu)]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        devices = [device for device in devices if device in visible.split(",")]
    if not devices:
        here = ", ".join(sorted({each.name for each in seen})) or "none"
        missing = f"the recipe is for the GPU {gpu.name}, and the visible ones here are: {here}"
        return replace(toolchain, kind="absent", missing=missing, hint="build where it will run, or set engine.gpu")
    return replace(toolchain, driver=seen[0].driver, devices=tuple(devices))
