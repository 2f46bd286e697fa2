# SPDX-License-Identifier: Apache-2.0
"""Digests of files: BLAKE3 over segments for trtspec's own documents, SHA-256 where other projects define the digest.

A file is divided into segments of SEGMENT_BYTES, and a segment into blocks of BLOCK_BYTES; the last one may be shorter,
and an empty file has 0 segments. The digest of a block is the BLAKE3 of its bytes. The digest of a segment is the
BLAKE3 of its blocks' raw digests, in order, or the digest of its only block. Documents record the digest of each
segment. The digest of a file is the BLAKE3 of its raw segment digests, in order, followed by its length in bytes as an
8-byte little-endian integer. Documents also record the length, so no two files share digests.

Blocks can be hashed independently. All cores can therefore hash one large file, writers need no order, and a corrupted
byte is located by its segment. Reading and hashing release the GIL.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import cycle, islice
from mmap import mmap
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, cast

from trtspec.core.errors import TrtspecError
from trtspec.core.files import map_in_threads, open_regular, share_blocks, write_all

if TYPE_CHECKING:
    from blake3 import blake3

PIECE_BYTES = 1 << 20
SEGMENT_BYTES = 64 << 20
BLOCK_BYTES = 1 << 20
PIECE_BUFFERS = 3  # of a transfer: one is read or sent while two are hashed
MOST_EARLY_BYTES = 4 << 20  # maximum bytes that digests with one `EarlyBytes` buffer out of order

OnBytes = Callable[[int], None]
Segments = tuple[str, ...]  # BLAKE3 digest of each segment, in hex


def _new_digest(data: bytes | memoryview = b"") -> blake3:
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
    """Return the digest of the segment in the bytes from `begin` to `end`."""
    digest = SegmentsDigest()
    with open_regular(path) as file:
        for piece in read_chunks(file.fileno(), begin, end):
            digest.update(piece)
            if on_bytes:
                on_bytes(len(piece))
    if begin + digest.position < end:
        raise _changed(path, begin + digest.position, end)
    return digest.segments[0]


def _changed(path: Path, read: int, size: int) -> TrtspecError:
    message = f"{read:,} of its {size:,} bytes were read; the file changed while it was being read"
    return TrtspecError(message, where=str(path), hint="wait until the program that writes it has ended")


def _combine_blocks(digests: Sequence[bytes]) -> str:
    """Return the digest of a segment, in hex, from the raw digests of its blocks."""
    return digests[0].hex() if len(digests) == 1 else _new_digest(b"".join(digests)).hexdigest()


class SegmentsDigest:
    """Segment digests of bytes that arrive in order; `position` is their number so far."""

    def __init__(self) -> None:
        self.position = 0
        self._finished, self._blocks, self._block = list[str](), list[bytes](), _new_digest()

    def update(self, data: bytes | memoryview) -> None:
        rest = memoryview(data)
        while rest.nbytes:
            part = rest[: BLOCK_BYTES - self.position % BLOCK_BYTES]
            self._block.update(part)
            self.position, rest = self.position + part.nbytes, rest[part.nbytes :]
            if self.position % BLOCK_BYTES == 0:
                self._blocks.append(self._block.digest())
                self._block = _new_digest()
            if self.position % SEGMENT_BYTES == 0:
                self._finished.append(_combine_blocks(self._blocks))
                self._blocks = []

    @property
    def finished_segments(self) -> Segments:
        """Return the digests of the segments that are full; may be called while another thread adds bytes."""
        return tuple(self._finished)

    @property
    def segments(self) -> Segments:
        """Return the digests of all segments, of which the last one may be shorter."""
        last_block = [self._block.digest()] if self.position % BLOCK_BYTES else []
        blocks = [*self._blocks, *last_block]
        return (*self._finished, *([_combine_blocks(blocks)] if blocks else []))


def bytes_segments(data: bytes) -> Segments:
    """Return the segment digests of a file with the bytes `data`."""
    digest = SegmentsDigest()
    digest.update(data)
    return digest.segments


class BackgroundDigest:
    """Segment digests and, with `with_sha256`, the SHA-256 of bytes that arrive in order; each has one thread.

    The caller can transfer the bytes at the same time. `position` is the number of bytes of all calls of `start`.
    """

    def __init__(self, *, with_sha256: bool = True) -> None:
        self.position = 0
        self._segments, self._sha256 = SegmentsDigest(), hashlib.sha256() if with_sha256 else None
        digests = [self._segments.update, *([self._sha256.update] if self._sha256 else [])]
        self._threads = [(ThreadPoolExecutor(1), update) for update in digests]
        self._pending = deque[list[Future[None]]]()

    def start(self, data: bytes | memoryview) -> None:
        """Hash more bytes, which must not change before two further calls of `start`, or one of a result."""
        self._pending.append([thread.submit(update, data) for thread, update in self._threads])
        self.position += len(data)
        self._wait(PIECE_BUFFERS - 1)

    def finish(self) -> None:
        """Wait until all bytes are hashed, so that their buffers may change."""
        self._wait(0)

    def _wait(self, most: int) -> None:
        """Wait until at most `most` pieces are not hashed yet."""
        while len(self._pending) > most:
            for future in self._pending.popleft():
                future.result()

    @property
    def finished_segments(self) -> Segments:
        """Return the digests of the full segments that have been hashed so far."""
        return self._segments.finished_segments

    @property
    def segments(self) -> Segments:
        """Return the digests of all segments, once they are hashed; the last one may be shorter."""
        self._wait(0)
        return self._segments.segments

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of all bytes, in hex, once they are hashed."""
        if self._sha256 is None:
            raise ValueError("the SHA-256 is not computed")
        self._wait(0)
        return self._sha256.hexdigest()

    def close(self) -> None:
        """End the threads."""
        for thread, _ in self._threads:
            thread.shutdown()


