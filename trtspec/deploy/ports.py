# SPDX-License-Identifier: Apache-2.0
"""The ports of a deployment on this machine: those that were asked for, and free ones."""

from __future__ import annotations

from trtspec.deploy.address import check_own
from trtspec.deploy.options import PORTS, DeployOptions
from trtspec.errors import DeployError
from trtspec.ports import free_ports, port_in_use
from trtspec.triton.server import Ports


def choose_ports(options: DeployOptions) -> tuple[Ports, int]:
    """Return the server's ports and the entry's: those wanted, which have to be free, and free ones for the rest."""
    host, given = options.host, [*options.ports.values()]
    check_own(host)
    for name, port in options.ports.items():
        if not 0 < port < 65536 or given.count(port) > 1:
            raise DeployError(f"{name} port {port} cannot be used", hint="different ports from 1 to 65535")
        if port_in_use(port, host):
            raise DeployError(f"{name} port {port} is in use", hint="choose another, or none and a free one is found")
    free = [port for port in free_ports(2 * len(PORTS), host) if port not in given]
    http, grpc, metrics, openai = (options.ports.get(name) or free.pop() for name in PORTS)
    return Ports(http, grpc, metrics, host), openai
