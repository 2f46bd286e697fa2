# SPDX-License-Identifier: Apache-2.0
"""Command line of the gateway process: `python -m trtspec.serving.gateway --config FILE`."""

from __future__ import annotations

import argparse
import gc
import logging
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn

from trtspec.core.errors import TrtspecError
from trtspec.core.http_hosts import allowed_hosts, host_rules
from trtspec.serving.gateway.admission import load_keys
from trtspec.serving.gateway.app import make_app
from trtspec.serving.gateway.config import GatewayConfig, load_config
from trtspec.serving.gateway.connections import ConnectionLimits, LimitedConnection, max_connections

BACKLOG = 2048
ERROR_LEAD_S = 1.0  # open streams receive their error this long before the drain ends, while the model still runs
SEND_BUFFER_BYTES = 64 << 10  # small, to detect early that a client stops reading


def serve(config: GatewayConfig) -> None:
    """Run the gateway until SIGTERM or SIGINT.

    Raises TrtspecError if the tokenizer or the API keys cannot be read, or if the address is not available.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    app = make_app(config, load_keys(config.keys_file), host_rules(config.host, allowed_hosts()))
    listener = _listen(config.host, config.port)
    server = uvicorn.Server(server_config(app, config))
    print(f"listening at http://{config.host}:{config.port}", file=sys.stderr, flush=True)  # noqa: T201
    gc.freeze()  # collections then only look at what requests allocate, not at all modules
    server.run(sockets=[listener])


def server_config(app: Any, config: GatewayConfig) -> uvicorn.Config:
    protocol: Any = partial(LimitedConnection, ConnectionLimits(max_connections()))  # uvicorn only calls it
    return uvicorn.Config(
        app,
        http=protocol,
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
    parser = argparse.ArgumentParser("python -m trtspec.serving.gateway", description="OpenAI-compatible gateway")
    parser.add_argument("--config", type=Path, required=True, help="configuration file, as `trtspec deploy` writes it")
    try:
        serve(load_config(parser.parse_args().config))
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
