# SPDX-License-Identifier: Apache-2.0
"""How the bytes of a conversion get into its files: through the page cache, or past it in whole blocks.

Small outputs go through the page cache, so that the next reader finds them there. Large outputs are gathered in blocks,
hashed in memory and written with O_DIRECT: the page cache costs 1.5 s of processor time per GB, O_DIRECT 0.1 s
(benchmarks/experiments/log.md, 2026-11-25).

A file is hashed from its beginning, and there are few blocks: so one task writes at a time, in the order of what they
write, while others read ahead to their first write. What cannot be hashed in its turn is read back once it is final.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Condition, Lock
from typing import Protocol

import numpy as np

from trtspec.checkpoints.streaming_digest import GrowingDigests
from trtspec.core.files import write_all

CORES = os.cpu_count() or 1
PAGE_BYTES = mmap.PAGESIZE
BLOCKS_BYTES = 24 << 20  # all of them
MOST_BLOCK_BYTES, LEAST_BLOCK_BYTES = 1 << 20, max(PAGE_BYTES, 16 << 10)
BLOCKS_A_FILE = 4  # at least
SMALL_BYTES = 32 << 10  # a write that continues no block and is smaller begins none
LEAST_BYTES = 256 << 20  # of all files, to be written past the page cache
WRITERS = 4  # threads that wait for the disk
LOOK_S = 0.1  # at most between two looks whether there is a free block


@dataclass
class Writing:
    """A task that writes; `left` counts what has to be done until its bytes are in the file."""

    number: int
    name: str
    is_sound: bool = True
    left: int = 1


Done = Callable[[Writing], None]


class Output(Protocol):
    """Where tasks put their bytes; tasks are numbered in the order of what they write. Threads share it."""

    tasks_at_once: int

    def put(self, task: Writing, file: int, offset: int, data: memoryview) -> None:
        """Write bytes at `offset` of a file; they may be changed afterwards."""

    def end(self, task: Writing) -> None:
        """Take note that a task puts nothing more."""

    def fail(self, error: BaseException) -> None:
        """Let all that wait raise `error`."""

    def flush(self) -> None:
        """Return once all bytes are in the files; raises what went wrong."""


@contextmanager
def open_output(
    paths: Sequence[Path], files: Sequence[int], nbytes: int, growing: GrowingDigests, done: Done
) -> Iterator[Output]:
    """Yield how to write `nbytes` to files; `done` is called for each task whose bytes are in them."""
    with ExitStack() as stack:
        direct = _open_direct(stack, paths) if nbytes >= LEAST_BYTES else None
        if direct is None:
            yield ThroughCache(files, growing, done)
        else:
            yield stack.enter_context(InBlocks(files, direct, growing, done))


def _open_direct(stack: ExitStack, paths: Sequence[Path]) -> list[int] | None:
    """Return descriptors that write past the page cache; None where a file system has no such thing."""
    try:
        direct = []
        for path in paths:
            direct.append(os.open(path, os.O_WRONLY | os.O_DIRECT))
            stack.callback(os.close, direct[-1])
    except (AttributeError, OSError):  # there is no O_DIRECT on other systems
        return None
    return direct


class ThroughCache:
    """Writes at once, from as many threads as there are."""

    tasks_at_once = 2 * CORES + 1  # more than cores, because most of them wait for the disk

    def __init__(self, files: Sequence[int], growing: GrowingDigests, done: Done) -> None:
        self._files, self._growing, self._done = files, growing, done

    def put(self, task: Writing, file: int, offset: int, data: memoryview) -> None:
        """Write bytes."""
        self._growing.written(file, offset)
        write_all(self._files[file], data, offset)

    def end(self, task: Writing) -> None:
        """Call `done`."""
        self._done(task)

    def fail(self, error: BaseException) -> None:
        """Nobody waits."""

    def flush(self) -> None:
        """All is written."""


@dataclass(eq=False)
class _Block:
    """Bytes `begin` to `end` of a file, in memory that begins where `base` would; `uses` are the disk and the hash."""

    file: int
    base: int
    begin: int
    end: int
    memory: memoryview
    tasks: list[Writing] = field(default_factory=list)
    uses: int = 2

    @property
    def is_full(self) -> bool:
        return self.end == self.base + len(self.memory)

    def part(self, begin: int, end: int) -> memoryview:
        return self.memory[begin - self.base : end - self.base]

    def take(self, data: memoryview) -> int:
        """Copy as many bytes as there is room for; returns how many."""
        count = min(data.nbytes, self.base + len(self.memory) - self.end)
        into = np.frombuffer(self.part(self.end, self.end + count), np.uint8)
        into[:] = np.frombuffer(data[:count], np.uint8)  # leaves Python's lock to others
        self.end += count
        return count


class InBlocks:
    """Gathers what one task after the other puts; `_open` are blocks by the place where they go on, oldest first."""

    tasks_at_once = CORES  # one writes, the others look for the largest values of what they will write

    def __init__(self, files: Sequence[int], direct: Sequence[int], growing: GrowingDigests, done: Done) -> None:
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

    def __enter__(self) -> InBlocks:
        return self

    def __exit__(self, *_: object) -> None:
        self._writers.shutdown()

    def put(self, task: Writing, file: int, offset: int, data: memoryview) -> None:
        """Add to the block that goes on at `offset`, or begin one there, once it is the task's turn."""
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

    def end(self, task: Writing) -> None:
        """Let the next task write; blocks stay open, as it may go on with them."""
        with self._changed:
            self._ended.add(task.number)
            while self._turn in self._ended:
                self._ended.remove(self._turn)
                self._turn += 1
            self._changed.notify_all()
        self._count(task, -1)

    def fail(self, error: BaseException) -> None:
        """Let all that wait raise `error`, unless there was one before."""
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def flush(self) -> None:
        """Write what is open, and wait for the disk."""
        for place in list(self._open):
            self._hand_on(self._open.pop(place))
        with self._changed:  # unbounded: the disk
            self._changed.wait_for(lambda: not self._in_flight)
            self._raise_failure()

    def _await_turn(self, task: Writing) -> None:
        with self._changed:  # unbounded: tasks before it end, or one fails
            self._changed.wait_for(lambda: self._turn == task.number or self._failure)
            self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failure:
            raise self._failure

    def _put_small(self, file: int, offset: int, data: memoryview) -> None:
        write_all(self._files[file], data, offset)
        self._growing.offer(file, offset, memoryview(bytearray(data)), None)

    def _free_memory(self) -> memoryview:
        """Return a block's memory, once there is some."""
        while True:
            with self._changed:
                self._raise_failure()
                if self._free:
                    return self._free.pop()
                was_idle = not self._in_flight
            if not (was_idle and self._make_room()):
                self._growing.raise_error()
                self._wait_for_memory(was_idle)

    def _wait_for_memory(self, was_idle: bool) -> None:
        """Return when a block may be free, and when the disk has nothing more to do."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._free or self._failure or not (was_idle or self._in_flight), timeout=LOOK_S
            )

    def _make_room(self) -> bool:
        """Go on where all is written and no block is free: hashes wait for bytes that are in none, or in an open one.

        Returns whether it was so; otherwise hashes are only behind, and free what they have hashed.
        """
        for file, hashed in self._growing.waiting_in_vain():
            for place, block in self._open.items():
                if (block.file, block.begin) == (file, hashed):
                    self._hand_on(self._open.pop(place))
                    return True
            self._growing.let_go(file)
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
        """Write whole pages past the page cache, and what begins or ends within a page through it."""
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

    def _count(self, task: Writing, more: int) -> None:
        with self._counting:
            task.left += more
            is_done = not task.left
        if is_done:
            self._done(task)


def block_bytes(files: int) -> int:
    """Return how large a block is, so that each of some files has a few."""
    fair = BLOCKS_BYTES // (BLOCKS_A_FILE * files)
    return max(LEAST_BLOCK_BYTES, min(MOST_BLOCK_BYTES, 1 << fair.bit_length() - 1))
