# SPDX-License-Identifier: Apache-2.0
"""Move tensors from source files to rank files: in chunks, on several threads, resumable, in constant memory.

All output files are laid out first. A task reads its source tensors once, or twice if a scale must be known first, and
writes each chunk to all ranks that need it. Memory is a few chunks per thread, whatever the model's size. The caller
defines the tasks and their `Encoding`, which maps chunks of rows to encoded rows.

A journal records the tasks whose bytes are on the disk. A second run with the same tasks and directory continues with
the remaining tasks. The output does not depend on threads or interruptions: each byte has one position and one writer.
Threads write and hash independently (direct_io.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtspec.checkpoints.direct_io import (
    DirectWriter,
    RankFiles,
    RankWriter,
    ReadBuffer,
    SourceFile,
    is_laid_out,
)
from trtspec.checkpoints.safetensors import ITEM_BYTES, FileLayout, TensorInfo
from trtspec.core.errors import CheckpointError
from trtspec.core.files import failpoint
from trtspec.core.hashing import GrowingDigest, Segments

JOURNAL = "trtspec.journal/2"
COMMIT_EVERY_S = 0.5


class ConversionJournal:
    """Journal of finished tasks, one name per line; without a path nothing is stored.

    The first line has the format and `stamp`, which identifies the sources; a journal with another first line is
    discarded. A name is written only after the task's bytes are on the disk. A thread syncs twice a second for all
    tasks that finished since the last sync, and continuously if a sync takes longer. A power failure costs about a
    second of work and never corrupts the output. After a disk error nothing more is recorded, because operating systems
    report a write error only once; `finish` and the exit raise that error.
    """

    def __init__(self, path: Path | None, files: Sequence[int], stamp: str = "") -> None:
        self.done = _tasks_done(path, stamp) if path else frozenset()
        self._path, self._files = path, files
        self._finished: list[str] = []
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="journal", daemon=True)

    def __enter__(self) -> ConversionJournal:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()  # unbounded: waits for the disk
        if not self._failure:
            self._commit()
        elif not kind:
            raise self._failure

    def finish(self, name: str) -> None:
        """Record that all bytes of a task are written; raise an earlier disk error."""
        if self._failure:
            raise self._failure
        with self._lock:
            self._finished.append(name)
        failpoint("journal.finished")

    def _work(self) -> None:
        begun = time.monotonic()
        while not self._stop.wait(max(0.0, begun + COMMIT_EVERY_S - time.monotonic())):
            begun = time.monotonic()
            try:
                self._commit()
            except BaseException as error:
                self._failure = error
                return

    def _commit(self) -> None:
        with self._lock:
            names, self._finished = self._finished, []
        if names and self._path:
            for descriptor in self._files:
                os.fdatasync(descriptor)
            with self._path.open("ab") as file:
                file.write("".join(f"{name}\n" for name in names).encode())
                file.flush()
                os.fsync(file.fileno())
            failpoint("journal.committed")


def _tasks_done(path: Path, stamp: str) -> frozenset[str]:
    """Return the finished tasks of a journal and remove its incomplete last line; reset it if the stamp differs."""
    head = f"{JOURNAL} {stamp}"
    whole, newline, _ = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    first, *names = whole.decode(errors="replace").split("\n")
    if not newline or first != head:
        path.write_text(f"{head}\n")
        return frozenset()
    os.truncate(path, len(whole) + 1)
    return frozenset(names)


CHUNK_BYTES = 2 << 20
PART_BYTES = 32 << 20  # most source bytes of a task that can be divided, so that no thread has the last one for long
REPORT_BYTES = 16 << 20
MOST_ROW_BYTES = 16 << 20
SHOWN_FLAWS = 12
# Tensors are moved as unsigned integers, because numpy has neither bfloat16 nor float8.
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Destination:
    """Position of a rectangle of a source tensor in a rank's file.

    `offset` is the byte offset of the rectangle's first row. Rows in the file are `width` items wide, and the rectangle
    fills them.
    """

    rank: int
    rows: range
    columns: range
    offset: int

    @property
    def width(self) -> int:
        return len(self.columns)

    def within(self, rows: range, item: int) -> Destination:
        """Return the destination of a source that has only `rows` of this one; written items have `item` bytes."""
        begin, end = max(self.rows.start, rows.start), min(self.rows.stop, rows.stop)
        offset = self.offset + (begin - self.rows.start) * self.width * item
        return replace(self, rows=range(begin - rows.start, end - rows.start), offset=offset)


@dataclass(frozen=True)
class Transfer:
    """One source tensor and the destinations of its encoded rows."""

    source: TensorInfo
    destinations: tuple[Destination, ...]

    @property
    def num_rows(self) -> int:
        return _matrix(self.source.shape)[0]

    def split(self, item: int) -> list[Transfer]:
        """Return transfers of at most PART_BYTES, or of one row; written items have `item` bytes."""
        rows, columns = _matrix(self.source.shape)
        step = max(1, PART_BYTES // max(1, columns * ITEM_BYTES[self.source.dtype]))
        return [self._part(range(first, min(first + step, rows)), item) for first in range(0, rows, step)]

    def _part(self, rows: range, item: int) -> Transfer:
        """Return the transfer of some rows of the source."""
        source, columns = self.source, _matrix(self.source.shape)[1]
        row_bytes = columns * ITEM_BYTES[source.dtype]
        offset, nbytes = source.offset + rows.start * row_bytes, len(rows) * row_bytes
        part = replace(source, shape=(len(rows), columns), offset=offset, nbytes=nbytes)
        destinations = (place.within(rows, item) for place in self.destinations)
        return Transfer(part, tuple(place for place in destinations if place.rows))

    def in_sequence(self) -> list[Destination]:
        """Return the destinations in source order if each byte belongs to exactly one of them, else []."""
        rows, columns = _matrix(self.source.shape)
        parts = sorted(self.destinations, key=lambda part: part.rows.start)
        ends = [0, *(part.rows.stop for part in parts)]
        follow = all(part.rows.start == end and part.width == columns for part, end in zip(parts, ends, strict=False))
        aligned = not any(part.offset % ITEM_BYTES[self.source.dtype] for part in parts)
        return parts if follow and aligned and ends[-1] == rows else []


class Encoding(Protocol):
    def run(self, worker: TransferWorker) -> None:
        """Read the source tensors, encode them and write the output through `worker`."""


@dataclass(frozen=True)
class Task:
    """Unit of work and of progress in the journal; `nbytes` is the number of source bytes it reads."""

    name: str
    encoding: Encoding
    nbytes: int


@dataclass
class ConversionIssues:
    """Numbers of invalid values in source tensors, one line per tensor and kind; safe for use by several threads."""

    allow_nonfinite: bool = False
    found: dict[tuple[TensorInfo, str, str | None], dict[int, tuple[int, ...]]] = field(default_factory=dict)

    def add(self, source: TensorInfo, message: str, *counts: int, hint: str | None = None) -> None:
        """Record an issue; `message` formats `counts`, which are added up over the parts of a tensor."""
        whole = replace(source, shape=(), offset=0, nbytes=0)  # equal for all parts
        self.found.setdefault((whole, message, hint), {})[source.offset] = counts

    @property
    def count(self) -> int:
        return sum(map(len, list(self.found.values())))

    def raise_if_any(self) -> None:
        """Raise one CheckpointError that lists all issues by tensor name, if there are any."""
        lines = {
            f"{source.name}: {message.format(*map(sum, zip(*parts.values(), strict=True)))} in {source.file.name}": (
                str(source.file.parent),
                hint,
            )
            for (source, message, hint), parts in self.found.items()
        }
        if lines:
            shown = sorted(lines)[:SHOWN_FLAWS]
            more = f"\n  ... and {len(lines) - len(shown)} more" if len(lines) > len(shown) else ""
            where, hint = lines[shown[0]]
            raise CheckpointError(
                "values that cannot be converted:\n  " + "\n  ".join(shown) + more, where=where, hint=hint
            )


class TransferWorker:
    """State of one conversion thread: its read buffer, output, issues, digests of source files, progress callback."""

    def __init__(
        self,
        output: RankWriter,
        flaws: ConversionIssues,
        on_bytes: Callable[[int], None],
        digests: Mapping[Path, GrowingDigest],
    ) -> None:
        self.flaws = flaws
        self._output, self._on_bytes, self._digests = output, on_bytes, digests
        self._buffer = ReadBuffer(CHUNK_BYTES)
        self._file: SourceFile | None = None
        self._unreported = 0

    def run(self, task: Task) -> bool:
        """Run a task and flush its output; return False if the task recorded an issue."""
        before = self.flaws.count
        task.encoding.run(self)
        self._output.flush()
        self._report(0)
        return self.flaws.count == before

    def close(self) -> None:
        """Close the source file that was read last."""
        if self._file:
            self._file.close()

    def copy(self, transfer: Transfer, check: Callable[[Rows], None]) -> None:
        """Write a tensor unchanged to its destinations; `check` gets the bit patterns of every value once.

        Bytes in the page cache are read directly into the memory that they are written from, if each belongs to one
        destination and every destination has whole rows.
        """
        source, output, parts = transfer.source, self._output, transfer.in_sequence()
        file = self._open(source.file)
        if not (
            parts
            and isinstance(output, DirectWriter)
            and output.gathers(source.nbytes)
            and file.is_cached(source.offset, source.end)
        ):
            for first, bits in self.chunks(source):
                check(bits)
                self.write(transfer.destinations, first, bits)
            return
        position, dtype = source.offset, BITS[ITEM_BYTES[source.dtype]]
        for part in parts:
            offset, end = part.offset, part.offset + len(part.rows) * part.width * np.dtype(dtype).itemsize
            while offset < end:
                view = output.space(part.rank, offset)[: end - offset]
                self._check_read(source, len(view), file.read_into(view, position))
                self._hash(source, position, view)
                check(np.frombuffer(view, dtype).reshape(1, -1))
                output.fill(part.rank, len(view))
                offset, position = offset + len(view), position + len(view)
                self._report(len(view))
        self._drop(file, source)

    def _open(self, path: Path) -> SourceFile:
        """Return the open source file; only the last one stays open, because a model may have hundreds."""
        if self._file is None or self._file.path != path:
            self.close()
            self._file = SourceFile(path)
        return self._file

    def _check_read(self, source: TensorInfo, nbytes: int, count: int) -> None:
        if count < nbytes:
            message = f"ends inside tensor {source.name!r}; it was changed while being read"
            hint = "build again when no process writes to it"
            raise CheckpointError(message, where=str(source.file), hint=hint)

    def _hash(self, source: TensorInfo, position: int, view: memoryview) -> None:
        if source.file in self._digests:
            self._digests[source.file].add(position, view)

    def _drop(self, file: SourceFile, source: TensorInfo) -> None:
        """Drop a tensor's pages: the kernel reuses them, and allocating new ones took half of the time."""
        os.posix_fadvise(file.descriptor, source.offset, source.nbytes, os.POSIX_FADV_DONTNEED)

    def _report(self, count: int) -> None:
        """Count bytes as processed, and report all of them at the end of a task and after some MiB."""
        self._unreported += count
        if self._unreported and (not count or self._unreported >= REPORT_BYTES):
            self._on_bytes(self._unreported)
            self._unreported = 0

    def chunks(self, source: TensorInfo, *, last: bool = True) -> Iterator[tuple[int, Rows]]:
        """Yield (number of the first row, bit patterns [rows, columns]) over a tensor, in a reused buffer.

        A one-dimensional tensor has columns of one item. Only the `last` pass over a tensor counts as progress and is
        hashed; its pages are dropped from the page cache afterwards. Raises CheckpointError for rows larger than
        MOST_ROW_BYTES.
        """
        item = ITEM_BYTES[source.dtype]
        rows, columns = _matrix(source.shape)
        row_bytes = columns * item
        if row_bytes > MOST_ROW_BYTES:
            message = f"rows of {row_bytes:,} bytes in {source.name!r}; at most {MOST_ROW_BYTES:,} are converted"
            raise CheckpointError(
                message, where=str(source.file), hint="no supported model has such rows; name another one"
            )
        if row_bytes > self._buffer.nbytes:
            self._buffer = ReadBuffer(row_bytes)
        step = max(1, self._buffer.nbytes // row_bytes) if row_bytes else max(1, rows)
        file = self._open(source.file)
        direct = last and not file.is_cached(source.offset, source.end)
        for begin in range(0, rows, step):
            end = min(begin + step, rows)
            position, nbytes = source.offset + begin * row_bytes, (end - begin) * row_bytes
            view = self._buffer.read(file, position, nbytes, direct=direct)
            self._check_read(source, nbytes, len(view))
            if last:
                self._hash(source, position, view)
            yield begin, np.frombuffer(view, BITS[item]).reshape(end - begin, columns)
            if last:
                self._report(len(view))
        if last:
            self._drop(file, source)

    def write(self, destinations: Sequence[Destination], first: int, rows: Rows) -> None:
        """Write encoded rows [count, columns] to every destination; `first` is the source row of the first one."""
        for place in destinations:
            begin, end = max(first, place.rows.start), min(first + len(rows), place.rows.stop)
            if begin < end:
                part = rows[begin - first : end - first, place.columns.start : place.columns.stop]
                offset = place.offset + (begin - place.rows.start) * place.width * rows.itemsize
                self.put(place.rank, offset, np.ascontiguousarray(part))

    def put(self, rank: int, offset: int, values: Rows) -> None:
        """Write an array's bytes at the byte offset `offset` of a rank's file."""
        self._output.put(rank, offset, memoryview(values.data).cast("B"))


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (prod(shape), 1)


class TaskQueue:
    """Queue that assigns each thread a part of the task sequence, with about the same number of bytes.

    A thread that has finished its part takes half of the longest remaining part. If the tasks are in output order, they
    are therefore written, and hashed, mostly in sequence.
    """

    def __init__(self, tasks: Sequence[Task], threads: int) -> None:
        self._lock, self._parts = threading.Lock(), [list[Task]() for _ in range(threads)]
        done, total = 0, max(1, sum(task.nbytes for task in tasks))
        for task in tasks:
            self._parts[min(threads - 1, done * threads // total)].append(task)
            done += task.nbytes

    def take(self, thread: int) -> Task | None:
        """Return a thread's next task, or None once all tasks are taken."""
        with self._lock:
            if not self._parts[thread]:
                longest = max(self._parts, key=lambda part: sum(task.nbytes for task in part))
                half = len(longest) // 2
                self._parts[thread], longest[half:] = longest[half:], []
            return self._parts[thread].pop(0) if self._parts[thread] else None

    def clear(self) -> None:
        """Discard all remaining tasks."""
        with self._lock:
            for part in self._parts:
                part.clear()


def run_tasks(
    out: Path,
    layouts: Sequence[FileLayout],
    tasks: Sequence[Task],
    *,
    flaws: ConversionIssues,
    on_bytes: Callable[[int], None],
    journal: Path | None = None,
    stamp: str = "",
    digests: Mapping[Path, GrowingDigest],
    threads: int | None = None,
) -> dict[str, Segments]:
    """Write `out`/rank{r}.safetensors, continuing an earlier run with the same tasks and `journal`.

    Returns the segments of each file, by file name. Files are hashed mostly while they are written if the tasks are in
    output order; any other order gives the same result.

    Without a journal, or with a different `stamp` of the sources, nothing is resumed. `on_bytes` receives the source
    bytes since the last call, from one thread at a time; its first call has the bytes of tasks finished in an earlier
    run. Raises CheckpointError if source values cannot be converted. The files are complete only if the function
    returns.
    """
    lock = threading.Lock()

    def advance(count: int) -> None:
        with lock:
            on_bytes(count)

    with ExitStack() as stack:
        paths = [out / f"rank{rank}.safetensors" for rank in range(len(layouts))]
        if journal and not all(map(is_laid_out, paths, layouts)):
            journal.unlink(missing_ok=True)
        output = RankFiles(stack, paths, layouts)
        notes = stack.enter_context(ConversionJournal(journal, output.files, stamp))
        todo = [task for task in tasks if task.name not in notes.done]
        advance(sum(task.nbytes for task in tasks) - sum(task.nbytes for task in todo))
        threads = threads or output.threads
        queue = TaskQueue(todo, threads)

        def work(thread: int) -> None:
            worker = TransferWorker(output.writer(threads), flaws, advance, digests)
            try:
                while task := queue.take(thread):
                    if worker.run(task):  # a task with flaws is not finished, so that the next run reports them again
                        notes.finish(task.name)
            except BaseException:
                queue.clear()
                raise
            finally:
                worker.close()

        with ThreadPoolExecutor(threads) as pool:
            try:
                for each in [pool.submit(work, thread) for thread in range(threads)]:
                    each.result()
            finally:
                queue.clear()  # also after an interrupt
        flaws.raise_if_any()
        return output.segments()
