# SPDX-License-Identifier: Apache-2.0
"""Debian's docker-registry (Distribution 2.8), unpacked by `make registry`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

UNPACKED = Path(os.environ.get("ENGINES") or ".").absolute() / ".registry" / "usr" / "bin" / "docker-registry"
CONFIG = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def registry_program() -> str:
    """Return the path of docker-registry; skip the test if it is not available."""
    if UNPACKED.is_file():
        return str(UNPACKED)
    return shutil.which("docker-registry") or pytest.skip("docker-registry is not installed (make registry)")


@contextmanager
def running_docker_registry(root: Path) -> Iterator[str]:
    """Run docker-registry with its data below `root`; provide HOST:PORT."""
    program, port = registry_program(), _free_port()
    root.mkdir(parents=True, exist_ok=True)
    config = root / "config.yml"
    config.write_text(CONFIG.format(root=root / "data", port=port))
    with (root / "log").open("ab") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        _wait_until_listening(process, port, root / "log")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(30)


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(200):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError("docker-registry did not start within 10 s")
