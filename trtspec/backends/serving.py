# SPDX-License-Identifier: Apache-2.0
"""How a backend's artifact is served: what tritonserver must have, from which files, by which processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtspec.artifacts.manifest import Manifest
from trtspec.errors import DeployError
from trtspec.system import LOOPBACK
from trtspec.triton.server import Ports, Server, server_command


@dataclass(frozen=True)
class Launch:
    """How many server processes serve a repository, and what they are told beside the usual.

    Rank 0 takes the requests; the others load the models of `engines` alone.
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
            inside = replace(ports, host=LOOPBACK)  # it takes no requests
            worker = server_command(server, repository, inside, model=self.engines[0], shm_prefix=ranks)
            command += [":", "-n", "1", *worker, *(f"--load-model={name}" for name in self.engines[1:]), *self.options]
        return command


def _any_machine(artifact: Path, manifest: Manifest) -> None:
    pass


def _copy(repository: Path, out: Path, artifact: str) -> None:
    shutil.copytree(repository, out)


def _one_process(artifact: Path) -> Launch:
    return Launch()


@dataclass(frozen=True)
class StandIn:
    """What serves where tritonserver lacks a backend: a folder that is put in its place, and what else it answers.

    `adapt` changes the repository that is about to be served.
    """

    folder: Path
    adapt: Callable[[Path], None]


def _no_stand_in() -> StandIn | None:
    return None


@dataclass(frozen=True)
class ServingHooks:
    """What `deploy` asks of a backend.

    `triton_backend` is what tritonserver must have beside its Python backend; `stand_in` returns what serves where it
    is not there, None where nothing does, and raises DeployError where that lacks something. `check_machine` raises it
    where this machine is another than the artifact was built for, or lacks what runs it; `stage` writes the repository
    to serve at a path, for a server that sees the artifact at another; `launch` reads which processes serve it.
    """

    triton_backend: str = ""
    stand_in: Callable[[], StandIn | None] = _no_stand_in
    check_machine: Callable[[Path, Manifest], None] = _any_machine
    stage: Callable[[Path, Path, str], None] = _copy
    launch: Callable[[Path], Launch] = _one_process
