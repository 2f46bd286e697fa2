# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine. `socket` is imported where one is looked at: commands only name an address."""

from __future__ import annotations

from contextlib import ExitStack

LOOPBACK = "127.0.0.1"


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Return different ports of an address of this machine that nobody listens on, held while others are chosen."""
    import socket

    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind((host, 0))
        return [each.getsockname()[1] for each in sockets]


def port_in_use(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a port of an address of this machine is taken, asked as a server would: by binding it."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False
