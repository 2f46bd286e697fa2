# SPDX-License-Identifier: Apache-2.0
"""Digests of files: BLAKE3 over segments for trtspec's own documents, SHA-256 where other projects define the digest.

A file is divided into segments of SEGMENT_BYTES; the last segment may be shorter, and an empty file has 0 segments.
Documents record the BLAKE3 digest of each segment. The digest of a file is the BLAKE3 of its raw segment digests, in
order, followed by its length in bytes as an 8-byte little-endian integer.

Segments can be hashed independently. All cores can therefore hash one large file, and a corrupted byte is located by
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
MOST_EARLY_BYTES = 512 << 10  # maximum out-of-order bytes that a segment buffers

OnBytes = Callable[[int], None]
Segments = tuple[str, ...]  # BLAKE3 digest of each segment, in hex


def _new_digest(data: bytes = b"") -> blake3:
    # Lazy: blake3 may be missing where served models run. They hash only their own code, with SHA-256.
    from blake3 import blake3

    return blake3(data)


def combine_segments(segments: Segments, nbytes: int) -> str:
    """Return the digest, in hex, of a file of `nbytes` bytes from the digests of its segments."""
    return _new_digest(b"".join(map(bytes.fromhex, segments)) + nbytes.to_bytes(8, "little")).hexdigest()


def segment_count(nbytes: int) -> int:
    """Return the number of segments of a file of `nbytes` bytes."""
    return -(-nbytes // SEGMENT_BYTES)


def segment_ranges(nbytes: int) -> list[tuple[int, int]]:
    """Return the half-open byte range `(begin, end)` of each segment of a file of `nbytes` bytes."""
    return [(begin, min(begin + SEGMENT_BYTES, nbytes)) for begin in range(0, nbytes, SEGMENT_BYTES)]


def file_digests(paths: Sequence[Path], on_bytes: OnBytes | None = None) -> list[str]:
    """Return the digest of each file, in hex; `on_bytes` and errors as in `file_segments`."""
    return [
        combine_segments(segments, path.stat().st_size)
        for path, segments in zip(paths, file_segments(paths, on_bytes), strict=True)
    ]


def file_segments(paths: Sequence[Path], on_bytes: OnBytes | None = None, threads: int | None = None) -> list[Segments]:
    """Return the segment digests of each file, hashed by `threads` threads (default: one per core).

    `on_bytes` is called from all threads with the number of bytes of each piece read. Raises TrtspecError if a file's
    size changes during the read.
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


class SequentialDigest:
    """SHA-256 and segment digests of bytes that arrive in order; `position` is their number so far."""

    def __init__(self) -> None:
        self.position = 0
        self._sha256, self._finished, self._segment = hashlib.sha256(), list[str](), _new_digest()

    def update(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        self._sha256.update(rest)
        while rest.nbytes:
            part = rest[: SEGMENT_BYTES - self.position % SEGMENT_BYTES]
            self._segment.update(part)
            self.position, rest = self.position + part.nbytes, rest[part.nbytes :]
            if self.position % SEGMENT_BYTES == 0:
                self._finished.append(self._segment.hexdigest())
                self._segment = _new_digest()

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of all bytes, in hex."""
        return self._sha256.hexdigest()

    @property
    def finished_segments(self) -> Segments:
        """Return the digests of the segments that are full."""
        return tuple(self._finished)

    @property
    def segments(self) -> Segments:
        """Return the digests of all segments, of which the last one may be shorter."""
        rest = (self._segment.hexdigest(),) if self.position % SEGMENT_BYTES else ()
        return (*self._finished, *rest)


class GrowingDigest:
    """Segment digests of a file of `nbytes` bytes, computed while the file is written.

    Any number of threads may write in any order, but each byte only once. The writing threads hash each segment as far
    as its bytes arrive in sequence. Out-of-order pieces are buffered up to MOST_EARLY_BYTES per segment; `finish` reads
    all other bytes back from the file.
    """

    def __init__(self, nbytes: int) -> None:
        self._segments = [_Segment(*each) for each in segment_ranges(nbytes)]

    def add(self, offset: int, data: memoryview) -> None:
        """Hash `data`, which the caller writes at byte `offset`; thread-safe."""
        while data.nbytes:
            segment = self._segments[offset // SEGMENT_BYTES]
            part = data[: segment.end - offset]
            segment.add(offset, part)
            offset, data = offset + part.nbytes, data[part.nbytes :]

    def finish(self, descriptor: int, path: Path) -> Segments:
        """Return the segment digests of the complete file, open at `path`; raise TrtspecError if it is too short."""
        return tuple(map_in_threads(lambda segment: segment.finish(descriptor, path), self._segments))


class _Segment:
    """Digest of one segment up to byte `position`; `_early` maps offsets beyond `position` to buffered pieces."""

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
    """Return the SHA-256 of a file, in hex; `on_bytes` is called with the number of bytes of each piece read."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        for piece in read_chunks(file.fileno()):
            digest.update(piece)
            if on_bytes:
                on_bytes(len(piece))
    return digest.hexdigest()


def digest_and_sha256(path: Path, on_bytes: OnBytes | None = None) -> tuple[str, str]:
    """Return the segmented BLAKE3 digest and the SHA-256 of a file, in hex, reading it once in one thread."""
    sha256 = hashlib.sha256()
    nbytes, segments = _read_through(path, lambda offset, piece: sha256.update(piece), on_bytes)
    return combine_segments(segments, nbytes), sha256.hexdigest()


def copy_hashed(source: Path, target: Path, on_bytes: OnBytes | None = None) -> Segments:
    """Copy a file to the new file `target` and return the segment digests of the copied bytes.

    The copy shares the source's blocks where the file system supports it (see `share_blocks`).
    """
    with open_regular(source) as original, target.open("xb", buffering=0) as copy:
        if share_blocks(original.fileno(), copy.fileno()):
            return _read_through(target, lambda offset, piece: None, on_bytes)[1]
        return _read_through(source, lambda offset, piece: write_all(copy.fileno(), piece, offset), on_bytes)[1]


def _read_through(
    path: Path, on_piece: Callable[[int, memoryview], object], on_bytes: OnBytes | None
) -> tuple[int, Segments]:
    """Read a file once, in order, calling `on_piece(offset, piece)`; return its size and segment digests."""
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
    """Yield an open file's bytes from `begin` to `end` (default: end of file) in pieces of at most PIECE_BYTES.

    All pieces share one buffer, so a piece is valid only until the next one is requested.
    """
    buffer = memoryview(bytearray(PIECE_BYTES))
    while end is None or begin < end:
        wanted = PIECE_BYTES if end is None else min(PIECE_BYTES, end - begin)
        if not (count := os.preadv(descriptor, [buffer[:wanted]], begin)):
            return
        yield buffer[:count]
        begin += count
