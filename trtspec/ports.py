# SPDX-License-Identifier: Apache-2.0
"""Ports of this machine. `socket` is imported where one is looked at: commands only name an address."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

LOOPBACK = "127.0.0.1"


LOWEST, EPHEMERAL = 10_000, 32_768  # Linux takes ports of outgoing connections from here on, unless told otherwise
TRIES = 20


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Return different ports of an address of this machine that nobody listens on, held while others are chosen.

    They are drawn below those that the system gives to outgoing connections: one of these might take a port before the
    server that it is meant for.
    """
    import socket

    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            _bind(each, host)
        return [each.getsockname()[1] for each in sockets]


def _bind(unbound: socket.socket, host: str) -> None:
    """Bind a socket to a port by chance; to any free one where those tried are all taken."""
    chance = random.SystemRandom()  # processes that begin alike choose differently
    for port in [*(chance.randrange(LOWEST, EPHEMERAL) for _ in range(TRIES)), 0]:
        try:
            unbound.bind((host, port))
        except OSError:
            if not port:
                raise
        else:
            return


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
