# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of files while they are written: each file is hashed up to the first byte that may still change.

Writers can offer their bytes from memory; all other bytes are read back from the file.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass
from threading import Condition
from types import TracebackType
from typing import Any

from trtspec.checkpoints.safetensors import FileLayout
from trtspec.core.errors import CheckpointError
from trtspec.core.hashing import background_thread_count, hash_backend, read_chunks, update_digests

Place = tuple[int, int]  # (number of a file, offset in it)

STRETCH_BYTES = 8 << 20  # hashed before the file that is furthest behind is selected again
MOST_UNHASHED = 256 << 20  # small enough that the page cache still has the written bytes
BATCHING_S = 0.005  # time a file waits for others, to be hashed together
MOST_SMALL = 4096  # small pieces kept in memory per file


@dataclass(frozen=True)
class _InMemory:
    data: memoryview
    release: Callable[[], None] | None

    def free(self) -> None:
        if self.release:
            self.release()


class _File:
    """One file: `ready` is the first offset that may still change, `hashed` the end of the hashed bytes.

    `fresh` maps offsets to bytes in memory.
    """

    def __init__(self, descriptor: int, layout: FileLayout, digest: Any) -> None:
        self.descriptor, self.nbytes = descriptor, layout.nbytes
        self.begins = sorted(layout.offsets.values())
        self.writers = [0] * len(self.begins)
        self.digest = digest
        self.ready = self.hashed = self._part = 0
        self.fresh: dict[int, _InMemory] = {}
        self.is_taken = self.is_spoilt = False

    @property
    def has_more(self) -> bool:
        return self.hashed < self.ready or self.hashed in self.fresh

    @property
    def unhashed(self) -> int:
        return max(0, self.ready - self.hashed) + sum(len(each.data) for each in self.fresh.values())

    @property
    def blocks(self) -> list[int]:
        return sorted(offset for offset, fresh in self.fresh.items() if fresh.release)

    def part(self, offset: int) -> int:
        return bisect_right(self.begins, offset) - 1

    def advance_ready(self) -> None:
        """Advance `ready` to the first tensor that still has a writer."""
        while self._part < len(self.writers) and not self.writers[self._part]:
            self._part += 1
        self.ready = self.begins[self._part] if self._part < len(self.writers) else self.nbytes

    def read_stretch(self) -> Iterator[memoryview]:
        """Yield the next final bytes; a piece counts as hashed when the next one is requested."""
        end = self.hashed + STRETCH_BYTES
        while self.hashed < end and self.has_more:
            if fresh := self.fresh.pop(self.hashed, None):
                yield fresh.data
                self.hashed += len(fresh.data)
                fresh.free()
            else:
                yield from self._read_back(min(self.ready, end))

    def _read_back(self, end: int) -> Iterator[memoryview]:
        """Yield the file's bytes up to `end` or the next bytes in memory."""
        end = min([end, *(offset for offset in list(self.fresh) if offset > self.hashed)])
        for piece in read_chunks(self.descriptor, self.hashed, end):
            yield piece
            self.hashed += len(piece)
        if self.hashed < end:
            raise CheckpointError(
                f"a rank's file ends at byte {self.hashed:,}; it was changed while being written", hint="build again"
            )