class EarlyBytes:
    """Number of bytes that digests buffer out of order; digests that share it have one limit, MOST_EARLY_BYTES."""

    def __init__(self) -> None:
        self._nbytes, self._lock = 0, Lock()

    def add(self, count: int) -> bool:
        """Add to the number, unless it would exceed the limit; return whether it was added."""
        with self._lock:
            fits = self._nbytes + count <= MOST_EARLY_BYTES
            self._nbytes += count if fits else 0
        return fits


class GrowingDigest:
    """Segment digests of a file of `nbytes` bytes, computed while the file is read or written.

    Any number of threads may add bytes in any order, but each byte only once. The adding threads hash whole blocks at
    once and incomplete ones as far as their bytes arrive in sequence. Out-of-order pieces of incomplete blocks are
    buffered as far as `early` allows; `finish` reads all other bytes back from the file.
    """

    def __init__(self, nbytes: int, early: EarlyBytes | None = None) -> None:
        self._nbytes = nbytes
        self._done: list[bytes | None] = [None] * -(-nbytes // BLOCK_BYTES)
        self._incomplete, self._early, self._lock = dict[int, _Block](), early or EarlyBytes(), Lock()

    def add(self, offset: int, data: memoryview) -> None:
        """Hash `data`, the bytes of the file at byte `offset`; thread-safe."""
        while data.nbytes:
            number = offset // BLOCK_BYTES
            begin, end = self._range(number)
            part = data[: end - offset]
            if part.nbytes == end - begin:
                self._done[number] = _new_digest(part).digest()
            else:
                self._add_part(number, offset, part)
            offset, data = offset + part.nbytes, data[part.nbytes :]

    def finish(self, descriptor: int, path: Path) -> Segments:
        """Return the segment digests of the complete file, open at `path`; raise TrtspecError if it is too short."""
        missing = [number for number, digest in enumerate(self._done) if digest is None]
        for number, digest in zip(
            missing, map_in_threads(lambda number: self._read_back(number, descriptor, path), missing), strict=True
        ):
            self._done[number] = digest
        blocks = SEGMENT_BYTES // BLOCK_BYTES
        done = cast(list[bytes], self._done)
        return tuple(_combine_blocks(done[begin : begin + blocks]) for begin in range(0, len(done), blocks))

    def _range(self, number: int) -> tuple[int, int]:
        return number * BLOCK_BYTES, min((number + 1) * BLOCK_BYTES, self._nbytes)

    def _add_part(self, number: int, offset: int, data: memoryview) -> None:
        with self._lock:
            if (block := self._incomplete.get(number)) is None:
                block = self._incomplete[number] = _Block(*self._range(number))
        with block.lock:
            if offset == block.position:
                block.update(data)
                while early := block.early.pop(block.position, None):
                    self._early.add(-len(early))
                    block.update(memoryview(early))
                if block.position == block.end:
                    self._done[number] = block.digest.digest()
                    del self._incomplete[number]
            elif self._early.add(data.nbytes):
                block.early[offset] = bytes(data)

    def _read_back(self, number: int, descriptor: int, path: Path) -> bytes:
        block = self._incomplete.pop(number, None) or _Block(*self._range(number))
        for piece in read_chunks(descriptor, block.position, block.end):
            block.update(piece)
        if block.position < block.end:
            raise _changed(path, block.position, self._nbytes)
        return block.digest.digest()


class _Block:
    """Digest of a block up to byte `position` of its file; `early` maps later offsets to buffered pieces."""

    def __init__(self, begin: int, end: int) -> None:
        self.position, self.end = begin, end
        self.digest, self.early, self.lock = _new_digest(), dict[int, bytes](), Lock()

    def update(self, data: memoryview) -> None:
        self.digest.update(data)
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


def digest_and_sha256(path: Path, on_bytes: OnBytes | None = None, piece_bytes: int = PIECE_BYTES) -> tuple[str, str]:
    """Return the segmented BLAKE3 digest and the SHA-256 of a file, in hex, reading it once in pieces.

    `on_bytes` and errors as in `file_segments`.
    """
    with open_regular(path) as file, closing(BackgroundDigest()) as digest:
        nbytes = os.fstat(file.fileno()).st_size
        for piece in read_chunks(file.fileno(), 0, nbytes, new_buffers(nbytes=piece_bytes)):
            digest.start(piece)
            if on_bytes:
                on_bytes(len(piece))
        if digest.position < nbytes:
            raise _changed(path, digest.position, nbytes)
        return combine_segments(digest.segments, nbytes), digest.sha256


def copy_hashed(source: Path, target: Path, on_bytes: OnBytes | None = None) -> Segments:
    """Copy a file to the new file `target` and return the segment digests of the copied bytes.

    The copy shares the source's blocks where the file system supports it (see `share_blocks`).
    """
    with open_regular(source) as original, target.open("xb", buffering=0) as copy:
        if share_blocks(original.fileno(), copy.fileno()):
            return file_segments([target], on_bytes)[0]
        nbytes, digest = os.fstat(original.fileno()).st_size, SegmentsDigest()
        for piece in read_chunks(original.fileno(), 0, nbytes):
            write_all(copy.fileno(), piece, digest.position)
            digest.update(piece)
            if on_bytes:
                on_bytes(len(piece))
    if digest.position < nbytes:
        raise _changed(source, digest.position, nbytes)
    return digest.segments


def new_buffers(count: int = PIECE_BUFFERS, nbytes: int = PIECE_BYTES) -> Iterator[memoryview]:
    """Return an endless iterator over `count` buffers of `nbytes` bytes, each of which is used again after the others.

    They begin at a page. Some AMD processors copy from the page cache five times as slowly to 16 bytes after one, which
    is where malloc places large buffers.
    """
    return cycle([memoryview(mmap(-1, nbytes)) for _ in range(count)])


def read_chunks(
    descriptor: int, begin: int = 0, end: int | None = None, buffers: Iterator[memoryview] | None = None
) -> Iterator[memoryview]:
    """Yield an open file's bytes from `begin` to `end` (default: end of file) in pieces of at most PIECE_BYTES.

    The pieces are in `buffers`, which may be smaller. By default, all share one buffer, so a piece is valid only until
    the next one is requested.
    """
    buffers = buffers or new_buffers(1)
    while end is None or begin < end:
        wanted = PIECE_BYTES if end is None else min(PIECE_BYTES, end - begin)
        buffer = next(buffers)
        if not (count := os.preadv(descriptor, [buffer[:wanted]], begin)):
            return
        yield buffer[:count]
        begin += count
