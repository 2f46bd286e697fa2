# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of whole files, read in pieces, for builds, verification, publishing and the store.

SHA-256 is sequential: one file is hashed on one core. Reading and hashing release the GIL, so several files are hashed
in parallel, next to other I/O. With a multi-buffer implementation (`set_hash_backend`), one thread hashes several files
in little more than the time of one.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from threading import Condition
from typing import Any, Protocol

from trtspec.core.errors import TrtspecError
from trtspec.core.files import map_in_threads, open_regular, write_all

PIECE_BYTES = 1 << 20
MIN_SHARED_BYTES = 64 << 10  # smaller pieces are not combined with others
RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
NOT_READY = (errno.EAGAIN, errno.EOPNOTSUPP)  # not in the page cache; RWF_NOWAIT unsupported

OnBytes = Callable[[int], None]
OnFound = Callable[[int, str], None]  # index of the file, its digest


class Digest(Protocol):
    """An incremental digest, as of hashlib."""

    def hexdigest(self) -> str:
        """Return the digest of the bytes hashed so far."""


class HashBackend(Protocol):
    """A hash implementation that updates up to `most` digests together; thread-safe."""

    most: int

    def begin(self) -> Any:
        """Return a new digest, to be updated by this implementation only."""

    def grow(self, grown: Sequence[tuple[Any, memoryview]]) -> None:
        """Update all the digests with one more piece each; the pieces must be in writable memory."""


class HashlibBackend:
    """The implementation of the standard library."""

    most = 1

    def begin(self) -> Any:
        """Return a digest of hashlib."""
        return hashlib.sha256()

    def grow(self, grown: Sequence[tuple[Any, memoryview]]) -> None:
        """Update the digests one after another."""
        for digest, data in grown:
            digest.update(data)


_used: list[HashBackend] = [HashlibBackend()]


def set_hash_backend(code: HashBackend) -> None:
    """Use another implementation in this process; it must compute the same digests."""
    _used[0] = code


def hash_backend() -> HashBackend:
    """Return the hash implementation of this process."""
    return _used[0]


