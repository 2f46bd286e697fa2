# SPDX-License-Identifier: Apache-2.0
"""How an artifact's engine is served on this machine: whether it can be, from which repository, by which processes.

An engine runs on the GPU, the driver and the versions that built it, and nowhere else: what would fail while it is
loaded, or quietly compute on other kernels, is refused before a server is started.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.artifacts.manifest import Manifest
from trtspec.backends.gpus import Gpu, find_gpu
from trtspec.backends.tensorrt_llm.installed import installed_versions, seen_gpus
from trtspec.backends.tensorrt_llm.placement import ENVIRONMENT, LAUNCH, MODEL_NAMES, no_pools
from trtspec.backends.tensorrt_llm.toolchain import BUILDER
from trtspec.errors import DeployError
from trtspec.backends.tensorrt_llm.repository import relocate
from trtspec.triton.server import Ports, Server, server_command
from trtspec.backends.vllm.repository import relocate_vllm

REPOSITORY = "model_repository"
MAX_LAUNCH_BYTES = 1 << 20
MOST_RANKS = 512
INSTALLED = (Path("/opt/tritonserver/backends"),)  # where containers have them

# What Triton has to have beside its Python backend.
BACKEND_NEEDED = {"tensorrt_llm": "tensorrtllm", "vllm": "vllm"}


@dataclass(frozen=True)
class Launch:
    """How many server processes serve a repository, and what they are told beside the usual.

    Rank 0 takes the requests; the others load the `engines` alone.
    """

    world_size: int = 1
    engines: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def command(self, server: Server, repository: Path, ports: Ports, shm_prefix: str) -> list[str]:
        """Return the argv; raises DeployError where there is no mpirun for several processes."""
        # what a Python model asks by itself is no part of its ensemble, so that all are named
        models = "*" if self.engines else "ensemble"
        own = [*server_command(server, repository, ports, model=models, shm_prefix=shm_prefix), *self.options]
        if self.world_size == 1:
            return own
        if shutil.which("mpirun") is None:
            hint = "start it in the container that has TensorRT-LLM: it has MPI too"
            raise DeployError(f"the engines run in {self.world_size} processes, and mpirun is not on PATH", hint=hint)
        command = ["mpirun", "--allow-run-as-root", "-n", "1", *own]
        for rank in range(1, self.world_size):
            ranks = f"{shm_prefix}{rank}_"
            worker = server_command(server, repository, ports, model=self.engines[0], shm_prefix=ranks)
            command += [":", "-n", "1", *worker, *(f"--load-model={name}" for name in self.engines[1:]), *self.options]
        return command


def check_machine(artifact: Path, manifest: Manifest, server: Server) -> None:
    """Raise DeployError where this machine is another than the artifact's engine was built for."""
    name = manifest.backend.name
    needed = BACKEND_NEEDED.get(name)
    if needed and not any((place / needed).is_dir() for place in _backend_places(server)):
        hint = f"start it in a container of Triton's that has the {needed} backend, with trtspec installed"
        raise DeployError(f"this tritonserver has no {needed} backend", where=str(server.executable), hint=hint)
    if name != "tensorrt_llm":
        return
    built = {**manifest.tools, **manifest.gpu}
    here = _machine(find_gpu(str(built.get("name"))))
    odd = [f"{key} {built.get(key)} when built, {value} here" for key, value in here.items() if built.get(key) != value]
    if odd:
        hint = "build the recipe on this machine; what is converted already is not converted again"
        raise DeployError(
            f"the engines were built for another machine: {'; '.join(odd)}", where=str(artifact), hint=hint
        )


def stage_repository(artifact: Path, manifest: Manifest, stage: Path) -> Path:
    """Return a copy of the repository to serve, with the rest of the artifact linked beside it.

    Python writes its caches next to the models, whatever the environment says: the artifact stays as it was built.
    """
    repository = artifact / REPOSITORY
    if not repository.is_dir():
        raise DeployError(f"the artifact holds no {REPOSITORY}", where=str(artifact), hint="build it again")
    if stage.exists():
        shutil.rmtree(stage)
    copy = {"tensorrt_llm": relocate, "vllm": relocate_vllm}.get(manifest.backend.name)
    stage.mkdir(parents=True)
    if copy:
        copy(repository, stage / REPOSITORY, str(artifact))
    else:
        shutil.copytree(repository, stage / REPOSITORY)
    for path in artifact.iterdir():
        if path.name != REPOSITORY:
            (stage / path.name).symlink_to(path)
    return stage / REPOSITORY


def read_launch(artifact: Path, manifest: Manifest) -> Launch:
    """Return how an artifact is launched; only TensorRT-LLM's engines want more than one process."""
    if manifest.backend.name != "tensorrt_llm":
        return Launch()
    path = artifact / LAUNCH
    try:
        if path.stat().st_size > MAX_LAUNCH_BYTES:
            raise ValueError("too large")
        return _parse_launch(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeployError(f"cannot be read: {error}", where=str(path), hint="build it again") from None


def _parse_launch(document: dict[str, Any]) -> Launch:
    """Take from the document numbers and known names alone: no word of it is run."""
    world_size, models = document["world_size"], [model["name"] for model in document["models"]]
    if type(world_size) is not int or not 1 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size {world_size!r}")
    if not models or not set(models) <= set(MODEL_NAMES.values()):
        raise ValueError(f"models {models!r}")
    environment = {key: str(document["environment"][key]) for key in ENVIRONMENT if key in document["environment"]}
    if any(value not in ("0", "1") for value in environment.values()):
        raise ValueError(f"environment {environment!r}")
    gpu_ids = [int(gpu_id) for model in document["models"] for gpu_id in model["gpu_device_ids"]]
    if not all(0 <= gpu_id < MOST_RANKS for gpu_id in gpu_ids):
        raise ValueError(f"gpu_device_ids {gpu_ids!r}")
    spawns = environment.get(ENVIRONMENT[1]) == "1"
    return Launch(world_size, tuple(models), environment, no_pools(gpu_ids) if spawns else ())


def _machine(wanted: Gpu) -> dict[str, Any]:
    """Return what decides whether an engine can be loaded, in the manifest's words, as it is here."""
    builder = shutil.which(BUILDER)
    if builder is None:
        hint = "deploy in the container that has TensorRT-LLM: its version has to be the one that built the engines"
        raise DeployError(f"{BUILDER} is not on PATH, so that nothing tells TensorRT-LLM's version", hint=hint)
    tensorrt_llm, tensorrt = installed_versions(Path(builder))
    gpus = seen_gpus()
    fitting = [gpu for gpu in gpus if gpu.is_a(wanted)]
    gpu = next(iter([*fitting, *gpus]), None)
    return {
        "tensorrt_llm": tensorrt_llm,
        "tensorrt": tensorrt,
        "name": wanted.name if fitting else gpu.name if gpu else "no GPU",
        "sm": gpu.sm if gpu else 0,
        "driver": gpu.driver if gpu else "",
    }


def _backend_places(server: Server) -> tuple[Path, ...]:
    beside = server.executable.resolve().parent.parent / "backends"
    return (server.backends,) if server.backends else (beside, *INSTALLED)
