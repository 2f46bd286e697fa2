# SPDX-License-Identifier: Apache-2.0
"""A real tritonserver for the tests of one module, with test doubles of backends that CI machines lack."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from trtspec.core.errors import DeployError
from trtspec.core.ports import free_ports
from trtspec.core.processes import die_with_parent, start_time, stop_session
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.server import (
    EXIT_TIMEOUT_S,
    ServerPorts,
    TritonServer,
    find_server,
    remove_shared_memory,
    server_command,
)

DOUBLES = Path(__file__).parents[2] / "doubles"
LOADING_S = 120.0


@dataclass(frozen=True)
class Served:
    """A running server; `log` is its output."""

    client: Client
    grpc: int
    log: Path
    metrics: int


def start_server(server: TritonServer, command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a server as leader of its own session, logging to `log`; it dies with this process."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **server.environment},
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509  two system calls, no lock
        )


@contextmanager
def serving(
    root: Path, models: Path, *, backend: str = "", environment: dict[str, str] | None = None, ends_itself: bool = False
) -> Iterator[Served]:
    """Serve every model below `models` with the double of a `backend`; skip the test if no server is installed.

    With `ends_itself` the server is stopped gracefully; otherwise it is killed, which saves seconds.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(root / "cache"))
        try:
            server = find_server()
        except DeployError as error:
            pytest.skip(str(error))
    server = replace(server, environment={**server.environment, **(environment or {})})
    if backend:
        if server.backends is None:
            pytest.skip("this server's backends are elsewhere")
        shutil.copytree(server.backends, root / "backends")
        shutil.copytree(DOUBLES / backend, root / "backends" / backend, ignore=shutil.ignore_patterns("__pycache__"))
        server = replace(server, backends=root / "backends")
    ports, prefix = ServerPorts(*free_ports(3)), f"trtspec-test-{secrets.token_hex(8)}"
    command = server_command(server, models, ports, model="*", shm_prefix=prefix)
    log = root / f"server-{ports.http}.log"  # a module may have several servers
    process = start_server(server, command, log)
    started = start_time(process.pid)  # so that the children of a dead server are still found
    client = Client(f"http://127.0.0.1:{ports.http}")
    try:
        deadline = time.monotonic() + LOADING_S
        while not client.is_ready() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        errors = [line for line in log.read_text().splitlines() if line.startswith(("E", "error"))]
        assert client.is_ready(), "\n".join(errors)
        yield Served(client, ports.grpc, log, ports.metrics)
        assert process.poll() is None, "\n".join(["the server died:", log.read_text(errors="replace")[-4000:]])
    finally:
        stop_session(process.pid, started, EXIT_TIMEOUT_S + 5 if ends_itself else 0)
        process.wait(10)
        remove_shared_memory(prefix)
