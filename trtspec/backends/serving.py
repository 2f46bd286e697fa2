# SPDX-License-Identifier: Apache-2.0
"""How a backend's artifact is served: requirements on tritonserver, the staged repository and the server processes.

For operators that do not use Triton, the arguments in an artifact's repository are converted to a command line of the
engine's own server.
"""

from __future__ import annotations

import json
import posixpath
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
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
    """The server processes for a repository: their number, and additional environment variables and options.

    Rank 0 receives the requests. The other ranks load only the models in `engines`.
    """

    world_size: int = 1
    engines: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    def command(
        self, server: TritonServer, repository: Path, ports: ServerPorts, shm_prefix: str, drain_s: int = EXIT_TIMEOUT_S
    ) -> list[str]:
        """Return the command line of all processes; raise DeployError if several are needed and mpirun is missing."""
        # load all models, because a Python model's calls are not declared; explicit names appear in error messages
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
    """A substitute for a missing Triton backend: `folder` is installed, and `adapt` modifies the staged repository."""

    folder: Path
    adapt: Callable[[Path], None]


@dataclass(frozen=True)
class StandaloneServer:
    """The command line of the engine's own server for an artifact's checkpoints, for operators that do not use Triton.

    Attributes:
        framework: the operators' name of the engine.
        serve: the command line of the OpenAI-compatible server, to which --port and the model's name are added.
        arguments: only the options, including the model's path.
        files: contents of configuration files by name; the server reads them in /config.
        name_option: the option for the model's name in the OpenAI API, or "".
        environment: environment variables of the server.
    """

    framework: str
    serve: tuple[str, ...]
    arguments: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    name_option: str = "--served-model-name"
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class MultiNode:
    """Shell commands of an engine on several machines: `leader` runs on the first one before it serves.

    `worker` runs on the others. The environment variable LWS_LEADER_ADDRESS contains the first machine's address.
    """

    leader: str
    worker: str


@dataclass(frozen=True)
class ServingHooks:
    """The functions and facts of a backend that `deploy` needs.

    Attributes:
        triton_backend: the Triton backend that is needed in addition to the Python backend.
        stand_in: returns a substitute for a missing Triton backend, or None; raises DeployError if its requirements are
            missing.
        check_machine: raises DeployError if the artifact was built for another machine or the engine is missing.
        stage: writes the served repository to a directory, for a server that accesses the artifact at another path.
        launch: returns the server processes for an artifact.
        models: the directory of the backend's own models, whose code an artifact may contain.
        images: returns the public container images with a version of the engine, newest first; empty if any
            tritonserver image is suitable.
        requirements: returns the pip requirements for a version, in addition to trtspec and its `extra`.
        system_packages: returns the Ubuntu packages for a version.
        kv_usage: the metric for the used share of the KV cache (0 to 1); "" if it is not exported.
        alone: returns the standalone server for a repository, the artifact's path and a version, or None.
        simulate: returns a standalone server that accepts drafts at the given rate of each position, for capacity
            tests; raises DeployError if the version cannot do that. None if no version can.
        nodes: the commands for several machines, or None if unsupported.
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
    simulate: Callable[[StandaloneServer, Sequence[float], str], StandaloneServer] | None = None
    nodes: MultiNode | None = None


def require_package(package: str, hint: str) -> None:
    """Raise DeployError if a Python package is missing in this interpreter, which also runs the served model."""
    if not find_spec(package):
        raise DeployError(f"the Python package {package} is not installed here", where=sys.executable, hint=hint)


def with_absolute_paths(value: Any, model: str, artifact: str) -> Any:
    """Return a JSON value in which paths relative to a model's directory are absolute for an artifact's path."""
    if isinstance(value, Mapping):
        return {key: with_absolute_paths(each, model, artifact) for key, each in value.items()}
    if isinstance(value, list):
        return [with_absolute_paths(each, model, artifact) for each in value]
    if isinstance(value, str) and value.startswith(("../", "./")):
        return posixpath.normpath(posixpath.join(artifact, REPOSITORY, model, value))
    return value


def relocate(repository: Path, out: Path, artifact: str) -> None:
    """Copy an artifact's repository to `out`, with absolute paths in the models' configurations.

    `artifact` is the artifact's path on the server, which can differ inside a container.
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
    """Return a model's JSON or YAML document, with its paths made absolute for an artifact at the path `artifact`."""
    text = (repository / path).read_text(encoding="utf-8")
    document = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    found: dict[str, Any] = with_absolute_paths(document, path.parts[0], artifact)
    return found


def command_options(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a document as command-line options, such as --max-model-len=4096.

    True becomes a flag, false and null are omitted, and objects and lists become JSON.
    """
    found = []
    for key, value in document.items():
        name = f"--{key.replace('_', '-')}"
        if value is True:
            found.append(name)
        elif value is not False and value is not None:
            text = json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
            found.append(f"{name}={text}")
    return tuple(found)
