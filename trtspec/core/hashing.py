# SPDX-License-Identifier: Apache-2.0
"""Digests of files: BLAKE3 over segments for trtspec's own documents, SHA-256 where others define the digest.

A file is divided into segments of SEGMENT_BYTES; the last one is shorter, and an empty file has none. Documents record
the BLAKE3 digest of each segment. The digest of a file is the BLAKE3 of its segments' raw digests, in order, followed
by its length in bytes as 8 bytes, little-endian.

Segments are independent. Any thread hashes any segment, one large file uses all cores, and a changed byte is located by
its segment. Reading and hashing release the GIL.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from trtspec.core.errors import TrtspecError
from trtspec.core.files import map_in_threads, open_regular, share_blocks, write_all

if TYPE_CHECKING:
    from blake3 import blake3

PIECE_BYTES = 1 << 20
SEGMENT_BYTES = 64 << 20
MOST_EARLY_BYTES = 512 << 10  # kept in memory for each segment

OnBytes = Callable[[int], None]
Segments = tuple[str, ...]  # the BLAKE3 digest of each segment, in hex


def _new_digest(data: bytes = b"") -> blake3:
    # imported here, because served models run where blake3 may not be installed, and hash only their own code (SHA-256)
    from blake3 import blake3

    return blake3(data)


def combine_segments(segments: Segments, nbytes: int) -> str:
    """Return the digest of a file of `nbytes` bytes from those of its segments."""
    return _new_digest(b"".join(map(bytes.fromhex, segments)) + nbytes.to_bytes(8, "little")).hexdigest()


def segment_count(nbytes: int) -> int:
    """Return the number of segments of a file, which need not exist."""
    return -(-nbytes // SEGMENT_BYTES)


def segment_ranges(nbytes: int) -> list[tuple[int, int]]:
    """Return the first byte and the end of each segment of a file."""
    return [(begin, min(begin + SEGMENT_BYTES, nbytes)) for begin in range(0, nbytes, SEGMENT_BYTES)]


def file_digests(paths: Sequence[Path], on_bytes: OnBytes | None = None) -> list[str]:
    """Return the digest of each file; see `file_segments`."""
    return [
        combine_segments(segments, path.stat().st_size)
        for path, segments in zip(paths, file_segments(paths, on_bytes), strict=True)
    ]


def file_segments(paths: Sequence[Path], on_bytes: OnBytes | None = None, threads: int | None = None) -> list[Segments]:
    """Return the segments of each file, hashed by `threads` (default: all cores).

    `on_bytes` receives the size of each piece read, from all threads. Raises TrtspecError if a file's size changes.
    """
    ranges = [segment_ranges(_size(path)) for path in paths]
    parts = [(path, *each) for path, segments in zip(paths, ranges, strict=True) for each in segments]
    digests = iter(map_in_threads(lambda part: _hash_part(*part, on_bytes), parts, threads))
    found = [tuple(islice(digests, len(segments))) for segments in ranges]
    for path, segments in zip(paths, ranges, strict=True):
        nbytes = segments[-1][1] if segments else 0
        if (size := _size(path)) != nbytes:
            raise _changed(path, nbytes, size)
    return found


def _size(path: Path) -> int:
    with open_regular(path) as file:
        return os.fstat(file.fileno()).st_size


def _hash_part(path: Path, begin: int, end: int, on_bytes: OnBytes | None) -> str:
    digest, position = _new_digest(), begin
    with open_regular(path) as file:
        for piece in read_chunks(file.fileno(), begin, end):
            digest.update(piece)
            position += len(piece)
            if on_bytes:
                on_bytes(len(piece))
    if position < end:
        raise _changed(path, position, end)
    return digest.hexdigest()


def _changed(path: Path, read: int, size: int) -> TrtspecError:
    message = f"{read:,} of its {size:,} bytes were read; the file changed while it was being read"
    return TrtspecError(message, where=str(path), hint="wait until the program that writes it has ended")


class GrowingDigest:
    """The segments of a file that is being written by any number of threads, in any order, each byte once.

    A segment is hashed in the writing threads as far as its bytes come in sequence. Short pieces that come early wait
    in memory; `finish` reads all other bytes back from the file.
    """

    def __init__(self, nbytes: int) -> None:
        self._segments = [_Segment(*each) for each in segment_ranges(nbytes)]

    def add(self, offset: int, data: memoryview) -> None:
        """Hash bytes that are written at `offset`."""
        while data.nbytes:
            segment = self._segments[offset // SEGMENT_BYTES]
            part = data[: segment.end - offset]
            segment.add(offset, part)
            offset, data = offset + part.nbytes, data[part.nbytes :]

    def finish(self, descriptor: int, path: Path) -> Segments:
        """Return the segments of the complete file, open at `path`; raise TrtspecError if it is shorter."""
        return tuple(map_in_threads(lambda segment: segment.finish(descriptor, path), self._segments))


class _Segment:
    """Bytes `position` to `end` of a segment are not hashed yet; `_early` are pieces behind a gap, by offset."""

    def __init__(self, begin: int, end: int) -> None:
        self.position, self.end = begin, end
        self._digest, self._early, self._lock = _new_digest(), dict[int, bytes](), Lock()

    def add(self, offset: int, data: memoryview) -> None:
        with self._lock:
            if offset != self.position:
                if sum(map(len, self._early.values())) + data.nbytes <= MOST_EARLY_BYTES:
                    self._early[offset] = bytes(data)
                return
            self._update(data)
            while early := self._early.pop(self.position, None):
                self._update(memoryview(early))

    def finish(self, descriptor: int, path: Path) -> str:
        for piece in read_chunks(descriptor, self.position, self.end):
            self._update(piece)
        if self.position < self.end:
            raise _changed(path, self.position, self.end)
        return self._digest.hexdigest()

    def _update(self, data: memoryview) -> None:
        self._digest.update(data)
        self.position += data.nbytes


def file_sha256(path: Path, on_bytes: OnBytes | None = None) -> str:
    """Return the SHA-256 of a file; `on_bytes` receives the size of each piece read."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        for piece in read_chunks(file.fileno()):
            digest.update(piece)
            if on_bytes:
                on_bytes(len(piece))
    return digest.hexdigest()


