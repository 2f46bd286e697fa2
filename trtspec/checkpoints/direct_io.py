# SPDX-License-Identifier: Apache-2.0
"""Input and output of a conversion: through the page cache, or with O_DIRECT in aligned blocks.

Sources are read from the page cache if they are there, and past it otherwise: copying out of pages that the disk has
just filled takes more processor time than all of the rest (benchmarks/experiments/digests.md).

Small outputs go through the page cache, so that the next reader finds them there. Large outputs are gathered in blocks
and written with O_DIRECT: the page cache costs 1.5 s of processor time per GB, O_DIRECT 0.1 s
(benchmarks/experiments/build-waits.md, 2026-11-25).

Each thread has its own writer with one block for each file, so no thread waits for another. Blocks are aligned like the
blocks of a digest, and the thread that writes one hashes it before.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import numpy as np

from trtspec.checkpoints.safetensors import FileLayout
from trtspec.core.files import reserve_space, write_all
from trtspec.core.hashing import EarlyBytes, GrowingDigest, Segments

CORES = os.cpu_count() or 1
MOST_THREADS = 12  # each has some MB of buffers
PAGE_BYTES = mmap.PAGESIZE
BLOCKS_BYTES = 24 << 20  # total size of all blocks
MOST_BLOCK_BYTES, LEAST_BLOCK_BYTES = 1 << 20, max(PAGE_BYTES, 16 << 10)
SMALL_BYTES = 32 << 10  # a smaller write that does not continue a block is written directly
LEAST_BYTES = 256 << 20  # total output size from which O_DIRECT is used
SAMPLE_BYTES = 1 << 20


class RankFiles:
    """The open output files of all ranks, with their digests.

    `threads` is the recommended number of writer threads. Bytes written by an interrupted run are kept if the file's
    header and size match.
    """

    def __init__(self, stack: ExitStack, paths: Sequence[Path], layouts: Sequence[FileLayout]) -> None:
        self.paths = paths
        self.files = [_open_file(stack, path, layout) for path, layout in zip(paths, layouts, strict=True)]
        is_large = sum(layout.nbytes for layout in layouts) >= LEAST_BYTES
        self.direct = _open_direct(stack, paths) if is_large else None
        early = EarlyBytes()
        self.digests = [GrowingDigest(layout.nbytes, early) for layout in layouts]
        for digest, layout in zip(self.digests, layouts, strict=True):
            digest.add(0, memoryview(layout.header))
        # more threads than cores, because some of them wait for the disk
        self.threads = min(2 * CORES + 1, MOST_THREADS)

    def writer(self, threads: int) -> RankWriter:
        """Return the writer for one of `threads` threads; writers are not shared between threads."""
        if self.direct is None:
            return RankWriter(self)
        return DirectWriter(self, self.direct, block_bytes(threads * len(self.files)))

    def segments(self) -> dict[str, Segments]:
        """Finish the digests of the complete files and return each file's `Segments` by name."""
        finished = zip(self.paths, self.files, self.digests, strict=True)
        return {path.name: digest.finish(file, path) for path, file, digest in finished}


def is_laid_out(path: Path, layout: FileLayout) -> bool:
    """Return whether a file has the header and the size of `layout`."""
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size == layout.nbytes and file.read(len(layout.header)) == layout.header
    except FileNotFoundError:
        return False


def _open_file(stack: ExitStack, path: Path, layout: FileLayout) -> int:
    laid_out = is_laid_out(path, layout)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    stack.callback(os.close, descriptor)
    if not laid_out:
        os.ftruncate(descriptor, 0)
        reserve_space(descriptor, layout.nbytes)
        write_all(descriptor, layout.header, 0)
    return descriptor


def _open_direct(stack: ExitStack, paths: Sequence[Path], flags: int = os.O_WRONLY) -> list[int] | None:
    """Return O_DIRECT descriptors, or None if the file system does not support them."""
    try:
        direct = []
        for path in paths:
            direct.append(os.open(path, flags | os.O_DIRECT))
            stack.callback(os.close, direct[-1])
    except (AttributeError, OSError):  # other systems lack O_DIRECT
        return None
    return direct


class RankWriter:
    """Writer of one thread: hashes bytes and writes them through the page cache."""

    def __init__(self, output: RankFiles) -> None:
        self._files, self._digests = output.files, output.digests

    def put(self, file: int, offset: int, data: memoryview) -> None:
        """Write bytes at `offset` of a file; the caller may reuse `data` afterwards."""
        self._digests[file].add(offset, data)
        write_all(self._files[file], data, offset)

    def flush(self) -> None:
        """Write all buffered bytes to the files; this class buffers nothing."""


