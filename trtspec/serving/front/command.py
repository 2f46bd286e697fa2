# SPDX-License-Identifier: Apache-2.0
"""How a front is started, and the sockets that it and its server use. Imports nothing that the front itself needs."""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.serving.triton.names import SOCKETS

FRONT_SOCKET = "front.sock"  # where the front answers the supervisor, whatever its ports are busy with
PORT_IN_USE = errno.EADDRINUSE  # the exit status of a front that cannot listen
STARTED = "it listens"
DOWN = "the server does not take requests now: it is starting, restarting or ending"


@dataclass(frozen=True)
class Door:
    """A port of the front: the server's socket behind it, and the methods that are forwarded."""

    socket: str
    methods: tuple[bytes, ...]


DOORS: Mapping[str, Door] = {
    "http": Door(SOCKETS["http"], (b"GET", b"POST")),
    "metrics": Door(SOCKETS["metrics"], (b"GET",)),
}


def front_command(directory: Path, host: str, ports: Mapping[str, int]) -> list[str]:
    """Return the argv of the front of the server whose sockets are in a directory."""
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []  # nothing is imported from the current directory
    listening = [f"--{name}={ports[name]}" for name in DOORS]
    return [sys.executable, *safe_path, "-m", "trtspec.serving.front", str(directory), f"--host={host}", *listening]
