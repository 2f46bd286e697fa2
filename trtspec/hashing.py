# SPDX-License-Identifier: Apache-2.0
"""Streams bytes, hashes them and hands them on: how builds, verification, publishing and the store read whole files.

SHA-256 is a chain: a file is hashed from its beginning, on one core. Reading and hashing leave Python's lock to other
threads, so several files are hashed at once, beside whatever else reads or writes them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

PIECE_BYTES = 1 << 20

OnBytes = Callable[[int], None]


def file_sha256(path: Path, on_bytes: OnBytes | None = None) -> str:
    """Return the SHA-256 of a file; `on_bytes` is told the size of each piece read."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        for piece in pieces(file.fileno()):
            digest.update(piece)
            if on_bytes:
                on_bytes(len(piece))
    return digest.hexdigest()


def copy_hashed(source: Path, target: Path, on_bytes: OnBytes | None = None) -> str:
    """Copy a file's bytes to a file that is not there yet; return the SHA-256 of what was copied."""
    digest, offset = hashlib.sha256(), 0
    with source.open("rb", buffering=0) as file, target.open("xb", buffering=0) as copy:
        for piece in pieces(file.fileno()):
            digest.update(piece)
            write_all(copy.fileno(), piece, offset)
            offset += len(piece)
            if on_bytes:
                on_bytes(len(piece))
    return digest.hexdigest()


def pieces(descriptor: int, begin: int = 0, end: int | None = None) -> Iterator[memoryview]:
    """Yield an open file's bytes from `begin` to `end`, or to where it ends, in a buffer used again."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    while end is None or begin < end:
        wanted = PIECE_BYTES if end is None else min(PIECE_BYTES, end - begin)
        if not (count := os.preadv(descriptor, [buffer[:wanted]], begin)):
            return
        yield buffer[:count]
        begin += count


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Write bytes at `offset` of an open file, however many calls that takes."""
    while data.nbytes:
        done = os.pwrite(descriptor, data, offset)
        data, offset = data[done:], offset + done
