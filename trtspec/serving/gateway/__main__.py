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
from trtspec.serving.gateway.connections import (
    ConnectionLimits,
    LimitedConnection,
    RepeatedWarnings,
    max_connections,
)
from trtspec.serving.gateway.metrics import GAUGES
from trtspec.serving.gateway.process_pool import ProcessPool, listen
from trtspec.serving.gateway.router import remove_router_stats
from trtspec.serving.gateway.shared_state import SharedState

GC_ALLOCATIONS = 20_000  # between collections; a token's event allocates some objects, without cycles
SWITCH_S = 0.0005  # time for which another thread may keep the event loop from running
ERROR_LEAD_S = 1.0  # open streams receive their error this long before the drain ends, while the model still runs


def serve(config: GatewayConfig) -> int:
    """Run the gateway until SIGTERM or SIGINT and return the exit code.

    Raises TrtspecError if the tokenizer or the API keys cannot be read, or if the address is not available.
    """
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").addFilter(RepeatedWarnings())
    keys, rules = load_keys(config.keys_file), host_rules(config.host, allowed_hosts())
    shared = SharedState(config.processes, max(1, len(keys)))

    def serve_one(index: int, listener: socket.socket) -> None:
        shared.index = index
        server = uvicorn.Server(server_config(make_app(config, keys, rules, shared), config))
        gc.freeze()  # collections then only look at what requests allocate, not at all modules
        gc.set_threshold(GC_ALLOCATIONS)
        sys.setswitchinterval(SWITCH_S)
        server.run(sockets=[listener])

    if config.routes_file:
        remove_router_stats(Path(config.routes_file))
    listeners = listen(config.host, config.port, config.processes)
    print(f"listening at http://{config.host}:{config.port}", file=sys.stderr, flush=True)  # noqa: T201
    if config.processes > 1:
        return ProcessPool(listeners, serve_one, lambda index: shared.retire(index, GAUGES)).run()
    serve_one(0, listeners[0])
    return 0


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


def main() -> int:
    """Run the gateway until it is stopped; return the exit code."""
    parser = argparse.ArgumentParser("python -m trtspec.serving.gateway", description="OpenAI-compatible gateway")
    parser.add_argument("--config", type=Path, required=True, help="configuration file, as `trtspec deploy` writes it")
    try:
        return serve(load_config(parser.parse_args().config))
    except TrtspecError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
