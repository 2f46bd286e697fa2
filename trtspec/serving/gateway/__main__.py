# SPDX-License-Identifier: Apache-2.0
"""The gateway's process: `python -m trtspec.serving.gateway --config FILE`."""

from __future__ import annotations

import argparse
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from trtspec.core.errors import TrtspecError
from trtspec.core.http_hosts import allowed_hosts, host_rules
from trtspec.serving.gateway.admission import load_keys
from trtspec.serving.gateway.app import make_app
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.connections import HEAD_S, max_connections, with_limits

BACKLOG = 2048
ERROR_LEAD_S = 1.0  # open streams get their error this long before the drain ends, while the model still runs
SEND_BUFFER_BYTES = 64 << 10  # small, so that a client that stops reading is noticed early


def serve(config: GatewayConfig) -> None:
    """Serve until SIGTERM or SIGINT; raises TrtspecError if the gateway cannot start."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    app = make_app(config, load_keys(config.keys_file), host_rules(config.host, allowed_hosts()))
    listener = _listen(config.host, config.port)
    server = uvicorn.Server(server_config(app, config))
    print(f"listening at http://{config.host}:{config.port}", file=sys.stderr, flush=True)  # noqa: T201
    server.run(sockets=[listener])


def server_config(app: Any, config: GatewayConfig, head_s: float = HEAD_S) -> uvicorn.Config:
    """Return the uvicorn configuration; the head of a request may take `head_s`."""
    return uvicorn.Config(
        app,
        http=with_limits(AutoHTTPProtocol, max_connections(), head_s),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=max(1, round(config.limits.drain_s - ERROR_LEAD_S)),
        timeout_keep_alive=75,
    )


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise TrtspecError(f"cannot listen: {error.strerror}", where=f"{host}:{port}") from None
    listener.listen(BACKLOG)
    return listener


def main() -> int:
    """Run the gateway until it is stopped; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m trtspec.serving.gateway", description="OpenAI-compatible gateway for Triton"
    )
    parser.add_argument(
        "--config", type=Path, required=True, help="configuration written by trtspec.serving.gateway.command"
    )
    arguments = parser.parse_args()
    try:
        from trtspec.serving.gateway.config import load_config

        serve(load_config(arguments.config))
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
