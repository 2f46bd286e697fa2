# SPDX-License-Identifier: Apache-2.0
"""Output of a conversion: through the page cache, or past it with O_DIRECT in aligned blocks.

Small outputs go through the page cache, where the next reader finds them. Large outputs are gathered in blocks, hashed
in memory and written with O_DIRECT: the page cache costs 1.5 s of processor time per GB, O_DIRECT 0.1 s
(benchmarks/experiments/log.md, 2026-11-25).

A file is hashed from its beginning and the number of blocks is small. Therefore one task writes at a time, in file
order, while other tasks read ahead until their first write. Bytes that cannot be hashed in order are read back once
they are final.
"""

from __future__ import annotations

import errno
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Lock

import numpy as np

from trtspec.checkpoints.streaming_digest import StreamingDigests
from trtspec.core.files import write_all

CORES = os.cpu_count() or 1
PAGE_BYTES = mmap.PAGESIZE
BLOCKS_BYTES = 24 << 20  # of all blocks together
MOST_BLOCK_BYTES, LEAST_BLOCK_BYTES = 1 << 20, max(PAGE_BYTES, 16 << 10)
BLOCKS_A_FILE = 4  # at least
SMALL_BYTES = 32 << 10  # a smaller write that does not continue a block is written directly
LEAST_BYTES = 256 << 20  # total output size from which O_DIRECT is used
WRITERS = 4  # threads that write blocks to the disk
LOOK_S = 0.1  # polling interval while no block is free


@dataclass
class WriteTask:
    """A task that writes output; `left` is the number of pending steps until its bytes are in the file."""

    number: int
    name: str
    is_sound: bool = True
    left: int = 1


Done = Callable[[WriteTask], None]


class TaskOutput(ABC):
    """Destination of the tasks' bytes. Tasks are numbered in the order of their output. Thread-safe."""

    tasks_at_once: int

    @abstractmethod
    def put(self, task: WriteTask, file: int, offset: int, data: memoryview) -> None:
        """Write bytes at `offset` of a file; the caller may reuse `data` afterwards."""

    @abstractmethod
    def end(self, task: WriteTask) -> None:
        """Mark the task's output as complete."""

    def fail(self, error: BaseException) -> None:  # noqa: B027
        """Make all waiting calls raise `error`, unless an earlier error is set."""

    def flush(self) -> None:  # noqa: B027
        """Return once all bytes are in the files; raise the first error."""


@contextmanager
def open_output(
    paths: Sequence[Path], files: Sequence[int], nbytes: int, growing: StreamingDigests, done: Done
) -> Iterator[TaskOutput]:
    """Yield an output for `nbytes` to files; it calls `done` for each task whose bytes are in the files."""
    with ExitStack() as stack:
        direct = _open_direct(stack, paths) if nbytes >= LEAST_BYTES else None
        if direct is None:
            yield CachedWriter(files, growing, done)
        else:
            yield stack.enter_context(DirectWriter(files, direct, growing, done))


def _open_direct(stack: ExitStack, paths: Sequence[Path]) -> list[int] | None:
    """Return O_DIRECT descriptors, or None if the file system does not support them."""
    try:
        direct = []
        for path in paths:
            direct.append(os.open(path, os.O_WRONLY | os.O_DIRECT))
            stack.callback(os.close, direct[-1])
    except (AttributeError, OSError):  # other systems lack O_DIRECT
        return None
    return direct


class CachedWriter(TaskOutput):
    """Writes immediately through the page cache, from any number of threads."""

    tasks_at_once = 2 * CORES + 1  # more than cores, because most of them wait for the disk

    def __init__(self, files: Sequence[int], growing: StreamingDigests, done: Done) -> None:
        self._files, self._growing, self._done = files, growing, done

    def put(self, task: WriteTask, file: int, offset: int, data: memoryview) -> None:
        self._growing.written(file, offset)
        write_all(self._files[file], data, offset)

    def end(self, task: WriteTask) -> None:
        self._done(task)


@dataclass(eq=False)
class _Block:
    """Bytes `begin` to `end` of a file, in memory whose first byte is at `base`. `uses` counts disk and hash."""

    file: int
    base: int
    begin: int
    end: int
    memory: memoryview
    tasks: list[WriteTask] = field(default_factory=list)
    uses: int = 2

    @property
    def is_full(self) -> bool:
        return self.end == self.base + len(self.memory)

    def part(self, begin: int, end: int) -> memoryview:
        return self.memory[begin - self.base : end - self.base]

    def take(self, data: memoryview) -> int:
        """Copy as many bytes as fit; return their number."""
        count = min(data.nbytes, self.base + len(self.memory) - self.end)
        into = np.frombuffer(self.part(self.end, self.end + count), np.uint8)
        into[:] = np.frombuffer(data[:count], np.uint8)  # releases the GIL
        self.end += count
        return count


