# SPDX-License-Identifier: Apache-2.0
"""How a backend's artifact is served: the requirements on tritonserver, the staged files and the processes.

For operators without Triton, the arguments in an artifact's repository become the engine's own command line.
"""

from __future__ import annotations

import json
import posixpath
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from trtspec.core.errors import DeployError
from trtspec.core.files import copy_tree
from trtspec.core.ports import LOOPBACK
from trtspec.serving.triton.repository_writer import CONFIG, write_model
from trtspec.serving.triton.server import EXIT_TIMEOUT_S, ServerPorts, TritonServer, server_command
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_paths import REPOSITORY

PATHS = ("gpt_model_path", "tokenizer_dir")  # parameters of models


@dataclass(frozen=True)
class Launch:
    """The number of server processes for a repository, and their additional environment and options.

    Rank 0 receives the requests; the other ranks load only the models of `engines`.
    """

    world_size: int = 1
    engines: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def command(
        self, server: TritonServer, repository: Path, ports: ServerPorts, shm_prefix: str, drain_s: int = EXIT_TIMEOUT_S
    ) -> list[str]:
        """Return the argv. Raise DeployError if several processes are needed and mpirun is missing."""
        # load all models, since a Python model's calls are not declared; list the names, so that errors name the model
        first, *more = sorted(path.parent.name for path in repository.glob(f"*/{CONFIG}")) or ["*"]
        command = server_command(server, repository, ports, model=first, shm_prefix=shm_prefix, drain_s=drain_s)
        own = [*command, *(f"--load-model={name}" for name in more), *self.options]
        if self.world_size == 1:
            return own
        if shutil.which("mpirun") is None:
            hint = "deploy in the TensorRT-LLM container, which includes MPI"
            raise DeployError(f"the engines need {self.world_size} processes, but mpirun is not on PATH", hint=hint)
        command = ["mpirun", "--allow-run-as-root", "-n", "1", *own]
        for rank in range(1, self.world_size):
            ranks = f"{shm_prefix}{rank}_"
            inside = replace(ports, host=LOOPBACK)  # it receives no requests
            worker = server_command(server, repository, inside, model=self.engines[0], shm_prefix=ranks)
            command += [":", "-n", "1", *worker, *(f"--load-model={name}" for name in self.engines[1:]), *self.options]
        return command


@dataclass(frozen=True)
class FallbackBackend:
    """A substitute for a missing Triton backend: the folder to install, and a change of the staged repository.

    `adapt` modifies the repository before it is served.
    """

    folder: Path
    adapt: Callable[[Path], None]


@dataclass(frozen=True)
class StandaloneServer:
    """The command line of the engine's own server for an artifact's checkpoints, used by operators without Triton.

    `framework` is the operators' name of the engine. `serve` is the argv of the engine's OpenAI-compatible server, to
    which --port and the name are added. `arguments` are only the options, including the model's path. `files` are
    configuration files by name, which the server reads at /config. `name_option` is the server's option for the name in
    its OpenAI API, "" if it has none.
    """

    framework: str
    serve: tuple[str, ...]
    arguments: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    name_option: str = "--served-model-name"


@dataclass(frozen=True)
class MultiNode:
    """Commands of an engine that spans machines: for the first machine before it serves, and for the others.

    The environment variable LWS_LEADER_ADDRESS holds the address of the first machine.
    """

    leader: str
    worker: str


@dataclass(frozen=True)
class ServingHooks:
    """The backend's part in `deploy`.

    `triton_backend` is the backend that tritonserver needs in addition to its Python backend. `stand_in` returns the
    substitute if it is missing, or None; it raises DeployError if the substitute's requirements are missing.
    `check_machine` raises DeployError if this machine differs from the one the artifact was built for, or lacks the
    engine. `stage` writes the served repository to a path, for a server that sees the artifact at another path.
    `launch` reads the processes from the repository. `models` are the backend's own hand-written models, whose code an
    artifact may contain.

    For containers: `images` are the public images, by tag, with a version of the engine, newest first; empty if any
    tritonserver image is suitable. `requirements` are the packages that pip installs for a version in addition to
    trtspec and its `extra`, and `system_packages` those of Ubuntu that they need. `kv_usage` is the metric of the used
    part of the KV cache (0 to 1), "" if not exported.
    `alone` returns the standalone server for a repository, the artifact's path and a version; `nodes` are the commands
    for several machines, None if unsupported.
    """

    triton_backend: str = ""
    stand_in: Callable[[], FallbackBackend | None] = lambda: None
    check_machine: Callable[[Path, Manifest], None] = lambda artifact, manifest: None
    stage: Callable[[Path, Path, str], None] = lambda repository, out, artifact: copy_tree(repository, out)
    launch: Callable[[Path], Launch] = lambda artifact: Launch()
    models: Path | None = None
    images: Callable[[str], tuple[str, ...]] = lambda version: ()
    requirements: Callable[[str], tuple[str, ...]] = lambda version: ()
    system_packages: Callable[[str], tuple[str, ...]] = lambda version: ()
    extra: str = ""
    kv_usage: str = ""
    alone: Callable[[Path, str, str], StandaloneServer | None] = lambda repository, artifact, version: None
    nodes: MultiNode | None = None


def require_package(package: str, hint: str) -> None:
    """Raise DeployError if a Python package is missing in this interpreter, which runs the served model."""
    if not find_spec(package):
        raise DeployError(f"the Python package {package} is not installed here", where=sys.executable, hint=hint)


def with_absolute_paths(value: Any, model: str, artifact: str) -> Any:
    """Return a value with its paths, relative to a model of the repository, made absolute for an artifact's path."""
    if isinstance(value, Mapping):
        return {key: with_absolute_paths(each, model, artifact) for key, each in value.items()}
    if isinstance(value, list):
        return [with_absolute_paths(each, model, artifact) for each in value]
    if isinstance(value, str) and value.startswith(("../", "./")):
        return posixpath.normpath(posixpath.join(artifact, REPOSITORY, model, value))
    return value


def relocate(repository: Path, out: Path, artifact: str) -> None:
    """Write a copy of an artifact's repository to `out` with absolute paths in the models' configurations.

    `artifact` is the artifact's path for the server, which may differ in a container.
    """
    from trtspec.serving.triton.config import load_config, set_parameter  # planning needs no protobuf

    for source in sorted(path.parent for path in repository.glob(f"*/{CONFIG}")):
        config = load_config(source / CONFIG)
        for key in PATHS:
            if key in config.parameters:
                path = config.parameters[key].string_value
                set_parameter(config, key, with_absolute_paths(path, source.name, artifact))
        write_model(out / source.name, source, config)


def load_absolute(repository: Path, path: Path, artifact: str) -> dict[str, Any]:
    """Return the document of a model in a repository with its paths made absolute for an artifact's path."""
    text = (repository / path).read_text(encoding="utf-8")
    document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    found: dict[str, Any] = with_absolute_paths(document, path.parts[0], artifact)
    return found


def command_options(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a document as options: --max-model-len=4096, --flag for true, JSON for objects and lists."""
    found = []
    for key, value in document.items():
        name = f"--{key.replace('_', '-')}"
        if value is True:
            found.append(name)
        elif value is not False and value is not None:
            text = json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
            found.append(f"{name}={text}")
    return tuple(found)
