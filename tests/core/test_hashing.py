# SPDX-License-Identifier: Apache-2.0
"""Files are hashed by several threads, some together with other digests; each byte once and in order."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from trtspec.core import hashing
from trtspec.core.errors import TrtspecError
from trtspec.core.hashing import HashlibBackend, ParallelFileHasher, set_hash_backend, update_digests

LONG = hashing.MIN_SHARED_BYTES


class Several(HashlibBackend):
    """A hashlib wrapper that claims to hash three digests together; counts them, and can wait or fail on request."""

    most = 3

    def __init__(self) -> None:
        self.given: list[int] = []
        self.before: Callable[[], None] = lambda: None

    def grow(self, grown: Sequence[tuple[Any, memoryview]]) -> None:
        self.before()
        self.given.append(len(grown))
        super().grow(grown)


@pytest.fixture
def code() -> Iterator[Several]:
    set_hash_backend(several := Several())
    yield several
    set_hash_backend(HashlibBackend())


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(hashing, "PIECE_BYTES", LONG)
    found = [tmp_path / str(number) for number in range(5)]
    for number, path in enumerate(found):
        path.write_bytes(os.urandom(number * 3 * LONG + 77 * number))
    return found


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Holding:
    """Files whose background thread keeps the ones it took first until it is released."""

    def __init__(self, code: Several, paths: list[Path], on_bytes: Callable[[int], None] | None = None) -> None:
        self.files = ParallelFileHasher(paths, on_bytes)
        self.digests: list[str] = []
        self.raised: BaseException | None = None
        self._begun, self._goes_on = threading.Event(), threading.Event()
        self.others_fail: type[BaseException] | None = None
        code.before = self._hold
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._begun.wait(30)

    def release(self) -> None:
        self._goes_on.set()
        self._thread.join(30)
        assert not self._thread.is_alive()

    def has(self, thread: threading.Thread) -> bool:
        return thread is self._thread

    def _run(self) -> None:
        try:
            self.digests = self.files.digests(1)
        except BaseException as error:
            self.raised = error

    def _hold(self) -> None:
        if self.has(threading.current_thread()):
            self._begun.set()
            assert self._goes_on.wait(30)
        elif self.others_fail:
            raise self.others_fail


def take_along(code: Several, turns: int, most: int = 3) -> None:
    """Hash other data for some rounds and compare the digest with hashlib's."""
    digest, data = code.begin(), os.urandom(LONG)
    for _ in range(turns):
        update_digests(code, [(digest, memoryview(data))], most)
    assert digest.hexdigest() == hashlib.sha256(data * turns).hexdigest()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_digests_match_hashlib_with_any_thread_count(code: Several, paths: list[Path], threads: int) -> None:
    counted: list[int] = []
    assert ParallelFileHasher(paths, counted.append).digests(threads) == [sha256_of(path) for path in paths]
    assert sum(counted) == sum(path.stat().st_size for path in paths)


def test_update_digests_hashes_waiting_files_together(code: Several, paths: list[Path]) -> None:
    counted = list[int]()
    holding = Holding(code, paths, counted.append)
    take_along(code, 1, most=1)
    take_along(code, 1, most=2)
    assert code.given == [1, 2]
    take_along(code, 40)
    assert max(code.given) == 3
    assert sum(counted) == sum(path.stat().st_size for path in paths[3:])  # all files that are not being hashed
    holding.release()
    assert holding.digests == [sha256_of(path) for path in paths]


def test_other_backend_hashes_no_waiting_files(code: Several, paths: list[Path]) -> None:
    """Digests belong to the implementation that began them."""
    holding, other = Holding(code, paths), Several()
    take_along(other, 3)
    assert other.given == [1, 1, 1]
    holding.release()
    assert holding.digests == [sha256_of(path) for path in paths]


def test_files_are_not_read_until_there_is_room(code: Several, paths: list[Path]) -> None:
    room = threading.Event()
    files, digests = ParallelFileHasher(paths, None, room.is_set), list[list[str]]()
    thread = threading.Thread(target=lambda: digests.append(files.digests(2)), daemon=True)
    thread.start()
    take_along(code, 3)
    assert code.given == [1, 1, 1]
    room.set()
    files.wake()
    thread.join(30)
    assert digests == [[sha256_of(path) for path in paths]]


