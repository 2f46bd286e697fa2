# SPDX-License-Identifier: Apache-2.0
"""Deployment options common to all targets, and bind addresses: validation and warnings about exposure."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, TypeAlias

from trtspec.core.errors import DeployError
from trtspec.core.ports import LOOPBACK

if TYPE_CHECKING:
    from trtspec.store.registries.description import RegistrySource

BIND_HINT = f"use an IPv4 address of this machine: {LOOPBACK} for local clients only, 0.0.0.0 for all interfaces"


def exposure_warning(host: str) -> str:
    """Return a warning if a server bound to `host` is reachable from other machines, else "".

    Raises DeployError if `host` is not a bindable IPv4 address.
    """
    try:
        address = IPv4Address(host)
    except ValueError:
        raise DeployError(f"{host!r} is not a bind address", hint=BIND_HINT) from None
    if address.is_multicast or address.is_reserved:
        raise DeployError(f"{host} is not a bindable address", hint=BIND_HINT)
    if address.is_loopback:
        return ""
    return (
        f"the server has no authentication: any client that can reach {host} can send requests and read /metrics; "
        "put a proxy in front of it"
    )


def gateway_exposure_warning(host: str, *, has_keys: bool) -> str:
    """Return a warning if an OpenAI gateway bound to `host` is reachable from other machines, else "".

    Raises like `exposure_warning`.
    """
    if not exposure_warning(host):
        return ""
    who = "keys and texts are not encrypted" if has_keys else "it has no keys (TRTSPEC_OPENAI_KEYS) and no encryption"
    return f"the OpenAI gateway is open to any client that can reach {host}: {who}; put a proxy with TLS in front of it"


def check_bindable(host: str) -> None:
    """Raise DeployError if the address does not belong to this machine."""
    exposure_warning(host)
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise DeployError(f"cannot bind {host}: {error.strerror}", hint=BIND_HINT) from None


def client_host(host: str) -> str:
    """Return an address by which this machine reaches a server bound to `host`."""
    return LOOPBACK if host == "0.0.0.0" else host


OnEvent: TypeAlias = Callable[[str, str], None]  # called with (state, description) to report progress
BeforeLive: TypeAlias = Callable[[str], None]  # called with the address of a server that answered; raises to reject it

DEFAULT_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002, "openai": 9000}  # as in Triton's containers
PORTS = tuple(DEFAULT_PORTS)


@dataclass(frozen=True)
class DeployOptions:
    """Options for serving an artifact.

    Attributes:
        name: name of the deployment; defaults to the recipe's name.
        host: bind address of the server.
        openai_host: bind address of the OpenAI gateway; `host` if empty.
        ports: requested ports by name, of PORTS; the target chooses the others.
        timeout_s: time limit in seconds until the first answer.
        drain_s: seconds for open requests at shutdown, or None for the target's default.
        skip_gates: gates that are not evaluated.
        manifest: the SHA-256 that the artifact's manifest must have; "" for any.
        trusted_report: the SHA-256 of a report in the artifact that decides its gates; "" for none.
        shares: percentages of requests for a new revision, in order; empty for the recipe's.
        shadow: percentage of the other requests to mirror to a new revision, or None for the recipe's.
        wait_warm: wait for a first text from each endpoint; a new revision has served texts before it is live.
        settings: target-specific settings by name.
        source: place of the artifact in a registry, from which the servers fetch it; None for a local directory.
        before_live: called once the server has answered; an exception ends the deployment.
    """

    name: str | None = None
    host: str = LOOPBACK
    openai_host: str = ""
    ports: Mapping[str, int] = field(default_factory=dict)
    detach: bool = False
    timeout_s: float = 300.0
    drain_s: int | None = None
    skip_gates: tuple[str, ...] = ()
    manifest: str = ""
    trusted_report: str = ""
    shares: tuple[int, ...] = ()
    shadow: int | None = None
    wait_warm: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    source: RegistrySource | None = None
    on_event: OnEvent = lambda state, what: None
    before_live: BeforeLive | None = None

    def bind_address(self, port_name: str) -> str:
        return (self.openai_host or self.host) if port_name == "openai" else self.host