class _Block:
    """Aligned buffer for the bytes `begin` to `end` of a file; the buffer starts at the file offset `base`."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory
        self.base = self.begin = self.end = 0

    @property
    def is_full(self) -> bool:
        return self.end == self.base + len(self.memory)

    def start(self, offset: int) -> None:
        self.base, self.begin, self.end = offset - offset % len(self.memory), offset, offset

    def part(self, begin: int, end: int) -> memoryview:
        return self.memory[begin - self.base : end - self.base]


class DirectWriter(RankWriter):
    """Writer of one thread: gathers bytes in one block per file and writes full blocks with O_DIRECT."""

    def __init__(self, output: RankFiles, direct: Sequence[int], nbytes: int) -> None:
        super().__init__(output)
        self._direct = direct
        memory = memoryview(mmap.mmap(-1, nbytes * len(direct)))
        self._blocks = [_Block(memory[begin : begin + nbytes]) for begin in range(0, len(memory), nbytes)]

    def flush(self) -> None:
        for file in range(len(self._blocks)):
            self._write_block(file)

    def put(self, file: int, offset: int, data: memoryview) -> None:
        if offset != self._blocks[file].end and not self.gathers(data.nbytes):
            super().put(file, offset, data)
            return
        while data.nbytes:
            space = self.space(file, offset)[: data.nbytes]
            count = len(space)
            np.frombuffer(space, np.uint8)[:] = np.frombuffer(data[:count], np.uint8)  # releases the GIL
            self.fill(file, count)
            offset, data = offset + count, data[count:]

    def gathers(self, nbytes: int) -> bool:
        """Return whether bytes that do not continue a block start a new one, because there are enough of them."""
        return nbytes >= SMALL_BYTES

    def space(self, file: int, offset: int) -> memoryview:
        """Return memory for the bytes of a file from `offset` on, at least one; `fill` accepts those stored there."""
        block = self._blocks[file]
        if offset != block.end:
            self._write_block(file)
            block.start(offset)
        return block.part(offset, block.base + len(block.memory))

    def fill(self, file: int, count: int) -> None:
        """Accept the first `count` bytes that were stored in the memory of the last call of `space`."""
        block = self._blocks[file]
        block.end += count
        if block.is_full:
            self._write_block(file)

    def _write_block(self, file: int) -> None:
        """Hash and write a block: whole pages with O_DIRECT, partial pages at both ends through the page cache."""
        block = self._blocks[file]
        self._digests[file].add(block.begin, block.part(block.begin, block.end))
        first, last = -(-block.begin // PAGE_BYTES) * PAGE_BYTES, block.end // PAGE_BYTES * PAGE_BYTES
        first, last = (first, last) if first < last else (block.end, block.end)
        cached, direct = self._files[file], self._direct[file]
        write_all(cached, block.part(block.begin, first), block.begin)
        write_all(cached, block.part(last, block.end), last)
        try:
            write_all(direct, block.part(first, last), first)
        except OSError as error:
            if error.errno != errno.EINVAL:  # the device has larger pages
                raise
            write_all(cached, block.part(first, last), first)
        block.start(block.end)


def block_bytes(blocks: int) -> int:
    """Return the size in bytes of each of `blocks` buffers, so that all fit into `BLOCKS_BYTES` where possible."""
    fair = BLOCKS_BYTES // blocks
    return max(LEAST_BLOCK_BYTES, min(MOST_BLOCK_BYTES, 1 << max(0, fair.bit_length() - 1)))


class ReadBuffer:
    """Page-aligned memory into which a thread reads parts of files."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._memory = memoryview(mmap.mmap(-1, -(-nbytes // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES))

    def read(self, file: SourceFile, position: int, nbytes: int, *, direct: bool) -> memoryview:
        """Return bytes of a file, fewer at its end, valid until the next call; `direct` bypasses the page cache.

        Bytes at the same position of a page have the same place in the memory, as O_DIRECT requires.
        """
        lead = position % PAGE_BYTES
        view, filled = self._memory[lead : lead + nbytes], 0
        if direct and file.direct is not None:
            pages = self._memory[: -(-(lead + nbytes) // PAGE_BYTES) * PAGE_BYTES]
            with suppress(OSError):  # the device has larger pages
                filled = max(0, min(nbytes, os.preadv(file.direct, [pages], position - lead) - lead))
        filled += file.read_into(view[filled:], position + filled)
        return view[:filled]


class SourceFile:
    """An open source file; `direct` is its descriptor for O_DIRECT, or None if its file system lacks that."""

    def __init__(self, path: Path) -> None:
        self.path, self._stack = path, ExitStack()
        self.descriptor = os.open(path, os.O_RDONLY)
        self._stack.callback(os.close, self.descriptor)
        direct = _open_direct(self._stack, [path], os.O_RDONLY)
        self.direct = direct[0] if direct else None

    def close(self) -> None:
        self._stack.close()

    def read_into(self, view: memoryview, position: int) -> int:
        """Read bytes into `view` through the page cache; return their number, which is smaller at the file's end."""
        filled = 0
        while filled < len(view) and (got := os.preadv(self.descriptor, [view[filled:]], position + filled)):
            filled += got
        return filled

    def is_cached(self, begin: int, end: int) -> bool:
        """Return whether most of a sample from the middle of a range is in the page cache, without reading it.

        The kernel reports all pages of another user's file as cached. Also True where it reports nothing.
        """
        begin = max(begin, (begin + end - SAMPLE_BYTES) // 2) // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        nbytes = min(end - begin, SAMPLE_BYTES)
        pages = ctypes.create_string_buffer(b"\1" * -(-nbytes // PAGE_BYTES))
        with suppress(OSError, ValueError, AttributeError), ExitStack() as stack:
            window = stack.enter_context(mmap.mmap(self.descriptor, nbytes, prot=mmap.PROT_READ, offset=begin))
            address = np.frombuffer(window, np.uint8).__array_interface__["data"][0]
            _libc().mincore(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), pages)
        return pages.raw[:-1].count(0) < len(pages) / 2


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
