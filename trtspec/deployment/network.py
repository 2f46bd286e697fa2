# SPDX-License-Identifier: Apache-2.0
"""Bind addresses: validation, and warnings about exposure to the network."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address

from trtspec.core.errors import DeployError
from trtspec.core.ports import LOOPBACK

HINT = f"use an IPv4 address of this machine: {LOOPBACK} for local clients only, 0.0.0.0 for all interfaces"


def exposure_warning(host: str) -> str:
    """Return a warning about what a server at this address exposes, "" on loopback; raise DeployError if invalid."""
    try:
        address = IPv4Address(host)
    except ValueError:
        raise DeployError(f"{host!r} is not a bind address", hint=HINT) from None
    if address.is_multicast or address.is_reserved:
        raise DeployError(f"{host} is not a bindable address", hint=HINT)
    if address.is_loopback:
        return ""
    return (
        f"the server has no authentication: any client that can reach {host} can send requests and read /metrics; "
        "put a proxy in front of it"
    )


def gateway_exposure_warning(host: str, *, has_keys: bool) -> str:
    """Return the warning for an OpenAI gateway at this address, "" on loopback; raise like `exposure_warning`."""
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
            raise DeployError(f"cannot bind {host}: {error.strerror}", hint=HINT) from None


def client_host(host: str) -> str:
    """Return an address by which this machine reaches a server bound to `host`."""
    return LOOPBACK if host == "0.0.0.0" else host
