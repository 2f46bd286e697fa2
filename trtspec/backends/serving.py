# SPDX-License-Identifier: Apache-2.0
"""How a backend's artifact is served: what tritonserver must have, from which files, by which processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtspec.core.errors import DeployError
from trtspec.core.files import copy_tree
from trtspec.core.ports import LOOPBACK
from trtspec.serving.triton.repository_writer import CONFIG
from trtspec.serving.triton.server import EXIT_TIMEOUT_S, Ports, Server, server_command
from trtspec.store.manifest import Manifest


@dataclass(frozen=True)
class Launch:
    """How many server processes serve a repository, and what they are told beside the usual.

    Rank 0 takes the requests; the others load the models of `engines` alone.
    """

    world_size: int = 1
    engines: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def command(
        self, server: Server, repository: Path, ports: Ports, shm_prefix: str, drain_s: int = EXIT_TIMEOUT_S
    ) -> list[str]:
        """Return the argv; raises DeployError where there is no mpirun for several processes."""
        # all models, since what a Python model asks by itself only it knows; by name, so that an error names its model
        first, *more = sorted(path.parent.name for path in repository.glob(f"*/{CONFIG}")) or ["*"]
        command = server_command(server, repository, ports, model=first, shm_prefix=shm_prefix, drain_s=drain_s)
        own = [*command, *(f"--load-model={name}" for name in more), *self.options]
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
    copy_tree(repository, out)


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
class Alone:
    """How an engine serves the checkpoints of an artifact without Triton, as operators for engines start it.

    `framework` is what they call it; `serve` the argv of its own server for OpenAI's clients, to which a port and a
    name are added as --port and --served-model-name; `arguments` the options alone, the model's path among them;
    `files` are configuration that it reads at /config, by name.
    """

    framework: str
    serve: tuple[str, ...]
    arguments: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Nodes:
    """How an engine spans machines: what the first runs before it serves, and what the others run.

    The variable LWS_LEADER_ADDRESS holds the first's address.
    """

    leader: str
    worker: str


def _no_images(version: str) -> tuple[str, ...]:
    return ()


def _not_alone(repository: Path, artifact: str) -> Alone | None:
    return None


@dataclass(frozen=True)
class ServingHooks:
    """What `deploy` asks of a backend.

    `triton_backend` is what tritonserver must have beside its Python backend; `stand_in` returns what serves where it
    is not there, None where nothing does, and raises DeployError where that lacks something. `check_machine` raises it
    where this machine is another than the artifact was built for, or lacks what runs it; `stage` writes the repository
    to serve at a path, for a server that sees the artifact at another; `launch` reads which processes serve it.
    `models` are the hand-written models of the backend's own, whose code an artifact may bring.

    Of containers: `images` are the public ones by tag that hold a version of the engine, newest first, none where any
    with tritonserver will do, `requirements` what pip adds for a version beside trtspec, whose `extra` it installs;
    `kv_usage` is the metric of the KV cache's used part (0 to 1), "" where none is exported. `alone` reads of a
    repository how the engine serves without Triton, for an artifact that lies at a path; `nodes` how it spans
    machines, None where it cannot.
    """

    triton_backend: str = ""
    stand_in: Callable[[], StandIn | None] = _no_stand_in
    check_machine: Callable[[Path, Manifest], None] = _any_machine
    stage: Callable[[Path, Path, str], None] = _copy
    launch: Callable[[Path], Launch] = _one_process
    models: Path | None = None
    images: Callable[[str], tuple[str, ...]] = _no_images
    requirements: Callable[[str], tuple[str, ...]] = _no_images
    extra: str = ""
    kv_usage: str = ""
    alone: Callable[[Path, str], Alone | None] = _not_alone
    nodes: Nodes | None = None
