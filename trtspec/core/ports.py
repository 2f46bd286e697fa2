# SPDX-License-Identifier: Apache-2.0
"""Allocation of TCP ports on this machine, and lookup of the processes that use them.

`socket` is imported lazily because most commands only handle addresses.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.core.processes import all_processes, program_name

if TYPE_CHECKING:
    import socket

LOOPBACK = "127.0.0.1"
LISTENS = "0A"  # state of a listening socket in /proc/net/tcp, see proc_pid_net(5)
ANY = {bytes(4), bytes(16)}
MAPPED = bytes(10) + b"\xff\xff"  # prefix of an IPv4-mapped IPv6 address

LOWEST, EPHEMERAL = 10_000, 32_768  # default start of Linux's ephemeral port range
TRIES = 20


def free_ports(count: int, host: str = LOOPBACK) -> list[int]:
    """Return `count` distinct ports that are free on the local address `host`.

    The ports are below Linux's ephemeral range where possible; from that range, an outgoing connection could take a
    port before the server binds it.
    """
    import socket

    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            _bind(each, host)
        return [each.getsockname()[1] for each in sockets]


def _bind(unbound: socket.socket, host: str) -> None:
    """Bind a socket to a random port below the ephemeral range, or to any free port after TRIES failed attempts."""
    chance = random.SystemRandom()  # unseeded, so that concurrent processes choose different ports
    for port in [*(chance.randrange(LOWEST, EPHEMERAL) for _ in range(TRIES)), 0]:
        try:
            unbound.bind((host, port))
        except OSError:
            if not port:
                raise
        else:
            return


def bind_error(port: int, host: str = LOOPBACK) -> OSError | None:
    """Return the error that this process gets when it binds a port, or None if the port can be bound."""
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error
    return None


def bind_refusal(port: int, host: str = LOOPBACK) -> str:
    """Return the reason why a server cannot bind a port, such as "is in use by NAME (process PID)"; "" if it can."""
    if (error := bind_error(port, host)) is None:
        return ""
    if error.errno != errno.EADDRINUSE:
        return f"cannot be used: {error.strerror}"
    return f"is in use{describe_owner(listening_sockets(port, host))}"


def describe_owner(sockets: Iterable[str]) -> str:
    """Return " by NAME (process PID)" for the process that owns one of the socket inodes; "" if none is visible."""
    wanted = {*sockets}
    for each in all_processes() if wanted else ():
        if wanted & process_sockets(each.pid):
            return f" by {program_name(each.pid) or 'a process'} (process {each.pid})"
    return ""


def listening_sockets(port: int, host: str = LOOPBACK) -> set[str]:
    """Return the inodes of the listening sockets that make `port` of the local IPv4 address `host` unavailable."""
    import socket

    own = socket.inet_aton(host)
    found = set()
    for table in ("tcp", "tcp6"):
        for address, number, inode in _listeners(Path(f"/proc/self/net/{table}")):
            if number == port and (address in ANY or own in ANY or address.removeprefix(MAPPED) == own):
                found.add(inode)
    return found


def process_sockets(pid: int) -> set[str]:
    """Return the inodes of a process's sockets; empty if this user may not inspect the process."""
    found = set()
    with suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                link = os.readlink(entry.path)
                if link.startswith("socket:["):
                    found.add(link[len("socket:[") : -1])
    return found


def _listeners(table: Path) -> Iterator[tuple[bytes, int, str]]:
    """Yield the address, port and inode of each listening socket in a table in the format of proc_pid_net(5)."""
    try:
        lines = table.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if len(fields) > 9 and fields[3] == LISTENS:
            address, _, port = fields[1].partition(":")
            words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
            yield b"".join(words), int(port, 16), fields[9]
