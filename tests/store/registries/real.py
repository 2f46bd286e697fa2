# SPDX-License-Identifier: Apache-2.0
"""Debian's docker-registry (Distribution 2.8) and skopeo, unpacked by `make registry`."""

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

UNPACKED = Path(os.environ.get("ENGINES", Path(__file__).parents[3])) / ".registry" / "usr"
CONFIG = """version: 0.1
log: {{level: error}}
storage: {{filesystem: {{rootdirectory: {root}}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


def tool(name: str) -> str:
    """Return the path of a program; skip the test if it is not available."""
    unpacked = UNPACKED / "bin" / name
    found = str(unpacked) if unpacked.is_file() else shutil.which(name)
    return found or pytest.skip(f"no {name} here: make registry")


def skopeo(*arguments: str) -> None:
    """Run skopeo without a policy for signatures; fail the test on an error."""
    libraries = ":".join(map(str, [*UNPACKED.glob("lib/*-linux-gnu"), *UNPACKED.parent.glob("lib/*-linux-gnu")]))
    done = subprocess.run(
        [tool("skopeo"), "--insecure-policy", *arguments],
        env={**os.environ, "LD_LIBRARY_PATH": libraries},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@contextmanager
def running_docker_registry(root: Path) -> Iterator[str]:
    """Run docker-registry with its data below `root`; provide HOST:PORT. Its data is deleted at the end."""
    program, port = tool("docker-registry"), free_port()
    root.mkdir(parents=True, exist_ok=True)
    config = root / "config.yml"
    config.write_text(CONFIG.format(root=root / "data", port=port))
    with (root / "log").open("ab") as log:
        process = subprocess.Popen([program, "serve", str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        wait_until_listening(process, port, root / "log")
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(30)
        shutil.rmtree(root / "data", ignore_errors=True)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def wait_until_listening(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    for _ in range(200):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    raise AssertionError("the server did not start within 10 s")
