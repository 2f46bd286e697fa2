# SPDX-License-Identifier: Apache-2.0
"""The socket of a token channel: tokens pass from the model's process to the client's without tritonserver.

It is a Unix socket in Linux's abstract namespace, so no file is left behind and another network namespace, such as
another container's, does not have it. Every user of the machine can list such names. Both ends therefore check that the
other process belongs to the same user, or to root.
"""

from __future__ import annotations

import os
import socket
import struct

CREDENTIALS = struct.Struct("3i")  # Linux's `struct ucred`: process, user and group
ROOT_UID = 0
SEND_BUFFER_BYTES = 1 << 20
VALUE_BYTES = 4
HEAD_LEN = 2  # the number of a stream and the number of its tokens


def read_values(raw: bytes | bytearray) -> tuple[dict[int, list[int]], int]:
    """Return the tokens of each stream in a channel's values, and the number of bytes that these take.

    `raw` has for each stream its number, the number of its tokens and the tokens, all int32. Its end may be incomplete.
    A stream that occurs several times, because the reader is slower than the engine, has its tokens joined.
    """
    values = memoryview(raw)[: len(raw) // VALUE_BYTES * VALUE_BYTES].cast("i").tolist()
    found: dict[int, list[int]] = {}
    at = 0
    while (begin := at + HEAD_LEN) <= len(values) and (end := begin + values[at + 1]) <= len(values):
        stream = values[at]
        if stream in found:
            found[stream] += values[begin:end]
        else:
            found[stream] = values[begin:end]
        at = max(begin, end)
    return found, VALUE_BYTES * at


def listen(name: str) -> socket.socket | None:
    """Return a listening socket that does not block, or None if the system has no abstract sockets."""
    listener = _unix_socket()
    try:
        listener.bind(_address(name))
        listener.listen(1)
    except OSError:
        listener.close()
        return None
    return listener


def accept(listener: socket.socket) -> socket.socket | None:
    """Return the connection of a client that waits for one, None without; other users' connections are closed."""
    try:
        connection, _ = listener.accept()
    except OSError:
        return None
    connection.setblocking(False)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    return _trusted(connection)


def connect(name: str) -> socket.socket | None:
    """Return a connection that does not block, or None if no process of this user listens in this namespace."""
    connection = _unix_socket()
    try:
        connection.connect(_address(name))
    except OSError:
        connection.close()
        return None
    return _trusted(connection)


def _unix_socket() -> socket.socket:
    found = socket.socket(socket.AF_UNIX)
    found.setblocking(False)
    return found


def _address(name: str) -> str:
    return f"\0trtspec-channel-{name}"


def _trusted(connection: socket.socket) -> socket.socket | None:
    """Return a connection to a process of this user or of root; close any other and return None."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    if CREDENTIALS.unpack(raw)[1] in (os.geteuid(), ROOT_UID):
        return connection
    connection.close()
    return None
