# SPDX-License-Identifier: Apache-2.0
"""Servers of capacity tests, which accept drafts by simulation: a private one, or files to start the engine's own.

A test serves a temporary copy of an artifact. The copy's manifest records the simulated acceptance, so every other
command rejects it: `deploy`, rollouts and rendering raise an error, and `verify` fails. The server listens on the
loopback interface only, its name and its answers are marked, and it ends with the test.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from trtspec.backends.base import find_backend
from trtspec.backends.serving import StandaloneServer
from trtspec.core.errors import DeployError
from trtspec.core.files import replace_file
from trtspec.core.hashing import file_segments
from trtspec.core.paths import state_dir
from trtspec.core.ports import LOOPBACK
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.options import DeployOptions, OnEvent
from trtspec.deployment.target import find_target
from trtspec.engine.settings import EngineSettings
from trtspec.engine.simulated_acceptance import SIMULATED, mean_accepted_len
from trtspec.serving.triton.repository_writer import CONFIG
from trtspec.store.artifact import Artifact, Manifest, load_artifact, publish_artifact
from trtspec.store.artifact_paths import REPOSITORY
from trtspec.store.file_records import FileRecord

LOCAL = "local"
MARKER, SCRIPT = "SIMULATION.md", "serve.sh"
NOTICE = """\
# Capacity test of {name}

These files start the server of {framework} with **simulated acceptance** of drafts: {length:.6g} tokens per step,
whatever the draft is. Its texts are not the target's, so it must not serve users. It is not an artifact: trtspec does
not deploy it. Run it where {framework} is installed, and measure its speed:

    sh {script} --port 8000
    trtspec bench http://127.0.0.1:8000 --concurrency 1,4,16 --output-tokens 128

The model's name is {model}. {positions}
"""
BY_POSITION = "The acceptance of the positions is {rates}."
MEAN_ONLY = "The engine takes the mean only, not the acceptance of each position."
NAME_LEN = 63
SETTINGS = "engine_settings"  # parameter of the torch engine's model


@contextmanager
def simulated_server(root: Path, manifest: Manifest, rates: Sequence[float], on_event: OnEvent) -> Iterator[str]:
    """Serve an artifact with simulated acceptance until the context ends; yield the deployment's name.

    `rates` are the acceptance rates of the positions of a draft. Raises like the target if the server does not start.
    """
    state_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    journal = DeploymentJournal(f"{SIMULATED}-{manifest.recipe.name}"[:NAME_LEN])
    options, target = DeployOptions(name=journal.name, on_event=on_event, wait_warm=True), find_target(LOCAL)
    with TemporaryDirectory(prefix=f"{SIMULATED}-", dir=state_dir()) as place:
        artifact = make_simulated_artifact(root, manifest, rates, Path(place))
        with journal.lock():
            target.deploy(journal, artifact, options)
        try:
            yield journal.name
        finally:
            target.stop(journal.name)
            with journal.lock():
                journal.remove()


def make_simulated_artifact(root: Path, manifest: Manifest, rates: Sequence[float], place: Path) -> Artifact:
    """Write a copy of an artifact with simulated acceptance to a directory in `place`; files are linked if possible.

    Raises DeployError if the torch engine does not serve the artifact.
    """
    sources = {record.path: root / record.path for record in manifest.files}
    records = {record.path: record for record in manifest.files}
    changed = [path for path in sources if path.startswith(f"{REPOSITORY}/") and path.endswith(f"/{CONFIG}")]
    for number, path in enumerate(changed):
        if (text := _simulated_config(sources[path], rates)) is not None:
            sources[path] = place / f"{number}.pbtxt"
            sources[path].write_text(text, encoding="utf-8")
            (segments,) = file_segments([sources[path]])
            records[path] = FileRecord(path=path, size=sources[path].stat().st_size, segments=segments)
    if all(sources[path] == root / path for path in changed):
        raise DeployError("only the torch engine simulates acceptance in trtspec's own server", where=str(root))
    copy = manifest.model_copy(update={"files": tuple(records.values()), "simulated_acceptance": tuple(rates)})
    publish_artifact(place / "artifact", sources, copy)
    return load_artifact(place / "artifact")


def _simulated_config(path: Path, rates: Sequence[float]) -> str | None:
    """Return a model's configuration with simulated acceptance, or None for a model without an engine."""
    from trtspec.serving.triton.config import load_config, render_config, set_parameter  # imports protobuf

    config = load_config(path)
    if SETTINGS not in config.parameters:
        return None
    settings = EngineSettings.from_json(config.parameters[SETTINGS].string_value)
    set_parameter(config, SETTINGS, replace(settings, simulated_acceptance=tuple(rates)).as_json())
    return render_config(config)


def write_simulation(root: Path, manifest: Manifest, rates: Sequence[float], out: Path) -> list[str]:
    """Write the files that start the engine's own server with simulated acceptance to `out`; return their names.

    Raises DeployError if the artifact's engine has no server of its own or cannot simulate acceptance.
    """
    backend, version = manifest.backend.name, manifest.recipe.engine.version or ""
    hooks = find_backend(backend).serving()
    server = hooks.alone(root / REPOSITORY, str(root.absolute()), version)
    if server is None or hooks.simulate is None:
        hint = "omit --simulate-out to measure in trtspec's own server"
        raise DeployError(f"{backend} has no server of its own with simulated acceptance", where=str(root), hint=hint)
    files = _simulation_files(manifest.recipe.name, rates, hooks.simulate(server, rates, version))
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        replace_file(out / name, text.encode())
    return [*files]


def _simulation_files(name: str, rates: Sequence[float], server: StandaloneServer) -> dict[str, str]:
    """Return the contents of the files by name: a notice, a shell script and the server's configuration."""
    model = f"{SIMULATED}-{name}"
    name_options = (f"{server.name_option}={model}",) if server.name_option else ()
    serve = [word for word in server.serve if not word.startswith("--host=")]
    command = shlex.join((*serve, f"--host={LOOPBACK}", *name_options)).replace("/config/", '"$here"/')
    exports = [f"export {variable}={shlex.quote(value)}" for variable, value in server.environment.items()]
    lines = [
        "#!/bin/sh",
        f"# SIMULATED acceptance for a capacity test, not for users: see {MARKER}.",
        'here=$(cd "$(dirname "$0")" && pwd)',
        *exports,
        f'exec {command} "$@"',
    ]
    by_position = BY_POSITION.format(rates=", ".join(f"{rate:.6g}" for rate in rates))
    notice = NOTICE.format(
        name=name,
        framework=server.framework,
        length=mean_accepted_len(rates),
        script=SCRIPT,
        model=f"`{model}`" if name_options else "the last part of its path",
        positions=MEAN_ONLY if server.environment else by_position,
    )
    return {MARKER: notice, SCRIPT: "\n".join(lines) + "\n", **server.files}
