# SPDX-License-Identifier: Apache-2.0
"""Files are hashed in segments, by any number of threads and in any order."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import random
import threading
import time
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from trtspec.core import hashing
from trtspec.core.errors import TrtspecError
from trtspec.core.hashing import (
    GrowingDigest,
    Segments,
    copy_hashed,
    digest_and_sha256,
    file_digests,
    file_segments,
)
from trtspec.store.file_records import FileRecord

SEGMENT, BLOCK = 10_000, 2_500


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "SEGMENT_BYTES", SEGMENT)
    monkeypatch.setattr(hashing, "BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(hashing, "PIECE_BYTES", 999)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    found = [tmp_path / str(number) for number in range(4)]
    for path, size in zip(found, (0, 1, SEGMENT, 5 * SEGMENT + 77), strict=True):
        path.write_bytes(random.Random(size).randbytes(size))
    return found


def expected(data: bytes) -> Segments:
    """Compute the segments by the definition in the documentation."""
    return tuple(segment_digest(data[begin : begin + SEGMENT]) for begin in range(0, len(data), SEGMENT))


def segment_digest(data: bytes) -> str:
    blocks = [blake3(data[begin : begin + BLOCK]).digest() for begin in range(0, len(data), BLOCK)]
    return blake3(b"".join(blocks)).hexdigest() if len(blocks) > 1 else blocks[0].hex()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_segments_are_equal_for_any_number_of_threads(paths: list[Path], threads: int) -> None:
    counted = list[int]()
    found = file_segments(paths, counted.append, threads)
    assert found == [expected(path.read_bytes()) for path in paths]
    assert [len(segments) for segments in found] == [0, 1, 1, 6]
    assert sum(counted) == sum(path.stat().st_size for path in paths)


def test_file_digest_covers_segments_and_length(paths: list[Path]) -> None:
    data = paths[3].read_bytes()
    raw = b"".join(bytes.fromhex(each) for each in expected(data))
    assert file_digests(paths)[3] == blake3(raw + len(data).to_bytes(8, "little")).hexdigest()
    assert file_digests(paths)[0] == blake3(bytes(8)).hexdigest()
    assert file_digests([]) == []


def test_one_large_file_is_hashed_by_several_threads(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(3, timeout=30)
    read = hashing.read_chunks

    def meet(*arguments: Any) -> Iterator[memoryview]:
        together.wait()  # unbounded: the barrier has a time-out
        yield from read(*arguments)

    monkeypatch.setattr(hashing, "read_chunks", meet)
    assert file_segments([paths[3]], threads=3) == [expected(paths[3].read_bytes())]  # 6 segments in two rounds of 3


def test_changed_byte_is_located_by_its_segment(paths: list[Path]) -> None:
    path = paths[3]
    record = FileRecord(path="weights", size=path.stat().st_size, segments=file_segments([path])[0])
    assert record.difference(*file_segments([path])) is None
    assert [record.digest] == file_digests([path])
    for places, said in (
        ([2 * SEGMENT], "bytes 20,000 to 29,999 differ"),
        ([5 * SEGMENT + 76, 5], "bytes 0 to 9,999, 50,000 to 50,076 differ"),
        ([number * SEGMENT for number in range(5)], "and 2 more segments differ"),
    ):
        data = bytearray(path.read_bytes())
        for place in places:
            data[place] ^= 1
        changed = path.with_name("changed")
        changed.write_bytes(data)
        assert str(record.difference(*file_segments([changed]))).endswith(said)


@pytest.mark.parametrize("order", ["forward", "backward", "shuffled"])
@pytest.mark.parametrize("most_early", [0, 3000, 1 << 20])
@pytest.mark.parametrize("threads", [1, 4])
def test_growing_digest_is_equal_for_any_order_of_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, most_early: int, threads: int
) -> None:
    monkeypatch.setattr(hashing, "MOST_EARLY_BYTES", most_early)
    data, path = random.Random(1).randbytes(3 * SEGMENT + 5), tmp_path / "file"
    cuts = sorted({0, len(data), *random.Random(2).sample(range(len(data)), 40)})
    pieces = list(pairwise(cuts))
    if order == "backward":
        pieces.reverse()
    elif order == "shuffled":
        random.Random(3).shuffle(pieces)
    digest = GrowingDigest(len(data))
    with path.open("w+b") as file:

        def write(number: int) -> None:
            for begin, end in pieces[number::threads]:
                os.pwrite(file.fileno(), data[begin:end], begin)
                digest.add(begin, memoryview(data)[begin:end])

        writers = [threading.Thread(target=write, args=(number,)) for number in range(threads)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(30)
        assert digest.finish(file.fileno(), path) == expected(data)


def test_bytes_in_sequence_are_not_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, read, read_chunks = random.Random(1).randbytes(2 * SEGMENT + 500), list[int](), hashing.read_chunks

    def count(*arguments: Any) -> Iterator[memoryview]:
        for piece in read_chunks(*arguments):
            read.append(len(piece))
            yield piece

    monkeypatch.setattr(hashing, "read_chunks", count)
    (path := tmp_path / "file").write_bytes(data)
    digest = GrowingDigest(len(data))
    with path.open("rb") as file:
        digest.add(300, memoryview(data)[300:600])  # early, but short
        for begin, end in ((0, 300), (600, SEGMENT + 100), (SEGMENT + 700, len(data))):
            digest.add(begin, memoryview(data)[begin:end])
        assert digest.finish(file.fileno(), path) == expected(data)
    # the missing piece was written by an earlier run; what follows it is read back up to the end of the block
    assert sum(read) == BLOCK - 100


def test_file_that_ends_early_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path := tmp_path / "file").write_bytes(b"x" * 1200)
    with path.open("rb") as file, pytest.raises(TrtspecError, match="1,200 of its 5,000 bytes were read; the file cha"):
        GrowingDigest(5000).finish(file.fileno(), path)
    preadv = os.preadv
    monkeypatch.setattr(os, "preadv", lambda file, buffers, at: 0 if at >= 999 else preadv(file, buffers, at))
    with pytest.raises(TrtspecError, match="file: 999 of its 1,200 bytes were read; the file changed while"):
        file_segments([path])


def test_file_that_grows_while_it_is_read_is_an_error(paths: list[Path]) -> None:
    def grow(_: int) -> None:
        with paths[3].open("ab") as file:
            file.write(b"x")

    with pytest.raises(TrtspecError, match=r"50,077 of its [0-9,]+ bytes were read; the file changed while it was bei"):
        file_segments([paths[3]], grow)


def test_missing_file_is_an_error(paths: list[Path]) -> None:
    paths[2].unlink()
    with pytest.raises(FileNotFoundError):
        file_segments(paths)


def test_exception_in_the_callback_ends_the_hashing(paths: list[Path]) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        file_segments(paths, stop, 2)


def test_copy_has_the_bytes_and_segments_of_its_source(paths: list[Path], tmp_path: Path) -> None:
    for number, path in enumerate(paths):
        assert copy_hashed(path, copy := tmp_path / f"copy{number}") == expected(path.read_bytes())
        assert copy.read_bytes() == path.read_bytes()


def test_digest_and_sha256_come_from_one_reading(paths: list[Path]) -> None:
    read = list[int]()
    assert digest_and_sha256(paths[3], read.append) == (
        file_digests([paths[3]])[0],
        hashlib.sha256(paths[3].read_bytes()).hexdigest(),
    )
    assert sum(read) == paths[3].stat().st_size


@pytest.mark.parametrize("with_sha256", [True, False])
def test_background_digest_equals_the_digests_of_a_file(tmp_path: Path, with_sha256: bool) -> None:
    data = random.Random(7).randbytes(3 * hashing.BLOCK_BYTES + 5)
    (tmp_path / "file").write_bytes(data)
    digest = hashing.BackgroundDigest(with_sha256=with_sha256)
    for begin in range(0, len(data), 700_001):
        digest.start(data[begin : begin + 700_001])
    assert digest.position == len(data)
    assert digest.segments == file_segments([tmp_path / "file"])[0]
    if with_sha256:
        assert digest.sha256 == hashlib.sha256(data).hexdigest()
    digest.close()


def test_transfer_buffers_are_reused_only_after_they_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that hashes slowly still sees each piece, while the caller fills the next buffers."""
    update, data = hashing.SegmentsDigest.update, random.Random(8).randbytes(40_000)

    def slow(self: hashing.SegmentsDigest, piece: memoryview) -> None:
        time.sleep(0.002)
        update(self, piece)

    monkeypatch.setattr(hashing.SegmentsDigest, "update", slow)
    digest = hashing.BackgroundDigest()
    for begin, buffer in zip(range(0, len(data), 1000), hashing.new_buffers(nbytes=1000), strict=False):
        buffer[:] = data[begin : begin + 1000]
        digest.start(buffer)
    assert (digest.segments, digest.sha256) == (hashing.bytes_segments(data), hashlib.sha256(data).hexdigest())
    digest.close()


def test_buffers_begin_at_a_page() -> None:
    """Some processors copy from the page cache several times as slowly to where malloc places large buffers."""
    for buffer in islice(hashing.new_buffers(), hashing.PIECE_BUFFERS):
        assert ctypes.addressof(ctypes.c_char.from_buffer(buffer)) % mmap.PAGESIZE == 0
