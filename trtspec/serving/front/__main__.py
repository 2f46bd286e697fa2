# SPDX-License-Identifier: Apache-2.0
"""Run the HTTP proxy of a tritonserver: `python3 -m trtspec.serving.front DIRECTORY --host HOST ...`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
from argparse import ArgumentParser
from collections.abc import Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.http_hosts import allowed_hosts, host_rules
from trtspec.serving.front import PORT_IN_USE, PROXY_PORTS, PROXY_SOCKET, STARTED_MESSAGE
from trtspec.serving.front.proxy import ClientConnection, HealthConnection, ProxyState
from trtspec.serving.triton.names import DISCONNECTS, SOCKETS

LOG = logging.getLogger("front")
MOST = 1024
OTHER_FILES = 64
BACKLOG = 1024
FLUSH_S = 5.0  # for clients that still read a response at shutdown


def main() -> int:
    """Run the proxy; return its exit status: 0, 1 if it cannot start, or PORT_IN_USE if a port is not available."""
    parser = ArgumentParser(prog="trtspec.serving.front")
    parser.add_argument("directory")
    parser.add_argument("--host", required=True)
    for name in PROXY_PORTS:
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    logging.basicConfig(format="front: %(message)s", level=logging.INFO)
    try:
        rules = host_rules(options.host, allowed_hosts())
        os.chdir(options.directory)  # keeps the socket paths short
        listening = {}
        for name in PROXY_PORTS:
            if (found := _listen(options.host, getattr(options, name), name)) is None:
                return PORT_IN_USE
            listening[name] = found
    except (TrtspecError, OSError) as error:
        LOG.error("cannot start: %s", error)
        return 1
    departures = Path(DISCONNECTS)
    front = ProxyState(rules, _most_connections(), departures=departures if departures.is_dir() else None)
    _run(_serve(front, listening))
    return 0


async def _serve(front: ProxyState, listening: dict[str, socket.socket]) -> None:
    """Serve until SIGTERM or SIGINT, then wait up to FLUSH_S for responses in progress."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, over.set)
    checks = loop.create_task(front.check())
    servers = []
    for name, methods in PROXY_PORTS.items():
        connection = partial(ClientConnection, front, SOCKETS[name], methods)
        servers.append(await loop.create_server(connection, sock=listening[name], backlog=BACKLOG))
    servers.append(await loop.create_unix_server(partial(HealthConnection, front), PROXY_SOCKET))
    gc.freeze()
    LOG.info(STARTED_MESSAGE)
    await over.wait()  # unbounded: runs until SIGTERM or SIGINT
    for server in servers:
        server.close()
    deadline = loop.time() + FLUSH_S
    while loop.time() < deadline and any(each.is_responding for each in front.clients):
        await asyncio.sleep(0.02)
    checks.cancel()


def _listen(host: str, port: int, name: str) -> socket.socket | None:
    """Return a listening socket; log an error and return None if the port is unavailable."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listening.setblocking(False)
    try:
        listening.bind((host, port))
        listening.listen(BACKLOG)
    except OSError as error:
        LOG.error("cannot listen on %s port %d of %s: %s", name, port, host, error.strerror)
        listening.close()
        return None
    return listening


def _most_connections() -> int:
    """Return the maximum number of client connections; raises the limit of file descriptors if possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * MOST + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, (soft - OTHER_FILES) // 2))


def _run(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in a new event loop, on uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


if __name__ == "__main__":
    sys.exit(main())