class DirectWriter(TaskOutput):
    """Gathers the output of one task after the other in blocks. `_open` maps (file, end) to blocks, oldest first."""

    tasks_at_once = CORES  # one writes while the others search their maxima

    def __init__(self, files: Sequence[int], direct: Sequence[int], growing: StreamingDigests, done: Done) -> None:
        self._files, self._direct, self._growing, self._done = files, direct, growing, done
        self._block_bytes = block_bytes(len(files))
        self._memory = memoryview(mmap.mmap(-1, BLOCKS_BYTES))
        begins = range(0, BLOCKS_BYTES - self._block_bytes + 1, self._block_bytes)
        self._free = [self._memory[begin : begin + self._block_bytes] for begin in begins]
        self._open: dict[tuple[int, int], _Block] = {}
        self._changed, self._counting = Condition(), Lock()
        self._in_flight = 0
        self._turn, self._ended = 0, set[int]()
        self._failure: BaseException | None = None
        self._writers = ThreadPoolExecutor(WRITERS, "write")

    def __enter__(self) -> DirectWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._writers.shutdown()

    def put(self, task: WriteTask, file: int, offset: int, data: memoryview) -> None:
        """Append to the block that ends at `offset`, or open one there, once it is the task's turn."""
        self._await_turn(task)
        self._growing.written(file, offset)
        while data.nbytes:
            block = self._open.pop((file, offset), None)
            if block is None:
                if data.nbytes < SMALL_BYTES:
                    self._put_small(file, offset, data)
                    return
                base = offset - offset % self._block_bytes
                block = _Block(file, base, offset, offset, self._free_memory())
            taken = block.take(data)
            data, offset = data[taken:], offset + taken
            if not block.tasks or block.tasks[-1] is not task:
                block.tasks.append(task)
                self._count(task, 1)
            if block.is_full:
                self._hand_on(block)
            else:
                self._open[file, offset] = block

    def end(self, task: WriteTask) -> None:
        """Let the next task write; blocks stay open because it may continue them."""
        with self._changed:
            self._ended.add(task.number)
            while self._turn in self._ended:
                self._ended.remove(self._turn)
                self._turn += 1
            self._changed.notify_all()
        self._count(task, -1)

    def fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def flush(self) -> None:
        """Write the open blocks and wait for the disk."""
        for place in list(self._open):
            self._hand_on(self._open.pop(place))
        with self._changed:  # unbounded: waits for the disk
            self._changed.wait_for(lambda: not self._in_flight)
            self._raise_failure()

    def _await_turn(self, task: WriteTask) -> None:
        with self._changed:  # unbounded: earlier tasks end, or one fails
            self._changed.wait_for(lambda: self._turn == task.number or self._failure)
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure:
            raise self._failure

    def _put_small(self, file: int, offset: int, data: memoryview) -> None:
        write_all(self._files[file], data, offset)
        self._growing.offer(file, offset, memoryview(bytearray(data)), None)

    def _free_memory(self) -> memoryview:
        """Return the memory of a free block; wait until there is one."""
        while True:
            with self._changed:
                self._raise_failure()
                if self._free:
                    return self._free.pop()
                was_idle = not self._in_flight
            if not (was_idle and self._resolve_stall()):
                self._growing.raise_error()
                self._wait_for_memory(was_idle)

    def _wait_for_memory(self, was_idle: bool) -> None:
        """Return when a block may be free or the disk is idle."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._free or self._failure or not (was_idle or self._in_flight), timeout=LOOK_S
            )

    def _resolve_stall(self) -> bool:
        """Resolve a stall in which all writes are done and no block is free: the hashes wait for missing bytes or for
        an open block.

        Return whether there was a stall; if not, the hashes are only behind and will free their blocks.
        """
        for file, hashed in self._growing.stalled_files():
            for place, block in self._open.items():
                if (block.file, block.begin) == (file, hashed):
                    self._hand_on(self._open.pop(place))
                    return True
            self._growing.drop_block(file)
            return True
        if len(self._open) * self._block_bytes < BLOCKS_BYTES:
            return False
        self._hand_on(self._open.pop(next(iter(self._open))))
        return True

    def _hand_on(self, block: _Block) -> None:
        with self._changed:
            self._in_flight += 1
        self._growing.offer(block.file, block.begin, block.part(block.begin, block.end), lambda: self._release(block))
        self._writers.submit(self._write, block)

    def _write(self, block: _Block) -> None:
        try:
            self._write_block(block)
            for task in block.tasks:
                self._count(task, -1)
        except BaseException as error:
            self.fail(error)
        finally:
            with self._changed:
                self._in_flight -= 1
                self._changed.notify_all()
            self._release(block)

    def _write_block(self, block: _Block) -> None:
        """Write whole pages with O_DIRECT, and partial pages at both ends through the page cache."""
        first, last = -(-block.begin // PAGE_BYTES) * PAGE_BYTES, block.end // PAGE_BYTES * PAGE_BYTES
        first, last = (first, last) if first < last else (block.end, block.end)
        cached, direct = self._files[block.file], self._direct[block.file]
        write_all(cached, block.part(block.begin, first), block.begin)
        write_all(cached, block.part(last, block.end), last)
        try:
            write_all(direct, block.part(first, last), first)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a device with larger pages
                raise
            write_all(cached, block.part(first, last), first)

    def _release(self, block: _Block) -> None:
        with self._changed:
            block.uses -= 1
            if not block.uses:
                self._free.append(block.memory)
                self._changed.notify_all()

    def _count(self, task: WriteTask, more: int) -> None:
        with self._counting:
            task.left += more
            is_done = not task.left
        if is_done:
            self._done(task)


def block_bytes(files: int) -> int:
    """Return the block size, so that each of `files` files has a few blocks."""
    fair = BLOCKS_BYTES // (BLOCKS_A_FILE * files)
    return max(LEAST_BLOCK_BYTES, min(MOST_BLOCK_BYTES, 1 << fair.bit_length() - 1))
