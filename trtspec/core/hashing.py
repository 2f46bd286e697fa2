# SPDX-License-Identifier: Apache-2.0
"""Streams bytes, hashes them and hands them on: how builds, verification, publishing and the store read whole files.

SHA-256 is a chain: a file is hashed from its beginning, on one core. Reading and hashing leave Python's lock to other
threads, so several files are hashed at once, beside whatever else reads or writes them; and where a process was given
code for it (`hash_with`), a thread hashes several at once in little more than the time of one.
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
from trtspec.core.files import in_threads, open_regular, write_all

PIECE_BYTES = 1 << 20
LEAST_COMPANY_BYTES = 64 << 10  # a smaller piece is hashed alone
RWF_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
NOT_READY = (errno.EAGAIN, errno.EOPNOTSUPP)  # not in the page cache; a file system that does not tell

OnBytes = Callable[[int], None]
OnFound = Callable[[int, str], None]  # the number of a file, its digest


class Digest(Protocol):
    """A digest that grows, as hashlib's do."""

    def hexdigest(self) -> str:
        """Return the digest of what was hashed so far."""


class Hashing(Protocol):
    """Code that hashes: at most `most` digests are worth growing together. Threads may share it."""

    most: int

    def begin(self) -> Any:
        """Return the digest of nothing, to be grown by this code alone."""

    def grow(self, grown: Sequence[tuple[Any, memoryview]]) -> None:
        """Hash further bytes of each of some digests, all at once; the bytes are in memory that can be written to."""


class Hashlib:
    """Python's own."""

    most = 1

    def begin(self) -> Any:
        """Return a digest of hashlib."""
        return hashlib.sha256()

    def grow(self, grown: Sequence[tuple[Any, memoryview]]) -> None:
        """Hash one after another."""
        for digest, data in grown:
            digest.update(data)


_used: list[Hashing] = [Hashlib()]


def hash_with(code: Hashing) -> None:
    """Let this process hash with other code, which says the same in less time."""
    _used[0] = code


def hashing() -> Hashing:
    """Return what this process hashes with."""
    return _used[0]