def test_uncached_files_are_not_hashed_together(
    code: Several, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def not_cached(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags == hashing.RWF_NOWAIT:
            raise BlockingIOError(errno.EAGAIN, "not yet")
        return preadv(file, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", not_cached)
    holding = Holding(code, paths)
    take_along(code, 3)
    assert code.given == [1, 1, 1]
    holding.release()
    assert holding.digests == [sha256_of(path) for path in paths]


def test_empty_nonblocking_read_is_not_the_end_of_file(
    code: Several, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux 5.9 and 5.10 may return 0 bytes for uncached pages (preadv2(2))."""
    preadv = os.preadv

    def says_nothing(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        return 0 if flags == hashing.RWF_NOWAIT else preadv(file, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", says_nothing)
    holding = Holding(code, paths)
    take_along(code, 3)
    assert code.given == [1, 1, 1]
    holding.release()
    assert holding.digests == [sha256_of(path) for path in paths]


def test_file_shorter_than_its_size_is_an_error(
    code: Several, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    preadv = os.preadv

    def ends_early(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        return 0 if offset >= 2 * LONG else preadv(file, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", ends_early)
    with pytest.raises(TrtspecError) as caught:
        ParallelFileHasher(paths[:3]).digests(1)
    first = str(caught.value)
    assert (
        f"{paths[1]}: {2 * LONG:,} of its {3 * LONG + 77:,} bytes were read; the file changed while it was being read"
        in first
    )


def test_interrupt_while_files_are_assigned_does_not_deadlock(code: Several, paths: list[Path]) -> None:
    class Interrupted(ParallelFileHasher):
        def _take(self, *arguments: Any) -> Any:
            super()._take(*arguments)
            raise KeyboardInterrupt

    raised = list[BaseException]()

    def run() -> None:
        try:
            Interrupted(paths).digests(1)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert [type(each) for each in raised] == [KeyboardInterrupt]


def test_small_pieces_are_hashed_alone(code: Several, paths: list[Path]) -> None:
    holding = Holding(code, paths)
    update_digests(code, [(code.begin(), memoryview(b"x" * (LONG - 1)))], 3)
    assert code.given == [1]
    holding.release()


@pytest.mark.parametrize("threads", [1, 3])
def test_missing_file_is_an_error(code: Several, paths: list[Path], threads: int) -> None:
    paths[3].unlink()
    with pytest.raises(FileNotFoundError):
        ParallelFileHasher(paths).digests(threads)


@pytest.mark.parametrize("work", [lambda code, files: take_along(code, 5), lambda code, files: files.join_in()])
def test_read_error_in_a_helping_thread_fails_only_the_files(
    code: Several,
    paths: list[Path],
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[Several, ParallelFileHasher], None],
) -> None:
    """Borrowed pieces fail, the borrowing thread's digest succeeds, and no digest is empty."""
    preadv = os.preadv

    def failing(file: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if not holding.has(threading.current_thread()):
            raise OSError(errno.EIO, "a bad disk")
        return preadv(file, buffers, offset, flags)

    holding = Holding(code, paths)
    monkeypatch.setattr(os, "preadv", failing)
    work(code, holding.files)
    holding.release()
    assert isinstance(holding.raised, OSError)
    assert holding.raised.errno == errno.EIO


def test_backend_failure_ends_all_threads(code: Several, paths: list[Path]) -> None:
    holding = Holding(code, paths)
    holding.others_fail = ZeroDivisionError
    with pytest.raises(ZeroDivisionError):
        take_along(code, 1)
    holding.release()
    assert isinstance(holding.raised, ZeroDivisionError)


def test_exception_in_the_byte_callback_ends_hashing(code: Several, paths: list[Path]) -> None:
    def stop(count: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ParallelFileHasher(paths, stop).digests(2)


def test_hasher_can_be_stopped(code: Several, paths: list[Path]) -> None:
    files = ParallelFileHasher(paths, lambda count: files.stop())
    assert "" in files.digests(2)


def test_hasher_without_files_returns_no_digests(code: Several) -> None:
    assert ParallelFileHasher([]).digests(4) == []
