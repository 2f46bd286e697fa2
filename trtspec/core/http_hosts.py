# SPDX-License-Identifier: Apache-2.0
"""Validation of Host and Origin headers by HTTP servers on this machine.

A browser treats a web page whose host name resolves to this machine (DNS rebinding) as same-origin with the server, so
the page can send any request and read the response. Such a request has the page's name as its Host and is rejected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

VARIABLE = "TRTSPEC_ALLOWED_HOSTS"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
BAD_REQUEST, FORBIDDEN, MISDIRECTED = 400, 403, 421
MAX_SHOWN_CHARS = 64
AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
ORIGIN = re.compile(r"(https?)://([^/?#@]+)", re.IGNORECASE)
DEFAULT_PORTS = {"http": "80", "https": "443"}


@dataclass(frozen=True)
class HostRefusal:
    """The HTTP status and message of a rejected request."""

    status: int
    message: str


@dataclass(frozen=True)
class HostRules:
    """The hosts that a server accepts.

    Attributes:
        names: accepted names and addresses, in lower case, IPv6 addresses in brackets.
        listed: the user's additions to `names`; pages of these hosts may send requests through a proxy.
        addresses: accept every IP address; a rebinding request has a name.
        any_name: accept every name.
    """

    names: frozenset[str]
    listed: frozenset[str] = frozenset()
    addresses: bool = False
    any_name: bool = False

    def refusal(self, hosts: Sequence[str], origins: Sequence[str]) -> HostRefusal | None:
        """Return why a request with these Host and Origin headers is rejected, or None if it is accepted.

        Each argument has the values of all headers of that name, decoded as Latin-1. An Origin must be the request's
        own Host or a host that the user allowed. Ports are compared only between the two, because a tunnel or a
        container's published port changes the port of the Host.
        """
        if len(hosts) != 1 or (host := _split(hosts[0])) is None:
            return HostRefusal(
                BAD_REQUEST, "the request needs exactly one Host header with a name and an optional port"
            )
        if not (host[0] in self.names or self.any_name or (self.addresses and _address(host[0].strip("[]")))):
            hint = f"to allow it, start the server with {VARIABLE}={host[0][:MAX_SHOWN_CHARS]}"
            return HostRefusal(MISDIRECTED, f"host {host[0][:MAX_SHOWN_CHARS]} is not served here; {hint}")
        if any(not self._accepts_origin(origin, host) for origin in origins):
            return HostRefusal(FORBIDDEN, "cross-origin requests are not allowed")
        return None

    def _accepts_origin(self, origin: str, host: tuple[str, str]) -> bool:
        match = ORIGIN.fullmatch(origin)
        found = _split(match[2]) if match else None
        if match is None or found is None:
            return False
        default = DEFAULT_PORTS[match[1].lower()]
        return found[0] in self.listed or (found[0], found[1] or default) == (host[0], host[1] or default)


def host_rules(bind: str, allowed: Iterable[str] = ()) -> HostRules:
    """Return the rules for a server bound to the host `bind`; `allowed` has additional names.

    On loopback only the loopback names, `bind` itself and `allowed` are accepted. Otherwise every IP address is
    accepted too, because probes and scrapers use a pod's address, and every name unless `allowed` is non-empty.
    """
    listed = frozenset(name.lower() for name in allowed)
    own = frozenset({f"[{bind}]" if ":" in bind else bind.lower()})
    elsewhere = not is_loopback(bind)
    return HostRules(LOOPBACK_NAMES | own | listed, listed, addresses=elsewhere, any_name=elsewhere and not listed)


def allowed_hosts(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the hosts in the comma-separated environment variable TRTSPEC_ALLOWED_HOSTS.

    Raises TrtspecError for an item that is not a name or an address without a port.
    """
    names = [name.strip() for name in environment.get(VARIABLE, "").split(",") if name.strip()]
    for name in names:
        found = _split(name)
        if found is None or found[1]:
            hint = f"give names and addresses without ports, for example {VARIABLE}=api.example.com,10.0.0.5"
            raise TrtspecError(f"{name[:MAX_SHOWN_CHARS]} is not a host", where=VARIABLE, hint=hint)
    return tuple(names)


def is_loopback(bind: str) -> bool:
    """Return whether a server bound to the host `bind` is reachable from this machine only."""
    return bind.lower() == "localhost" or ((address := _address(bind)) is not None and address.is_loopback)


def _split(authority: str) -> tuple[str, str] | None:
    """Return name and port ("" if absent) of an authority, or None if it is malformed."""
    match = AUTHORITY.fullmatch(authority)
    return (match[1].lower(), match[2] or "") if match else None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Return an IP address, or None for any other text."""
    from ipaddress import ip_address

    try:
        return ip_address(text)
    except ValueError:
        return None
