# SPDX-License-Identifier: Apache-2.0
"""Output past the page cache has the same bytes and digests as through it, for any order and size of writes."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests._support.tiny import make_llama
from tests.checkpoints.quant.compressed import compress, compressed_tensors
from trtspec.backends.common.convert import convert_checkpoint
from trtspec.checkpoints import direct_io, stream, streaming_digest
from trtspec.checkpoints.conversion import Activations
from trtspec.checkpoints.direct_io import CachedWriter, DirectWriter, WriteTask, open_output
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.safetensors import lay_out
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.streaming_digest import StreamingDigests

SIZES = {"one": 1000, "two": 300_000, "three": 70_001, "four": 5, "five": 40_000}
LAYOUT = lay_out([(name, "U8", (size,)) for name, size in SIZES.items()])
BLOCK = 16 << 10


class Written:
    """A file with a layout, and tasks with the names of its tensors that write it in blocks."""

    def __init__(self, path: Path, order: list[str]) -> None:
        self.path, self.done = path, list[str]()
        path.write_bytes(LAYOUT.header + bytes(LAYOUT.nbytes - len(LAYOUT.header)))
        self.file = os.open(path, os.O_RDWR)
        self.tasks = {name: WriteTask(number, name) for number, name in enumerate(order)}
        places = {name: [(0, LAYOUT.offsets[name])] for name in SIZES}
        self.growing = StreamingDigests([self.file], [LAYOUT], places)
        self.content = {name: random.Random(name).randbytes(size) for name, size in SIZES.items()}

    def finish(self, task: WriteTask) -> None:
        self.done.append(task.name)
        begin = LAYOUT.offsets[task.name]
        on_disk = self.path.read_bytes()[begin : begin + SIZES[task.name]]
        assert on_disk == self.content[task.name]  # the bytes of a finished task are in the file
        self.growing.finish(task.name)

    @property
    def expected(self) -> str:
        return hashlib.sha256(LAYOUT.header + b"".join(self.content[name] for name in SIZES)).hexdigest()


@pytest.fixture(autouse=True)
def few_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_io, "LEAST_BYTES", 0)
    monkeypatch.setattr(direct_io, "BLOCKS_BYTES", 4 * BLOCK)
    monkeypatch.setattr(direct_io, "MOST_BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(direct_io, "SMALL_BYTES", 512)


def put_all(written: Written, to: direct_io.TaskOutput, pieces: int) -> None:
    for name, task in written.tasks.items():
        data = written.content[name]
        for begin in range(0, len(data), pieces):
            piece = bytearray(data[begin : begin + pieces])
            to.put(task, 0, LAYOUT.offsets[name] + begin, memoryview(piece))
            piece[:] = bytes(len(piece))  # readers reuse their buffer
        to.end(task)
    to.flush()


@pytest.mark.parametrize("pieces", [999, 5000, BLOCK, 1 << 20])
@pytest.mark.parametrize("order", ["one two three four five", "five four three two one", "three one five two four"])
def test_direct_writer_files_and_digests_are_correct_in_any_order(tmp_path: Path, order: str, pieces: int) -> None:
    written = Written(tmp_path / "file", order.split())
    with (
        written.growing as digests,
        open_output([written.path], [written.file], LAYOUT.nbytes, digests, written.finish) as to,
    ):
        assert isinstance(to, DirectWriter)
        put_all(written, to, pieces)
        assert digests.digests() == [written.expected]
    assert sorted(written.done) == sorted(SIZES)
    assert hashlib.sha256(written.path.read_bytes()).hexdigest() == written.expected


def test_bytes_written_in_order_are_hashed_from_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    pieces = streaming_digest.read_chunks

    def counted(descriptor: int, begin: int, end: int) -> Iterator[memoryview]:
        for piece in pieces(descriptor, begin, end):
            read.append(len(piece))
            yield piece

    monkeypatch.setattr(streaming_digest, "read_chunks", counted)
    written = Written(tmp_path / "file", list(SIZES))
    with (
        written.growing as digests,
        open_output([written.path], [written.file], LAYOUT.nbytes, digests, written.finish) as to,
    ):
        put_all(written, to, 5000)
        assert digests.digests() == [written.expected]
    assert sum(read) == len(LAYOUT.header)


def test_concurrent_tasks_write_in_turn_with_the_correct_digest(tmp_path: Path) -> None:
    written = Written(tmp_path / "file", list(SIZES))
    with (
        written.growing as digests,
        open_output([written.path], [written.file], LAYOUT.nbytes, digests, written.finish) as to,
    ):
        names = list(SIZES)
        threads = [threading.Thread(target=put_one, args=(written, to, name)) for name in reversed(names)]
        for each in threads:
            each.start()
        for each in threads:
            each.join(30)
        to.flush()
        assert digests.digests() == [written.expected]


def put_one(written: Written, to: direct_io.TaskOutput, name: str) -> None:
    data, task = written.content[name], written.tasks[name]
    for begin in range(0, len(data), 7000):
        to.put(task, 0, LAYOUT.offsets[name] + begin, memoryview(data[begin : begin + 7000]))
    to.end(task)


@pytest.mark.parametrize("code", [errno.EIO, errno.EINVAL])
def test_disk_error_is_reported_and_invalid_alignment_falls_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    written = Written(tmp_path / "file", list(SIZES))
    write = direct_io.write_all
    with (
        written.growing as digests,
        open_output([written.path], [written.file], LAYOUT.nbytes, digests, written.finish) as to,
    ):

        def refuse(descriptor: int, data: memoryview, offset: int) -> None:
            if descriptor != written.file and data.nbytes:
                raise OSError(code, os.strerror(code))
            write(descriptor, data, offset)

        monkeypatch.setattr(direct_io, "write_all", refuse)
        if code == errno.EIO:
            with pytest.raises(OSError, match="Input/output error"):
                put_all(written, to, 5000)
        else:
            put_all(written, to, 5000)
            assert digests.digests() == [written.expected]


def test_failed_task_raises_its_error_in_waiting_tasks(tmp_path: Path) -> None:
    written = Written(tmp_path / "file", list(SIZES))
    failed: list[BaseException] = []

    def wait(to: direct_io.TaskOutput) -> None:
        try:
            put_one(written, to, "five")
        except ValueError as error:
            failed.append(error)

    with (
        written.growing as digests,
        open_output([written.path], [written.file], LAYOUT.nbytes, digests, written.finish) as to,
    ):
        waiting = threading.Thread(target=wait, args=(to,))
        waiting.start()
        to.fail(ValueError("the source is damaged"))
        waiting.join(30)
    assert [str(error) for error in failed] == ["the source is damaged"]


def test_hashing_error_is_raised_in_a_writer_waiting_for_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(tmp_path / "file", list(SIZES))

    def fail(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(written.growing._code, "grow", fail)
    with (
        pytest.raises(ZeroDivisionError),
        written.growing as digests,
        open_output([written.path], [written.file], LAYOUT.nbytes, digests, written.finish) as to,
    ):
        put_all(written, to, 5000)


@pytest.mark.parametrize("why", ["small", "refused"])
def test_small_or_unsupported_output_goes_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    written = Written(tmp_path / "file", list(SIZES))
    if why == "small":
        monkeypatch.setattr(direct_io, "LEAST_BYTES", LAYOUT.nbytes + 1)
    else:
        monkeypatch.setattr(direct_io.os, "open", _refuse)
    with (
        written.growing as digests,
        open_output([written.path], [written.file], LAYOUT.nbytes, digests, written.finish) as to,
    ):
        assert isinstance(to, CachedWriter)
        put_all(written, to, 5000)
        assert digests.digests() == [written.expected]


def _refuse(*_: object) -> int:
    raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.parametrize(("files", "nbytes"), [(1, 1 << 20), (8, 1 << 20), (9, 512 << 10), (512, 16 << 10)])
def test_block_size_shrinks_with_many_files(files: int, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_io, "BLOCKS_BYTES", 32 << 20)
    monkeypatch.setattr(direct_io, "MOST_BLOCK_BYTES", 1 << 20)
    assert direct_io.block_bytes(files) == nbytes


@pytest.mark.slow
@pytest.mark.parametrize("mapping", [ParallelMapping(), ParallelMapping(4), ParallelMapping(2, 2)], ids=str)
@pytest.mark.parametrize("scheme", [Scheme(), Scheme("fp8_rowwise")], ids=lambda s: s.weights)
@pytest.mark.parametrize("chunk_bytes", [64, 5000, 1 << 20])
def test_direct_and_cached_conversions_have_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int, scheme: Scheme, mapping: ParallelMapping
) -> None:
    source = make_llama(tmp_path / "hf", attention_bias=True, vocab_size=67, num_hidden_layers=3)
    found = []
    for least in (0, 1 << 40):
        monkeypatch.setattr(direct_io, "LEAST_BYTES", least)
        monkeypatch.setattr(stream, "CHUNK_BYTES", chunk_bytes)
        (out := tmp_path / str(least)).mkdir()
        found.append(convert_checkpoint(source, out, mapping=mapping, scheme=scheme))
        assert found[-1] == {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in out.glob("*.safetensors")
        }
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(
    ("weights", "stored"),
    [("none", None), ("fp8", None), ("fp8_rowwise", None), ("fp8", "tensor"), ("fp8_rowwise", "channel")],
)
def test_conversion_never_drops_blocks_before_they_are_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, stored: str | None, tensor: int
) -> None:
    source = make_llama(tmp_path / "hf", hidden_size=256, intermediate_size=2048, num_hidden_layers=2)
    if stored:
        compress(source, compressed_tensors(stored))
    largest = 256 * 2048 // tensor
    assert largest > 2 * direct_io.BLOCKS_BYTES
    monkeypatch.setattr(stream, "CHUNK_BYTES", 8 << 10)
    name = StreamingDigests.drop_block.__name__
    monkeypatch.setattr(StreamingDigests, name, lambda *_: pytest.fail("a block has to be read back"))
    modules = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
    names = [f"transformer.layers.{layer}.{module}" for layer in range(2) for module in modules]
    convert_checkpoint(
        source,
        tmp_path,
        mapping=ParallelMapping(tensor),
        scheme=Scheme() if weights == "none" else Scheme(weights),
        activations=Activations(dict.fromkeys(names, 1.0)),
    )


def test_rows_of_several_ranks_alternate_in_chunks() -> None:
    parts = [range(5), range(5, 8), range(8, 14)]
    assert list(stream._turns(parts, 3)) == [
        (0, 0, 3),
        (1, 5, 8),
        (2, 8, 11),
        (0, 3, 5),
        (2, 11, 14),
    ]
    assert not list(stream._turns([range(0)], 3))
