# SPDX-License-Identifier: Apache-2.0
"""Move tensors from source files to rank files: chunk by chunk, on several threads, resumable, in flat memory.

Every output file is laid out first. A task reads its source tensors once (twice where a scale has to be known first)
and writes each chunk to all ranks that need it, so memory is a few chunks a thread, whatever the model's size. Which
tensors make a task, and what becomes of their bits, is the caller's: an `Encoding` sees chunks of rows and hands back
rows.

A journal names the tasks whose bytes have reached the disk; whoever runs the same tasks again on the same directory
goes on with the others. Bytes do not depend on threads or interruptions: each has one place and one writer. Tasks run
in the order of what they write, so that files are hashed while they grow (growing.py).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtspec.checkpoint.growing import GrowingDigests, written_by
from trtspec.checkpoint.journal import ConversionJournal
from trtspec.checkpoint.safetensors import ITEM_BYTES, FileLayout, TensorInfo
from trtspec.errors import CheckpointError
from trtspec.hashing import write_all

CHUNK_BYTES = 1 << 20
MOST_THREADS = 12  # each has some 7 MB of buffers
MOST_ROW_BYTES = 16 << 20
SHOWN_FLAWS = 12
# What is moved is bit patterns, which numpy has for every dtype, as it has no bfloat16 and no float8.
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Destination:
    """Where a rectangle of a source tensor goes: `offset` is where its first row begins in the file of a rank.

    Rows there are `width` items wide, all of which the rectangle fills.
    """

    rank: int
    rows: range
    columns: range
    offset: int

    @property
    def width(self) -> int:
        """Return the items of a row."""
        return len(self.columns)


@dataclass(frozen=True)
class Transfer:
    """One source tensor and the places its encoded rows go to."""

    source: TensorInfo
    destinations: tuple[Destination, ...]


class Encoding(Protocol):
    """What becomes of the tensors of a task."""

    def run(self, worker: Worker) -> None:
        """Read, encode and write everything through `worker`."""


@dataclass(frozen=True)
class Task:
    """The smallest unit that is done or not; `nbytes` of source are read for it."""

    name: str
    encoding: Encoding
    nbytes: int


@dataclass
class Flaws:
    """What was found wrong with the values of source tensors: one line a tensor; filled by all threads."""

    allow_nonfinite: bool = False
    lines: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def add(self, source: TensorInfo, message: str, hint: str | None = None) -> None:
        """Note a flaw of a tensor."""
        self.lines.setdefault(f"{source.name}: {message} in {source.file.name}", (str(source.file.parent), hint))

    @property
    def count(self) -> int:
        """Return how many tensors have a flaw."""
        return len(self.lines)

    def raise_if_any(self) -> None:
        """Raise one CheckpointError with all flaws, by name."""
        if self.lines:
            shown = sorted(self.lines)[:SHOWN_FLAWS]
            more = f"\n  ... and {len(self.lines) - len(shown)} more" if len(self.lines) > len(shown) else ""
            where, hint = self.lines[shown[0]]
            raise CheckpointError(
                "values that cannot be converted:\n  " + "\n  ".join(shown) + more, where=where, hint=hint
            )


class Worker:
    """What one thread works with: a read buffer, the open rank files, the count of bytes."""

    def __init__(
        self,
        files: Sequence[int],
        flaws: Flaws,
        on_bytes: Callable[[int], None],
        growing: GrowingDigests,
        *,
        keep: bool,
    ) -> None:
        self.flaws = flaws
        self._files, self._on_bytes, self._growing, self._keep = files, on_bytes, growing, keep
        self._buffer = bytearray(CHUNK_BYTES)

    def chunks(self, source: TensorInfo, *, last: bool = True) -> Iterator[tuple[int, Rows]]:
        """Yield (number of the first row, bit patterns [rows, columns]) over a tensor, in a buffer used again.

        A one-dimensional tensor has columns of one item. The `last` reading of a tensor is the one that counts as
        progress, and after which its pages are no longer wanted.
        """
        item = ITEM_BYTES[source.dtype]
        rows, columns = _matrix(source.shape)
        row_bytes = columns * item
        if row_bytes > MOST_ROW_BYTES:
            message = f"rows of {row_bytes:,} bytes in {source.name!r}; at most {MOST_ROW_BYTES:,} are converted"
            raise CheckpointError(message, where=str(source.file))
        if row_bytes > len(self._buffer):
            self._buffer = bytearray(row_bytes)
        step = max(1, len(self._buffer) // row_bytes) if row_bytes else rows
        with source.file.open("rb", buffering=0) as file:
            for first in range(0, rows, max(1, step)):
                count = min(step, rows - first)
                view = memoryview(self._buffer)[: count * row_bytes]
                _read_exactly(file.fileno(), view, source, first * row_bytes)
                yield first, np.frombuffer(view, BITS[item]).reshape(count, columns)
                if last:
                    self._on_bytes(len(view))
            if last and not self._keep:  # its pages serve the next tensor: finding fresh ones took half of the time
                os.posix_fadvise(file.fileno(), source.offset, source.nbytes, os.POSIX_FADV_DONTNEED)

    def write(self, destinations: Sequence[Destination], first: int, rows: Rows) -> None:
        """Write encoded rows [count, columns], the first of which is row `first` of the source, to every place."""
        for place in destinations:
            begin, end = max(first, place.rows.start), min(first + len(rows), place.rows.stop)
            if begin < end:
                part = rows[begin - first : end - first, place.columns.start : place.columns.stop]
                offset = place.offset + (begin - place.rows.start) * place.width * rows.itemsize
                self.put(place.rank, offset, np.ascontiguousarray(part))

    def put(self, rank: int, offset: int, values: Rows) -> None:
        """Write an array's bytes at `offset` of a rank's file."""
        self._growing.written(rank, offset)
        write_all(self._files[rank], memoryview(values.data).cast("B"), offset)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (prod(shape), 1)


def _read_exactly(descriptor: int, view: memoryview, source: TensorInfo, position: int) -> None:
    filled = 0
    while filled < len(view):
        got = os.preadv(descriptor, [view[filled:]], source.offset + position + filled)
        if not got:
            message = f"ends inside tensor {source.name!r}; it was changed while being read"
            raise CheckpointError(message, where=str(source.file))
        filled += got


def run_tasks(
    out: Path,
    layouts: Sequence[FileLayout],
    tasks: Sequence[Task],
    *,
    flaws: Flaws,
    on_bytes: Callable[[int], None],
    journal: Path | None = None,
    stamp: str = "",
    threads: int | None = None,
    keep_cached: bool = False,
) -> dict[str, str]:
    """Fill `out`/rank{r}.safetensors, going on where an earlier run with the same tasks and `journal` stopped.

    Returns the SHA-256 of what was written, by file name.

    Without a journal nothing can be resumed, nor with one of another `stamp` of the sources. `on_bytes` is told the
    source bytes done since the last call, from one thread at a time; with `keep_cached` sources stay in the page cache,
    because somebody else reads them meanwhile. Raises CheckpointError where source values cannot
    be converted; the files are whole only if it returns.
    """
    lock = threading.Lock()

    def advance(count: int) -> None:
        with lock:
            on_bytes(count)

    with ExitStack() as stack:
        paths = [out / f"rank{rank}.safetensors" for rank in range(len(layouts))]
        if journal and not all(map(_is_laid_out, paths, layouts)):
            journal.unlink(missing_ok=True)
        files = [_open_file(stack, path, layout) for path, layout in zip(paths, layouts, strict=True)]
        notes = stack.enter_context(ConversionJournal(journal, files, stamp))
        writes = {task.name: sorted(set(written_by(task.encoding))) for task in tasks if task.name not in notes.done}
        todo = sorted((task for task in tasks if task.name in writes), key=lambda task: writes[task.name][:1])
        advance(sum(task.nbytes for task in tasks) - sum(task.nbytes for task in todo))
        growing = stack.enter_context(GrowingDigests(files, layouts, writes))
        # more threads than cores, because most of them wait for the disk
        threads = threads or min(2 * (os.cpu_count() or 1) + 1, MOST_THREADS)
        _run_all(todo, threads, lambda: Worker(files, flaws, advance, growing, keep=keep_cached), notes, growing)
        flaws.raise_if_any()
        found = zip(paths, growing.digests(), strict=True)
        return {path.name: digest for path, digest in found if digest}


def _is_laid_out(path: Path, layout: FileLayout) -> bool:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size == layout.nbytes and file.read(len(layout.header)) == layout.header
    except FileNotFoundError:
        return False


def _open_file(stack: ExitStack, path: Path, layout: FileLayout) -> int:
    """Return a descriptor of a file that has its header and its size; what an interrupted run wrote stays."""
    laid_out = _is_laid_out(path, layout)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    stack.callback(os.close, descriptor)
    if not laid_out:
        os.ftruncate(descriptor, 0)  # padding is never written: it is what is zero from here on
        os.posix_fallocate(descriptor, 0, layout.nbytes)  # a full disk is found before the work
        os.pwrite(descriptor, layout.header, 0)
    return descriptor


def _run_all(
    tasks: Sequence[Task],
    threads: int,
    make_worker: Callable[[], Worker],
    journal: ConversionJournal,
    growing: GrowingDigests,
) -> None:
    local, stop = threading.local(), threading.Event()

    def work(task: Task) -> None:
        growing.wait_for_room()
        if stop.is_set():
            return
        if not hasattr(local, "worker"):
            local.worker = make_worker()
        before = local.worker.flaws.count
        try:
            task.encoding.run(local.worker)
        except BaseException:
            stop.set()
            raise
        growing.finish(task.name)
        if local.worker.flaws.count == before:  # else it runs again, to be found wrong again
            journal.finish(task.name)

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work, task) for task in tasks]
        try:
            for future in futures:
                future.result()
        finally:
            stop.set()