def background_thread_count(files: int) -> int:
    """Return the number of threads that hash `files` files in the background: at most one file per core."""
    return max(1, min(files, -(-(os.cpu_count() or 1) // hash_backend().most)))


def file_sha256(path: Path, on_bytes: OnBytes | None = None) -> str:
    """Return the SHA-256 of a file; `on_bytes` receives the size of each piece read."""
    return files_sha256([path], on_bytes)[0]


def files_sha256(paths: Sequence[Path], on_bytes: OnBytes | None = None, threads: int | None = None) -> list[str]:
    """Return the SHA-256 of each file, using `threads` (default: all cores); `on_bytes` receives the sizes read."""
    return ParallelFileHasher(paths, on_bytes).digests(threads or os.cpu_count() or 1)


def update_digests(code: HashBackend, grown: Sequence[tuple[Any, memoryview]], most: int) -> None:
    """Update digests, together with pieces that a running `ParallelFileHasher` has ready, at most `most` in all.

    Sharing a call takes little more time in total, but delays each digest.
    """
    free, nbytes = min(code.most, most) - len(grown), max(data.nbytes for _, data in grown)
    beside = next((each for each in [*_beside] if each.code is code), None)
    if beside is None or free <= 0 or nbytes < MIN_SHARED_BYTES:
        code.grow(grown)
        return
    with beside.lease(free, nbytes) as borrowed:
        code.grow([*grown, *((each.digest, each.piece) for each in borrowed)])


class _HashedFile:
    """A file being hashed: its index `number`, the number of bytes `hashed`, and the next piece."""

    def __init__(self, number: int, path: Path, digest: Any) -> None:
        self.number, self.digest, self.hashed = number, digest, 0
        self.path, self.file = path, open_regular(path)
        self.nbytes = os.fstat(self.file.fileno()).st_size
        self.piece = self._buffer = memoryview(bytearray(PIECE_BYTES))

    def read(self, nbytes: int, flags: int = 0) -> None:
        """Read the next piece of at most `nbytes`, empty at the end; raise TrtspecError if the file has grown."""
        if self.hashed > self.nbytes:  # a file that grows as fast as it is read would never be complete
            hint = "wait until the program that writes it has ended"
            raise TrtspecError("the file changed while it was being read", where=str(self.path), hint=hint)
        wanted = self._buffer[: min(nbytes, PIECE_BYTES)]
        self.piece = wanted[: os.preadv(self.file.fileno(), [wanted], self.hashed, flags)]

    def ensure_complete(self) -> None:
        """Raise TrtspecError if the number of hashed bytes differs from the file's size."""
        if self.hashed != (size := os.fstat(self.file.fileno()).st_size):
            message = f"{self.hashed:,} of its {size:,} bytes were read; the file changed while it was being read"
            hint = "wait until the program that writes it has ended"
            raise TrtspecError(message, where=str(self.path), hint=hint)


class ParallelFileHasher:
    """Hashes files in several threads; other hashing threads can process some of its pieces too.

    All threads use one implementation. They stop reading while `has_room` returns False; call `wake` when its result
    may have changed. `on_bytes` receives the number of bytes hashed and `on_found` each digest; an exception from
    either ends the run. The callbacks are called from all threads and must not block.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        on_bytes: OnBytes | None = None,
        has_room: Callable[[], bool] = lambda: True,
        on_found: OnFound = lambda number, digest: None,
    ) -> None:
        self.code, self._on_bytes, self._has_room, self._on_found = hash_backend(), on_bytes, has_room, on_found
        self._unopened, self._idle = deque(enumerate(paths)), list[_HashedFile]()
        self._lent = list[_HashedFile]()
        self._found = [""] * len(paths)
        self._threads = 0
        self._changed, self._is_stopped = Condition(), False
        self._failure: BaseException | None = None

    def digests(self, threads: int) -> list[str]:
        """Return the SHA-256 of each file, "" for those skipped by `stop`; raise the first error of any thread."""
        threads = max(1, min(len(self._found), threads))
        _beside.append(self)
        try:
            map_in_threads(lambda _: self._hash(), range(threads), threads)
        finally:
            _beside.remove(self)
            self._close()
        return self._found

    def join_in(self) -> None:
        """Hash in this thread too until no file is left to begin; `digests` raises the errors."""
        with suppress(OSError, TrtspecError):
            self._hash()

    def wake(self) -> None:
        """Make waiting threads call `has_room` again."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Make `digests` return soon."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    @contextmanager
    def lease(self, most: int, nbytes: int) -> Iterator[list[_HashedFile]]:
        """Lend up to `most` idle files, each with its next piece, to be hashed in the block.

        Does not wait for the disk: only pieces in the page cache are available, so the list may be empty.
        """
        with self._returned() as taken:
            self._take(most, taken)
            self._leave_ready(taken, nbytes)
            yield taken

    def _leave_ready(self, taken: list[_HashedFile], nbytes: int) -> None:
        """Read the next piece of each file, and put back the files whose piece is not in the page cache."""
        for each in [*taken]:
            try:
                each.read(nbytes, RWF_NOWAIT)
                is_ready = bool(each.piece)  # some kernels return no bytes for uncached pages, not only at the end
            except OSError as error:
                if error.errno not in NOT_READY:
                    self._fail(error)
                is_ready = False
            if not is_ready:
                self._put_back([each])
                taken.remove(each)

    def _hash(self) -> None:
        with self._changed:
            self._threads += 1
        try:
            has_more = True
            while has_more:
                with self._returned() as taken:
                    self._await(taken)
                    for each in taken:
                        each.read(PIECE_BYTES)
                    self.code.grow([(each.digest, each.piece) for each in taken])
                    has_more = bool(taken)
        finally:
            with self._changed:
                self._threads -= 1

    @contextmanager
    def _returned(self) -> Iterator[list[_HashedFile]]:
        """Put back the files taken in the block, even after an exception; a file with an empty piece is complete."""
        taken = list[_HashedFile]()
        try:
            yield taken
            for each in taken:
                each.hashed += each.piece.nbytes
                if not each.piece:
                    each.ensure_complete()
                    self._found[each.number] = each.digest.hexdigest()
                    self._on_found(each.number, self._found[each.number])
        except BaseException as error:  # the digests may be inconsistent
            self._fail(error)
            raise
        finally:
            self._put_back(taken)
        nbytes = sum(each.piece.nbytes for each in taken)
        if self._on_bytes and nbytes:
            self._count(self._on_bytes, nbytes)

    def _count(self, on_bytes: OnBytes, nbytes: int) -> None:
        try:
            on_bytes(nbytes)
        except BaseException as error:
            self._fail(error)
            raise

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._failure = self._failure or error
            self._changed.notify_all()

    def _await(self, taken: list[_HashedFile]) -> None:
        """Wait for files and take this thread's share, which is empty once all files are hashed."""
        while not taken:
            self._take(self._share, taken)
            with self._changed:
                if self._failure:
                    raise self._failure
                if taken or self._is_stopped or not self._unfinished:
                    return
                if not self._can_lend():
                    self._changed.wait()  # unbounded: another thread returns files or calls `wake`

    @property
    def _unfinished(self) -> int:
        return len(self._unopened) + len(self._idle) + len(self._lent)

    @property
    def _share(self) -> int:
        return min(self.code.most, -(-self._unfinished // max(1, self._threads)))

    def _can_lend(self) -> bool:
        return bool(self._idle or self._unopened) and not self._is_stopped and self._has_room()

    def _take(self, most: int, taken: list[_HashedFile]) -> None:
        """Take idle files; they are added to `taken` before `_lent`, so that an interrupt loses none."""
        with self._changed:
            if self._failure or not self._can_lend():
                return
            try:
                while len(self._idle) < most and self._unopened:
                    self._idle.append(_HashedFile(*self._unopened[0], self.code.begin()))
                    self._unopened.popleft()
            except OSError as error:
                self._fail(error)
                return
            taken += self._idle[:most]
            self._lent += taken
            del self._idle[:most]

    def _put_back(self, taken: Sequence[_HashedFile]) -> None:
        with self._changed:
            self._lent = [each for each in self._lent if each not in taken]
            for each in taken:
                if self._found[each.number]:
                    each.file.close()
                elif each not in self._idle:
                    self._idle.append(each)
            self._idle.sort(key=attrgetter("number"))
            self._changed.notify_all()

    def _close(self) -> None:
        with self._changed:  # unbounded: another thread is hashing these files
            self._changed.wait_for(lambda: not self._lent)
            for each in self._idle:
                each.file.close()


_beside: list[ParallelFileHasher] = []


def copy_hashed(source: Path, target: Path, on_bytes: OnBytes | None = None) -> str:
    """Copy a file to a new file; return the SHA-256 of the copied bytes."""
    digest, offset = hashlib.sha256(), 0
    with source.open("rb", buffering=0) as file, target.open("xb", buffering=0) as copy:
        for piece in read_chunks(file.fileno()):
            digest.update(piece)
            write_all(copy.fileno(), piece, offset)
            offset += len(piece)
            if on_bytes:
                on_bytes(len(piece))
    return digest.hexdigest()


def read_chunks(descriptor: int, begin: int = 0, end: int | None = None) -> Iterator[memoryview]:
    """Yield an open file's bytes from `begin` to `end` (default: end of file) in a reused buffer."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    while end is None or begin < end:
        wanted = PIECE_BYTES if end is None else min(PIECE_BYTES, end - begin)
        if not (count := os.preadv(descriptor, [buffer[:wanted]], begin)):
            return
        yield buffer[:count]
        begin += count
