# SPDX-License-Identifier: Apache-2.0
"""Files are hashed while they grow, up to the first byte that may still change."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtspec.checkpoints import streaming_digest
from trtspec.checkpoints.safetensors import lay_out
from trtspec.checkpoints.streaming_digest import StreamingDigests
from trtspec.core.errors import CheckpointError
from trtspec.core.hashing import HashlibBackend

LAYOUT = lay_out([("one", "U8", (1000,)), ("two", "U8", (3000,)), ("three", "U8", (500,))])
PLACES = {name: [(0, LAYOUT.offsets[name])] for name in LAYOUT.offsets}


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(descriptor, LAYOUT.header + os.urandom(4500), 0)
    yield descriptor
    os.close(descriptor)


def whole(file: int) -> str:
    return hashlib.sha256(os.pread(file, LAYOUT.nbytes, 0)).hexdigest()


@pytest.mark.parametrize("order", ["one two three", "three two one", "two one three"])
def test_digest_is_correct_for_any_order_of_tasks(file: int, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_digest, "STRETCH_BYTES", 7)
    with StreamingDigests([file], [LAYOUT], PLACES) as digests:
        for name in order.split():
            digests.written(0, LAYOUT.offsets[name])
            os.pwrite(file, b"x" * 10, LAYOUT.offsets[name])
            digests.finish(name)
        assert digests.digests() == [whole(file)]


def test_bytes_written_by_two_tasks_are_hashed_after_both_finish(file: int) -> None:
    with StreamingDigests(
        [file], [LAYOUT], {"a": [(0, LAYOUT.offsets["two"])], "b": [(0, LAYOUT.offsets["two"] + 5)]}
    ) as digests:
        digests.finish("a")
        os.pwrite(file, b"late", LAYOUT.offsets["two"])
        digests.written(0, LAYOUT.offsets["two"])
        digests.finish("b")
        assert digests.digests() == [whole(file)]


def test_complete_file_is_hashed_without_tasks(file: int) -> None:
    with StreamingDigests([file], [LAYOUT], {}) as digests:
        assert digests.digests() == [whole(file)]


def test_file_with_an_undeclared_write_has_no_digest(file: int) -> None:
    with StreamingDigests([file], [LAYOUT], {"task": [(0, LAYOUT.offsets["two"])]}) as digests:
        digests.written(0, LAYOUT.offsets["one"])  # no task declared this write
        digests.finish("task")
        assert digests.digests() == [None]


def test_shrinking_file_is_an_error(file: int) -> None:
    os.ftruncate(file, 1200)
    with StreamingDigests([file], [LAYOUT], {}) as digests, pytest.raises(CheckpointError, match="ends at byte 1,200"):
        digests.digests()


def test_writer_stops_waiting_when_hashing_fails(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting thread may check once more before the failing thread has ended."""
    monkeypatch.setattr(streaming_digest, "MOST_UNHASHED", 1)
    waits, goes_on = list[int](), [threading.Event(), threading.Event()]
    ended, raised = threading.Event(), list[BaseException]()
    hash_files = StreamingDigests._hash

    class Watched(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            if threading.current_thread() is writer and len(waits) < 2:
                goes_on[len(waits)].set()
                waits.append(1)
            return super().wait(timeout)

    def fail(digests: StreamingDigests, files: object) -> None:
        assert goes_on[0].wait(30)
        raise OSError(errno.EIO, "a bad disk")

    def hash_and_linger(digests: StreamingDigests) -> None:
        try:
            hash_files(digests)
        finally:
            goes_on[1].wait(30)

    def wait_for_room() -> None:
        try:
            digests.wait_for_hashing()
        except OSError as error:
            raised.append(error)
        goes_on[1].set()
        ended.set()

    monkeypatch.setattr(streaming_digest, "Condition", Watched)
    monkeypatch.setattr(StreamingDigests, "_hash_stretches", fail)
    monkeypatch.setattr(StreamingDigests, "_hash", hash_and_linger)
    writer = threading.Thread(target=wait_for_room, daemon=True)
    with StreamingDigests([file], [LAYOUT], {}) as digests:
        writer.start()
        has_ended = ended.wait(10)
    assert has_ended
    assert [str(error) for error in raised] == ["[Errno 5] a bad disk"]  # the writer stops


def test_writer_waits_until_unhashed_bytes_are_below_the_limit(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming_digest, "MOST_UNHASHED", 1)
    with StreamingDigests([file], [LAYOUT], PLACES) as digests:
        for name in PLACES:
            digests.wait_for_hashing()
            assert digests._unhashed() < 1
            digests.finish(name)
        assert digests.digests() == [whole(file)]


@pytest.mark.parametrize("count", [1, 2])
def test_single_file_is_hashed_with_a_limit_of_one(file: int, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Several files wait for each other anyway."""
    most = set[int]()

    class Three(HashlibBackend):
        most = 3

    monkeypatch.setattr(streaming_digest, "hash_backend", Three)
    monkeypatch.setattr(
        streaming_digest, "update_digests", lambda code, grown, limit: (most.add(limit), code.grow(grown))
    )
    with StreamingDigests([file] * count, [LAYOUT] * count, {}) as digests:
        assert digests.digests() == [whole(file)] * count
    assert most == {1 if count == 1 else 3}


def test_error_in_the_context_ends_the_hashing(file: int) -> None:
    with pytest.raises(ZeroDivisionError), StreamingDigests([file], [LAYOUT], PLACES):
        raise ZeroDivisionError
