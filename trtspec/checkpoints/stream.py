# SPDX-License-Identifier: Apache-2.0
"""Move tensors from source files to rank files: in chunks, on several threads, resumable, in constant memory.

All output files are laid out first. A task reads its source tensors once, or twice if a scale must be known first, and
writes each chunk to all ranks that need it. Memory is a few chunks per thread, whatever the model's size. The caller
defines the tasks and their `Encoding`, which maps chunks of rows to encoded rows.

A journal records the tasks whose bytes are on the disk; a second run with the same tasks and directory continues with
the others. The output does not depend on threads or interruptions: each byte has one position and one writer. Tasks run
in the order of their output, so that files are hashed while they grow (streaming_digest.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtspec.checkpoints.direct_io import TaskOutput, WriteTask, open_output
from trtspec.checkpoints.safetensors import ITEM_BYTES, FileLayout, TensorInfo
from trtspec.checkpoints.streaming_digest import StreamingDigests, write_positions
from trtspec.core.errors import CheckpointError
from trtspec.core.files import failpoint, reserve_space, write_all

COMMIT_EVERY_S = 0.5


class ConversionJournal:
    """The names of finished tasks, one per line; without a path nothing is stored.

    The first line is `stamp`, which identifies the sources; a journal with another stamp is discarded. A name is
    written only after the task's bytes are on the disk. A thread syncs twice a second for all tasks that finished since
    the last sync, and continuously if a sync takes longer. A power failure costs about a second of work and never
    corrupts the output. After a disk error nothing more is recorded, and `finish` and the exit raise it, because
    operating systems report a write error only once.
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
    """Return the finished tasks of a journal, and remove an incomplete last line."""
    whole, newline, _ = path.read_bytes().rpartition(b"\n") if path.exists() else (b"", b"", b"")
    first, *names = whole.decode(errors="replace").split("\n")
    if not newline or first != stamp:
        path.write_text(f"{stamp}\n")
        return frozenset()
    os.truncate(path, len(whole) + 1)
    return frozenset(names)


CHUNK_BYTES = 2 << 20
MOST_THREADS = 12  # each has some MB of buffers
MOST_ROW_BYTES = 16 << 20
MOST_PARTS = 16  # of a tensor, read in turns
SHOWN_FLAWS = 12
# Tensors are moved as unsigned integers, because numpy has neither bfloat16 nor float8.
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Destination:
    """The destination of a rectangle of a source tensor: `offset` is the position of its first row in the rank's file.

    Rows there are `width` items wide, and the rectangle fills them.
    """

    rank: int
    rows: range
    columns: range
    offset: int

    @property
    def width(self) -> int:
        return len(self.columns)


@dataclass(frozen=True)
class Transfer:
    """One source tensor and the destinations of its encoded rows."""

    source: TensorInfo
    destinations: tuple[Destination, ...]

    @property
    def num_rows(self) -> int:
        return _matrix(self.source.shape)[0]

    @property
    def parts(self) -> list[range]:
        """Return all rows, divided at the first row of each rank."""
        ends = {end for place in self.destinations for end in (place.rows.start, place.rows.stop)}
        return [range(*pair) for pair in pairwise(sorted({0, self.num_rows, *ends}))]


class Encoding(Protocol):
    def run(self, worker: TransferWorker) -> None:
        """Read, encode and write everything through `worker`."""


@dataclass(frozen=True)
class Task:
    """The unit of progress in the journal; `nbytes` is its number of source bytes."""

    name: str
    encoding: Encoding
    nbytes: int