class StreamingDigests:
    """Digests of files that tasks are writing; a tensor is final when all tasks that write to it are finished.

    `writes` are the places where each task begins to write. A file that is modified after its bytes were hashed gets no
    digest.
    """

    def __init__(
        self, files: Sequence[int], layouts: Sequence[FileLayout], writes: Mapping[str, Iterable[Place]]
    ) -> None:
        self._code = hash_backend()
        self._files = [_File(*each, self._code.begin()) for each in zip(files, layouts, strict=True)]
        self._parts = {
            task: {(number, self._files[number].part(offset)) for number, offset in places}
            for task, places in writes.items()
        }
        for number, part in (place for places in self._parts.values() for place in places):
            self._files[number].writers[part] += 1
        for file in self._files:
            file.advance_ready()
        self._changed, self._stopped = Condition(), False
        self._hashing = background_thread_count(len(files))
        self._most = self._code.most if len(files) > 1 else 1  # a single file cannot be hashed in parallel
        self._pool = ThreadPoolExecutor(self._hashing, "digest")
        self._work: list[Future[None]] = []

    def __enter__(self) -> StreamingDigests:
        self._work = [self._pool.submit(self._hash) for _ in range(self._hashing)]
        for each in self._work:
            each.add_done_callback(lambda _: self._wake())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._pool.shutdown()

    def written(self, number: int, offset: int) -> None:
        """Record a write; the digest is lost if it precedes hashed or final bytes."""
        file = self._files[number]
        file.is_spoilt |= offset < max(file.ready, file.hashed)

    def offer(self, number: int, offset: int, data: memoryview, release: Callable[[], None] | None) -> None:
        """Offer written bytes for hashing from memory; they must not change until `release` is called.

        Without `release`, the object takes ownership, and keeps the bytes if there are not too many.
        """
        with self._changed:
            file = self._files[number]
            if release or len(file.fresh) < MOST_SMALL:
                file.fresh[offset] = _InMemory(data, release)
                self._changed.notify_all()

    def stalled_files(self) -> list[tuple[int, int]]:
        """Return (number, hashed offset) of files whose next bytes are missing although later blocks are in memory."""
        with self._changed:
            return [
                (number, file.hashed)
                for number, file in enumerate(self._files)
                if not file.is_taken and not file.has_more and file.blocks
            ]

    def drop_block(self, number: int) -> None:
        """Drop the last block of a file from memory; it is read back from the file."""
        with self._changed:
            file = self._files[number]
            given_up = None if file.is_taken or not file.blocks else file.fresh.pop(file.blocks[-1])
        if given_up:
            given_up.free()

    def raise_error(self) -> None:
        for each in self._work:
            if each.done():
                each.result()

    def finish(self, task: str) -> None:
        """Record that a task has written all its bytes."""
        with self._changed:
            for number, part in self._parts[task]:
                self._files[number].writers[part] -= 1
            for file in self._files:
                file.advance_ready()
            self._changed.notify_all()

    def wait_for_hashing(self) -> None:
        """Return when few written bytes are unhashed; raise the error of the hashing threads, if any."""
        with self._changed:  # unbounded: hashing progresses
            self._changed.wait_for(lambda: self._stopped or self._is_ended() or self._unhashed() < MOST_UNHASHED)
        self.raise_error()

    def digests(self) -> list[str | None]:
        """Return each file's digest when all bytes are hashed, or None for a file whose digest was lost."""
        for each in self._work:
            each.result()
        return [None if file.is_spoilt else file.digest.hexdigest() for file in self._files]

    def _hash(self) -> None:
        while files := self._take():
            try:
                self._hash_stretches(files)
            finally:
                with self._changed:
                    for file in files:
                        file.is_taken = False
                    self._changed.notify_all()

    def _hash_stretches(self, files: Sequence[_File]) -> None:
        stretches = [(file.digest, file.read_stretch()) for file in files]
        while grown := [(digest, piece) for digest, stretch in stretches if (piece := next(stretch, None))]:
            update_digests(self._code, grown, self._most)

    def _take(self) -> list[_File]:
        """Wait for and return the files that are furthest behind; an empty list when all are hashed."""
        has_waited = False
        with self._changed:
            while not self._stopped and (growing := [file for file in self._files if file.hashed < file.nbytes]):
                waiting = [file for file in growing if file.has_more and not file.is_taken]
                if waiting and (has_waited or self._are_enough(waiting, len(growing))):
                    files = sorted(waiting, key=lambda each: -each.unhashed)[: self._code.most]
                    for file in files:
                        file.is_taken = True
                    return files
                # unbounded: no file waits: a task or the conversion will end
                has_waited = not self._changed.wait(BATCHING_S if waiting else None)
        return []

    def _are_enough(self, waiting: Sequence[_File], growing: int) -> bool:
        """Return whether to start: hashing several files together takes little more time than one."""
        return len(waiting) >= min(self._code.most, growing) or sum(each.unhashed for each in waiting) >= STRETCH_BYTES

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _unhashed(self) -> int:
        return sum(max(0, file.ready - file.hashed) for file in self._files)

    def _is_ended(self) -> bool:
        return any(each.done() for each in self._work)


def write_positions(encoding: object) -> Iterator[Place]:
    """Yield the places where an encoding begins to write: every nested object with a rank and an offset."""
    if hasattr(encoding, "rank") and hasattr(encoding, "offset"):
        yield encoding.rank, encoding.offset
    elif isinstance(encoding, tuple):
        for each in encoding:
            yield from write_positions(each)
    elif is_dataclass(encoding):
        for field in fields(encoding):
            yield from write_positions(getattr(encoding, field.name))
