# SPDX-License-Identifier: Apache-2.0
"""The HTTP proxy in front of tritonserver: it validates requests and forwards them to the server's Unix sockets.

This module has the proxy's command line and its constants. It imports none of the proxy's dependencies.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Mapping
from pathlib import Path

PROXY_SOCKET = "front.sock"  # for the supervisor's health checks, independent of the proxy's ports
PORT_IN_USE = errno.EADDRINUSE  # exit status if a port is in use
STARTED_MESSAGE = "listening"
UNAVAILABLE_MESSAGE = "the server is not accepting requests: it is starting, restarting or stopping"


# The proxy's ports, by the name of the server's socket behind each, and the forwarded methods.
PROXY_PORTS: Mapping[str, tuple[bytes, ...]] = {"http": (b"GET", b"POST"), "metrics": (b"GET",)}


def proxy_command(directory: Path, host: str, ports: Mapping[str, int]) -> list[str]:
    """Return the argv of the proxy for the server whose sockets are in `directory`."""
    safe_path = ["-P"] if sys.version_info >= (3, 11) else []  # do not import from the current directory
    listening = [f"--{name}={ports[name]}" for name in PROXY_PORTS]
    return [sys.executable, *safe_path, "-m", "trtspec.serving.front", str(directory), f"--host={host}", *listening]