@dataclass
class ConversionIssues:
    """Invalid values found in source tensors, one line per tensor; thread-safe."""

    allow_nonfinite: bool = False
    lines: dict[str, tuple[str, str | None]] = field(default_factory=dict)

    def add(self, source: TensorInfo, message: str, hint: str | None = None) -> None:
        self.lines.setdefault(f"{source.name}: {message} in {source.file.name}", (str(source.file.parent), hint))

    @property
    def count(self) -> int:
        return len(self.lines)

    def raise_if_any(self) -> None:
        """Raise one CheckpointError with all flaws, sorted by name."""
        if self.lines:
            shown = sorted(self.lines)[:SHOWN_FLAWS]
            more = f"\n  ... and {len(self.lines) - len(shown)} more" if len(self.lines) > len(shown) else ""
            where, hint = self.lines[shown[0]]
            raise CheckpointError(
                "values that cannot be converted:\n  " + "\n  ".join(shown) + more, where=where, hint=hint
            )


class TransferWorker:
    """State of one thread: a read buffer, the output, the flaws and the progress."""

    def __init__(
        self, output: TaskOutput, flaws: ConversionIssues, on_bytes: Callable[[int], None], *, keep: bool
    ) -> None:
        self.flaws = flaws
        self._output, self._on_bytes, self._keep = output, on_bytes, keep
        self._buffer = bytearray(CHUNK_BYTES)

    def run(self, task: Task, number: int) -> None:
        """Run a task; it is not sound if it adds a flaw."""
        self._writing, before = WriteTask(number, task.name), self.flaws.count
        task.encoding.run(self)
        self._writing.is_sound = self.flaws.count == before
        self._output.end(self._writing)

    def chunks(
        self, source: TensorInfo, *, last: bool = True, parts: Sequence[range] = ()
    ) -> Iterator[tuple[int, Rows]]:
        """Yield (number of the first row, bit patterns [rows, columns]) over a tensor, in a reused buffer.

        A one-dimensional tensor has columns of one item. Only the `last` pass over a tensor counts as progress; its
        pages are dropped afterwards. Large `parts` are read in turns, so that the files of several ranks grow, and are
        hashed, in parallel.
        """
        item = ITEM_BYTES[source.dtype]
        rows, columns = _matrix(source.shape)
        row_bytes = columns * item
        if row_bytes > MOST_ROW_BYTES:
            message = f"rows of {row_bytes:,} bytes in {source.name!r}; at most {MOST_ROW_BYTES:,} are converted"
            raise CheckpointError(
                message, where=str(source.file), hint="no supported model has such rows; name another one"
            )
        if row_bytes > len(self._buffer):
            self._buffer = bytearray(row_bytes)
        step = max(1, len(self._buffer) // row_bytes) if row_bytes else max(1, rows)
        with ExitStack() as stack:
            parts = parts if _are_large(parts, step) else [range(rows)]
            files = [stack.enter_context(source.file.open("rb", buffering=0)) for _ in parts]
            for number, begin, end in _turns(parts, step):
                view = memoryview(self._buffer)[: (end - begin) * row_bytes]
                _read_exactly(files[number].fileno(), view, source, begin * row_bytes)
                yield begin, np.frombuffer(view, BITS[item]).reshape(end - begin, columns)
                if last:
                    self._on_bytes(len(view))
            if last and not self._keep:  # reuses the pages: allocating new ones took half of the time
                os.posix_fadvise(files[0].fileno(), source.offset, source.nbytes, os.POSIX_FADV_DONTNEED)

    def write(self, destinations: Sequence[Destination], first: int, rows: Rows) -> None:
        """Write encoded rows [count, columns] to every destination; `first` is the source row of the first one."""
        for place in destinations:
            begin, end = max(first, place.rows.start), min(first + len(rows), place.rows.stop)
            if begin < end:
                part = rows[begin - first : end - first, place.columns.start : place.columns.stop]
                offset = place.offset + (begin - place.rows.start) * place.width * rows.itemsize
                self.put(place.rank, offset, np.ascontiguousarray(part))

    def put(self, rank: int, offset: int, values: Rows) -> None:
        """Write an array's bytes at `offset` of a rank's file."""
        self._output.put(self._writing, rank, offset, memoryview(values.data).cast("B"))


def _are_large(parts: Sequence[range], step: int) -> bool:
    return 1 < len(parts) <= MOST_PARTS and all(len(part) >= step for part in parts)


def _turns(parts: Sequence[range], step: int) -> Iterator[tuple[int, int, int]]:
    """Yield (part number, first row, end row), at most `step` rows of each part in turns."""
    for done in range(0, max(map(len, parts)), step):
        for number, part in enumerate(parts):
            if done < len(part):
                begin = part.start + done
                yield number, begin, min(begin + step, part.stop)


def _matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    return (prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (prod(shape), 1)


def _read_exactly(descriptor: int, view: memoryview, source: TensorInfo, position: int) -> None:
    filled = 0
    while filled < len(view):
        got = os.preadv(descriptor, [view[filled:]], source.offset + position + filled)
        if not got:
            message = f"ends inside tensor {source.name!r}; it was changed while being read"
            raise CheckpointError(message, where=str(source.file), hint="build again when no process writes to it")
        filled += got


def run_tasks(
    out: Path,
    layouts: Sequence[FileLayout],
    tasks: Sequence[Task],
    *,
    flaws: ConversionIssues,
    on_bytes: Callable[[int], None],
    on_resumed: Callable[[int], None],
    journal: Path | None = None,
    stamp: str = "",
    threads: int | None = None,
    keep_cached: bool = False,
) -> dict[str, str]:
    """Fill `out`/rank{r}.safetensors, continuing an earlier run with the same tasks and `journal`.

    Returns the SHA-256 of each file, by file name, except files whose hashing was impossible.

    Without a journal, or with a different `stamp` of the sources, nothing is resumed. `on_bytes` receives the source
    bytes since the last call, from one thread at a time, and `on_resumed` the source bytes of tasks finished in an
    earlier run. With `keep_cached`, sources stay in the page cache for other readers. Raises CheckpointError if source
    values cannot be converted; the files are complete only if it returns.
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
        writes = {
            task.name: sorted(set(write_positions(task.encoding))) for task in tasks if task.name not in notes.done
        }
        todo = sorted((task for task in tasks if task.name in writes), key=lambda task: writes[task.name][:1])
        on_resumed(sum(task.nbytes for task in tasks) - sum(task.nbytes for task in todo))
        growing = stack.enter_context(StreamingDigests(files, layouts, writes))

        def done(task: WriteTask) -> None:
            growing.finish(task.name)
            if task.is_sound:  # else it must run again, to report its flaws again
                notes.finish(task.name)

        nbytes = sum(layout.nbytes for layout in layouts)
        output = stack.enter_context(open_output(paths, files, nbytes, growing, done))
        threads = threads or min(output.tasks_at_once, MOST_THREADS)
        _run_all(todo, threads, lambda: TransferWorker(output, flaws, advance, keep=keep_cached), output, growing)
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
    """Return a descriptor of a file with its header and size; the bytes of an interrupted run are kept."""
    laid_out = _is_laid_out(path, layout)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    stack.callback(os.close, descriptor)
    if not laid_out:
        os.ftruncate(descriptor, 0)  # padding is never written: truncation makes it zero
        reserve_space(descriptor, layout.nbytes)
        write_all(descriptor, layout.header, 0)
    return descriptor


def _run_all(
    tasks: Sequence[Task],
    threads: int,
    make_worker: Callable[[], TransferWorker],
    output: TaskOutput,
    growing: StreamingDigests,
) -> None:
    local, stop = threading.local(), threading.Event()

    def work(number: int, task: Task) -> None:
        growing.wait_for_hashing()
        if stop.is_set():
            return
        if not hasattr(local, "worker"):
            local.worker = make_worker()
        try:
            local.worker.run(task, number)
        except BaseException as error:
            stop.set()
            output.fail(error)
            raise

    with ThreadPoolExecutor(threads) as pool:
        futures = [pool.submit(work, number, task) for number, task in enumerate(tasks)]
        try:
            for future in futures:
                future.result()
        except BaseException as error:
            output.fail(error)
            raise
        finally:
            stop.set()
    output.flush()