def threads_beside(files: int) -> int:
    """Return how many threads hash that many files beside other work: no more files at once than there are cores."""
    return max(1, min(files, -(-(os.cpu_count() or 1) // hashing().most)))


def file_sha256(path: Path, on_bytes: OnBytes | None = None) -> str:
    """Return the SHA-256 of a file; `on_bytes` is told the size of each piece read."""
    return files_sha256([path], on_bytes)[0]


def files_sha256(paths: Sequence[Path], on_bytes: OnBytes | None = None, threads: int | None = None) -> list[str]:
    """Return the SHA-256 of files, hashed on all cores unless `threads` is less; `on_bytes` is told what was read."""
    return FilesBeside(paths, on_bytes).digests(threads or os.cpu_count() or 1)


def grow(code: Hashing, grown: Sequence[tuple[Any, memoryview]], most: int) -> None:
    """Hash further bytes of each of some digests, and with them what `FilesBeside` has ready, `most` in all.

    That takes little more than the time of all, but more for each of them.
    """
    free, nbytes = min(code.most, most) - len(grown), max(data.nbytes for _, data in grown)
    beside = next((each for each in [*_beside] if each.code is code), None)
    if beside is None or free <= 0 or nbytes < LEAST_COMPANY_BYTES:
        code.grow(grown)
        return
    with beside.lent(free, nbytes) as company:
        code.grow([*grown, *((each.digest, each.piece) for each in company)])


class _Reading:
    """A file that is being hashed: the `number` it was asked for as, how far it is, and the piece that comes next."""

    def __init__(self, number: int, path: Path, digest: Any) -> None:
        self.number, self.digest, self.hashed = number, digest, 0
        self.path, self.file = path, open_regular(path)
        self.nbytes = os.fstat(self.file.fileno()).st_size
        self.piece = self._buffer = memoryview(bytearray(PIECE_BYTES))

    def read(self, nbytes: int, flags: int = 0) -> None:
        """Read the next piece, at most so many bytes, empty at the end; TrtspecError where the file has grown."""
        if self.hashed > self.nbytes:  # a file that grows as fast as it is read would never end
            hint = "wait until whatever writes it has ended"
            raise TrtspecError("the file changed while it was being read", where=str(self.path), hint=hint)
        wanted = self._buffer[: min(nbytes, PIECE_BYTES)]
        self.piece = wanted[: os.preadv(self.file.fileno(), [wanted], self.hashed, flags)]

    def ensure_whole(self) -> None:
        """Raise TrtspecError where less, or more, was hashed than the file has."""
        if self.hashed != (size := os.fstat(self.file.fileno()).st_size):
            message = f"{self.hashed:,} of its {size:,} bytes were read: it changed meanwhile"
            hint = "wait until whatever writes it has ended"
            raise TrtspecError(message, where=str(self.path), hint=hint)


class FilesBeside:
    """Files that are hashed by threads of their own, and by any other that hashes and can take another one along.

    All of them hash with one `code`. Nothing is read while `has_room` says no; whoever changes what it says calls
    `wake`. `on_bytes` is told how much was hashed, and `on_found` each digest; what they raise ends it. All are called
    from all these threads, and must not wait.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        on_bytes: OnBytes | None = None,
        has_room: Callable[[], bool] = lambda: True,
        on_found: OnFound = lambda number, digest: None,
    ) -> None:
        self.code, self._on_bytes, self._has_room, self._on_found = hashing(), on_bytes, has_room, on_found
        self._unopened, self._idle = deque(enumerate(paths)), list[_Reading]()
        self._lent = list[_Reading]()
        self._found = [""] * len(paths)
        self._threads = 0
        self._changed, self._is_stopped = Condition(), False
        self._failure: BaseException | None = None

    def digests(self, threads: int) -> list[str]:
        """Return the SHA-256 of each, "" where `stop` came before; raises what went wrong in any of the threads."""
        threads = max(1, min(len(self._found), threads))
        _beside.append(self)
        try:
            in_threads(lambda _: self._hash(), range(threads), threads)
        finally:
            _beside.remove(self)
            self._close()
        return self._found

    def join_in(self) -> None:
        """Hash in this thread too, until there is nothing left to begin; `digests` raises what goes wrong."""
        with suppress(OSError, TrtspecError):
            self._hash()

    def wake(self) -> None:
        """Let threads ask again whether there is room."""
        with self._changed:
            self._changed.notify_all()

    def stop(self) -> None:
        """Let `digests` return soon."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    @contextmanager
    def lent(self, most: int, nbytes: int) -> Iterator[list[_Reading]]:
        """Lend files that nobody hashes, each with its next piece, to be hashed in the block.

        None where there are none. It waits for no disk: what is not in the page cache is not lent.
        """
        with self._returned() as taken:
            self._take(most, taken)
            self._leave_ready(taken, nbytes)
            yield taken

    def _leave_ready(self, taken: list[_Reading], nbytes: int) -> None:
        """Read the next piece of each, and put back those that have none without waiting."""
        for each in [*taken]:
            try:
                each.read(nbytes, RWF_NOWAIT)
                is_ready = bool(each.piece)  # nothing need not be the end: some kernels say so of what is not cached
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
    def _returned(self) -> Iterator[list[_Reading]]:
        """Put back what the block takes and hashes, whatever interrupts it; a file whose piece is empty is done."""
        taken = list[_Reading]()
        try:
            yield taken
            for each in taken:
                each.hashed += each.piece.nbytes
                if not each.piece:
                    each.ensure_whole()
                    self._found[each.number] = each.digest.hexdigest()
                    self._on_found(each.number, self._found[each.number])
        except BaseException as error:  # whose digests may be of anything
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

    def _await(self, taken: list[_Reading]) -> None:
        """Take a thread's share of the files as soon as there are any, none once all are hashed."""
        while not taken:
            self._take(self._share, taken)
            with self._changed:
                if self._failure:
                    raise self._failure
                if taken or self._is_stopped or not self._unfinished:
                    return
                if not self._can_lend():
                    self._changed.wait()  # unbounded: others hash, or whoever decides about room wakes

    @property
    def _unfinished(self) -> int:
        return len(self._unopened) + len(self._idle) + len(self._lent)

    @property
    def _share(self) -> int:
        return min(self.code.most, -(-self._unfinished // max(1, self._threads)))

    def _can_lend(self) -> bool:
        return bool(self._idle or self._unopened) and not self._is_stopped and self._has_room()

    def _take(self, most: int, taken: list[_Reading]) -> None:
        """Take files that nobody hashes; they are `taken` before they are lent, so that an interrupt loses none."""
        with self._changed:
            if self._failure or not self._can_lend():
                return
            try:
                while len(self._idle) < most and self._unopened:
                    self._idle.append(_Reading(*self._unopened[0], self.code.begin()))
                    self._unopened.popleft()
            except OSError as error:
                self._fail(error)
                return
            taken += self._idle[:most]
            self._lent += taken
            del self._idle[:most]

    def _put_back(self, taken: Sequence[_Reading]) -> None:
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
        with self._changed:  # unbounded: each is being hashed
            self._changed.wait_for(lambda: not self._lent)
            for each in self._idle:
                each.file.close()


_beside: list[FilesBeside] = []


def copy_hashed(source: Path, target: Path, on_bytes: OnBytes | None = None) -> str:
    """Copy a file's bytes to a file that is not there yet; return the SHA-256 of what was copied."""
    digest, offset = hashlib.sha256(), 0
    with source.open("rb", buffering=0) as file, target.open("xb", buffering=0) as copy:
        for piece in pieces(file.fileno()):
            digest.update(piece)
            write_all(copy.fileno(), piece, offset)
            offset += len(piece)
            if on_bytes:
                on_bytes(len(piece))
    return digest.hexdigest()


def pieces(descriptor: int, begin: int = 0, end: int | None = None) -> Iterator[memoryview]:
    """Yield an open file's bytes from `begin` to `end`, or to where it ends, in a buffer used again."""
    buffer = memoryview(bytearray(PIECE_BYTES))
    while end is None or begin < end:
        wanted = PIECE_BYTES if end is None else min(PIECE_BYTES, end - begin)
        if not (count := os.preadv(descriptor, [buffer[:wanted]], begin)):
            return
        yield buffer[:count]
        begin += count
