# SPDX-License-Identifier: Apache-2.0
"""Streams bytes, hashes them and hands them on: how builds, verification, publishing and the store read whole files.

SHA-256 is a chain: a file is hashed from its beginning, on one core. Reading and hashing leave Python's lock to other
threads, so several files are hashed at once, beside whatever else reads or writes them; and where a process was given
code for it (`hash_with`), a thread hashes several at once in little more than the time of one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

from trtspec.files import in_threads

PIECE_BYTES = 1 << 20

OnBytes = Callable[[int], None]


class Digest(Protocol):
    """A digest that grows, as hashlib's do."""

    def hexdigest(self) -> str:
        """Return the digest of what was hashed so far."""


class Hashing(Protocol):
    """Code that hashes: at most `most` digests are worth growing together. Threads may share it."""

    most: int

    def begin(self) -> Any:
        """Return the digest of nothing, to be grown by this code alone."""

    def grow(self, grown: Sequence[tuple[Any, memoryview]]) -> None:
        """Hash further bytes of each of some digests, all at once; the bytes are in memory that can be written to."""


class Hashlib:
    """Python's own."""

    most = 1

    def begin(self) -> Any:
        """Return a digest of hashlib."""
        return hashlib.sha256()

    def grow(self, grown: Sequence[tuple[Any, memoryview]]) -> None:
        """Hash one after another."""
        for digest, data in grown:
            digest.update(data)


_used: list[Hashing] = [Hashlib()]


def hash_with(code: Hashing) -> None:
    """Let this process hash with other code, which says the same in less time."""
    _used[0] = code


def hashing() -> Hashing:
    """Return what this process hashes with."""
    return _used[0]


def threads_beside(files: int) -> int:
    """Return how many threads hash that many files beside other work: no more files at once than there are cores."""
    return max(1, min(files, -(-(os.cpu_count() or 1) // hashing().most)))


def file_sha256(path: Path, on_bytes: OnBytes | None = None) -> str:
    """Return the SHA-256 of a file; `on_bytes` is told the size of each piece read."""
    return files_sha256([path], on_bytes)[0]


def files_sha256(paths: Sequence[Path], on_bytes: OnBytes | None = None, threads: int | None = None) -> list[str]:
    """Return the SHA-256 of files, hashed on all cores unless `threads` is less; `on_bytes` is told what was read."""
    code = hashing()
    threads = max(1, min(len(paths), threads or os.cpu_count() or 1))
    left, found = _Left(paths), [""] * len(paths)
    at_once = min(code.most, -(-len(paths) // threads))
    in_threads(lambda _: _hash_side_by_side(code, left, at_once, found, on_bytes), range(threads), threads)
    return found


class _Left:
    """Files that nobody has begun yet."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths, self._lock = iter(list(enumerate(paths))), Lock()

    def take(self) -> tuple[int, Path] | None:
        with self._lock:
            return next(self._paths, None)


class _Reading:
    """A file that is being hashed; `number` is its place among those asked for."""

    def __init__(self, number: int, path: Path, digest: Any) -> None:
        self.number, self.digest, self.is_over = number, digest, False
        self.file = path.open("rb", buffering=0)
        self._pieces = pieces(self.file.fileno())

    def read(self) -> memoryview | None:
        piece = next(self._pieces, None)
        self.is_over = piece is None
        return piece


def _hash_side_by_side(code: Hashing, left: _Left, at_once: int, found: list[str], on_bytes: OnBytes | None) -> None:
    """Hash files until none is left; one that ends makes room for the next."""
    reading: list[_Reading] = []
    try:
        while True:
            while len(reading) < at_once and (taken := left.take()):
                reading.append(_Reading(*taken, code.begin()))
            if not reading:
                return
            grown = [(each.digest, piece) for each in reading if (piece := each.read())]
            code.grow(grown)
            for each in reading:
                if each.is_over:
                    found[each.number] = each.digest.hexdigest()
                    each.file.close()
            reading = [each for each in reading if not each.is_over]
            if on_bytes and grown:
                on_bytes(sum(piece.nbytes for _, piece in grown))
    finally:
        for each in reading:
            each.file.close()


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
