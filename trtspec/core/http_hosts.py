# SPDX-License-Identifier: Apache-2.0
"""Validation of the Host and Origin headers that HTTP servers on this machine receive; prevents DNS rebinding.

In a DNS rebinding attack, a web page's host name resolves to this machine. The browser then treats the page as
same-origin with the local server, so the page can send any request and read the response. The Host header of such a
request contains the page's host name and is rejected.
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
    """HTTP status code and message of a rejected request."""

    status: int
    message: str


@dataclass(frozen=True)
class HostRules:
    """The host names that a server accepts in Host headers.

    Attributes:
        names: accepted names and addresses, in lower case; IPv6 addresses in brackets.
        listed: the user's additions to `names`; pages of these hosts may also send requests through a proxy.
        addresses: if True, every IP address is accepted; a rebinding request always has a name.
        any_name: if True, every name is accepted.
    """

    names: frozenset[str]
    listed: frozenset[str] = frozenset()
    addresses: bool = False
    any_name: bool = False

    def refusal(self, hosts: Sequence[str], origins: Sequence[str]) -> HostRefusal | None:
        """Return the rejection of a request with these Host and Origin headers, or None if the request is accepted.

        `hosts` and `origins` contain the values of all headers of that name, decoded as Latin-1. Each Origin must match
        the request's Host, including the port, or be a host that the user listed. The port of the Host is not compared
        with the server's port, because tunnels and published container ports change it.
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
    """Return the rules for a server bound to the address `bind`; `allowed` lists additional host names.

    A loopback server accepts only the loopback names, `bind` and `allowed`. Any other server also accepts every IP
    address, because probes and scrapers use a pod's address, and every name unless `allowed` is non-empty.
    """
    listed = frozenset(name.lower() for name in allowed)
    own = frozenset({f"[{bind}]" if ":" in bind else bind.lower()})
    elsewhere = not is_loopback(bind)
    return HostRules(LOOPBACK_NAMES | own | listed, listed, addresses=elsewhere, any_name=elsewhere and not listed)


def allowed_hosts(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the hosts listed in the comma-separated environment variable TRTSPEC_ALLOWED_HOSTS.

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
    """Return True if a server bound to the address `bind` is reachable only from this machine."""
    return bind.lower() == "localhost" or ((address := _address(bind)) is not None and address.is_loopback)


def _split(authority: str) -> tuple[str, str] | None:
    """Split an authority into its lower-case name and its port ("" if absent); return None if it is malformed."""
    match = AUTHORITY.fullmatch(authority)
    return (match[1].lower(), match[2] or "") if match else None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parse an IP address; return None for any other text."""
    from ipaddress import ip_address

    try:
        return ip_address(text)
    except ValueError:
        return None