def digest_and_sha256(path: Path, on_bytes: OnBytes | None = None) -> tuple[str, str]:
    """Return the digest and the SHA-256 of a file, which is read once, in one thread."""
    sha256 = hashlib.sha256()
    nbytes, segments = _read_through(path, lambda offset, piece: sha256.update(piece), on_bytes)
    return combine_segments(segments, nbytes), sha256.hexdigest()


def copy_hashed(source: Path, target: Path, on_bytes: OnBytes | None = None) -> Segments:
    """Copy a file to a new file; return the segments of the copied bytes.

    The copy shares the source's blocks where the file system can (see `share_blocks`).
    """
    with open_regular(source) as original, target.open("xb", buffering=0) as copy:
        if share_blocks(original.fileno(), copy.fileno()):
            return _read_through(target, lambda offset, piece: None, on_bytes)[1]
        return _read_through(source, lambda offset, piece: write_all(copy.fileno(), piece, offset), on_bytes)[1]


def _read_through(
    path: Path, on_piece: Callable[[int, memoryview], object], on_bytes: OnBytes | None
) -> tuple[int, Segments]:
    """Read a file once, in order, and pass on each piece with its offset; return the file's size and segments."""
    with open_regular(path) as file:
        nbytes, offset = os.fstat(file.fileno()).st_size, 0
        digest = GrowingDigest(nbytes)
        for piece in read_chunks(file.fileno(), 0, nbytes):
            digest.add(offset, piece)
            on_piece(offset, piece)
            offset += len(piece)
            if on_bytes:
                on_bytes(len(piece))
        return nbytes, digest.finish(file.fileno(), path)


def read_chunks(descriptor: int, begin: int = 0, end: int | None = None) -> Iterator[memoryview]:
    """Yield an open file's bytes from `begin` to `end` (default: end of file) in a reused buffer."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    while end is None or begin < end:
        wanted = PIECE_BYTES if end is None else min(PIECE_BYTES, end - begin)
        if not (count := os.preadv(descriptor, [buffer[:wanted]], begin)):
            return
        yield buffer[:count]
        begin += count
