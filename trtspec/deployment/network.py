# SPDX-License-Identifier: Apache-2.0
"""At which address of this machine a server listens, and who reaches it there."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address

from trtspec.core.errors import DeployError
from trtspec.core.ports import LOOPBACK

HINT = f"an IPv4 address of this machine: {LOOPBACK} for itself alone, 0.0.0.0 for all of its networks"


def exposure(host: str) -> str:
    """Return what a server at an address exposes, "" on loopback; DeployError for what is no address to listen at."""
    try:
        address = IPv4Address(host)
    except ValueError:
        raise DeployError(f"{host!r} is no address to listen at", hint=HINT) from None
    if address.is_multicast or address.is_reserved:
        raise DeployError(f"nobody can listen at {host}", hint=HINT)
    if address.is_loopback:
        return ""
    return (
        f"the server has no authentication: whoever reaches {host} can send it requests and read /metrics; "
        "put a proxy in front of it"
    )


def gateway_exposure(host: str, *, has_keys: bool) -> str:
    """Return what an entry for OpenAI's clients at an address exposes, "" on loopback; DeployError as `exposure`."""
    if not exposure(host):
        return ""
    who = (
        "its keys and texts are not encrypted" if has_keys else "it has no keys (TRTSPEC_OPENAI_KEYS) and no encryption"
    )
    return (
        f"the entry for OpenAI's clients is open to whoever reaches {host}: {who}; put a proxy with TLS in front of it"
    )


def check_own(host: str) -> None:
    """Raise DeployError for an address that is not one of this machine's."""
    exposure(host)
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as error:
            raise DeployError(f"no server can listen at {host}: {error.strerror}", hint=HINT) from None


def reachable(host: str) -> str:
    """Return an address by which this machine reaches a server that listens at `host`."""
    return LOOPBACK if host == "0.0.0.0" else host
