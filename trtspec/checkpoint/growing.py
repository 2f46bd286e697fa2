# SPDX-License-Identifier: Apache-2.0
"""The SHA-256 of files while they are written, from their beginnings as far as nothing more will be written there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import fields, is_dataclass
from threading import Condition
from types import TracebackType
from typing import Any

from trtspec.checkpoint.safetensors import FileLayout
from trtspec.errors import CheckpointError
from trtspec.hashing import hashing, pieces, threads_beside

Place = tuple[int, int]  # the number of a file, an offset in it

STRETCH_BYTES = 8 << 20  # hashed before another thread may look which file is furthest behind
MOST_UNHASHED = 256 << 20  # what was written is hashed while the page cache still has it


class _File:
    """One file: `ready` is where the first byte may still change, `hashed` how far its digest is."""

    def __init__(self, descriptor: int, layout: FileLayout, digest: Any) -> None:
        self.descriptor, self.nbytes = descriptor, layout.nbytes
        self.begins = sorted(layout.offsets.values())
        self.writers = [0] * len(self.begins)
        self.digest = digest
        self.ready = self.hashed = self._part = 0
        self.is_taken = self.is_spoilt = False

    def part(self, offset: int) -> int:
        """Return the number of the tensor that a byte belongs to."""
        return bisect_right(self.begins, offset) - 1

    def settle(self) -> None:
        """Find how far nobody writes any more."""
        while self._part < len(self.writers) and not self.writers[self._part]:
            self._part += 1
        self.ready = self.begins[self._part] if self._part < len(self.writers) else self.nbytes

    def read_stretch(self) -> Iterator[memoryview]:
        """Yield the next bytes, which are final; each piece counts as hashed once the next one is asked for."""
        end = min(self.ready, self.hashed + STRETCH_BYTES)
        for piece in pieces(self.descriptor, self.hashed, end):
            yield piece
            self.hashed += len(piece)
        if self.hashed < end:
            raise CheckpointError(f"a rank's file ends at byte {self.hashed:,}; it was changed while being written")


class GrowingDigests:
    """The digests of files with a layout, each part of which is final once all tasks that write there are done.

    `writes` are the places in which each task begins to write. A file that is written to where it was hashed already
    gets no digest.
    """

    def __init__(
        self, files: Sequence[int], layouts: Sequence[FileLayout], writes: Mapping[str, Iterable[Place]]
    ) -> None:
        self._code = hashing()
        self._files = [_File(*each, self._code.begin()) for each in zip(files, layouts, strict=True)]
        self._parts = {
            task: {(number, self._files[number].part(offset)) for number, offset in places}
            for task, places in writes.items()
        }
        for number, part in (place for places in self._parts.values() for place in places):
            self._files[number].writers[part] += 1
        for file in self._files:
            file.settle()
        self._changed, self._stopped = Condition(), False
        self._hashing = threads_beside(len(files))
        self._pool = ThreadPoolExecutor(self._hashing, "digest")
        self._work: list[Future[None]] = []

    def __enter__(self) -> GrowingDigests:
        self._work = [self._pool.submit(self._hash) for _ in range(self._hashing)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._pool.shutdown()

    def written(self, number: int, offset: int) -> None:
        """Take note that bytes are written."""
        file = self._files[number]
        file.is_spoilt |= offset < file.ready

    def finish(self, task: str) -> None:
        """Take note that a task has written all its bytes."""
        with self._changed:
            for number, part in self._parts[task]:
                self._files[number].writers[part] -= 1
            for file in self._files:
                file.settle()
            self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Return once little is written that is not hashed yet."""
        with self._changed:  # unbounded: it is being hashed
            self._changed.wait_for(lambda: self._stopped or self._is_ended() or self._unhashed() < MOST_UNHASHED)

    def digests(self) -> list[str | None]:
        """Return the digest of each file once all of it is hashed."""
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
            self._code.grow(grown)

    def _take(self) -> list[_File]:
        """Return the files that are furthest behind, once there are any; none where there is nothing left to do."""
        with self._changed:
            while not self._stopped and any(file.hashed < file.nbytes for file in self._files):
                waiting = [file for file in self._files if file.hashed < file.ready and not file.is_taken]
                if waiting:
                    files = sorted(waiting, key=lambda each: each.hashed - each.ready)[: self._code.most]
                    for file in files:
                        file.is_taken = True
                    return files
                self._changed.wait()  # unbounded: tasks end, or the conversion does
        return []

    def _unhashed(self) -> int:
        return sum(file.ready - file.hashed for file in self._files)

    def _is_ended(self) -> bool:
        return any(each.done() for each in self._work)


def written_by(encoding: object) -> Iterator[Place]:
    """Yield the places in which an encoding begins to write: whatever in it has a rank and an offset."""
    if hasattr(encoding, "rank") and hasattr(encoding, "offset"):
        yield encoding.rank, encoding.offset
    elif isinstance(encoding, tuple):
        for each in encoding:
            yield from written_by(each)
    elif is_dataclass(encoding):
        for field in fields(encoding):
            yield from written_by(getattr(encoding, field.name))
