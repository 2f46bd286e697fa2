# SPDX-License-Identifier: Apache-2.0
"""Output past the page cache has the same bytes and segments as through it, for any order and size of writes."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import make_llama
from tests.checkpoints.quant.compressed import compress, compressed_tensors
from trtspec.backends.common.convert import convert_checkpoint
from trtspec.checkpoints import direct_io, stream
from trtspec.checkpoints.conversion import Activations
from trtspec.checkpoints.direct_io import DirectWriter, RankFiles, RankWriter
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.safetensors import lay_out
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.stream import Task, TaskQueue
from trtspec.core import hashing
from trtspec.core.hashing import file_segments

SIZES = {"one": 1000, "two": 300_000, "three": 70_001, "four": 5, "five": 40_000}
LAYOUT = lay_out([(name, "U8", (size,)) for name, size in SIZES.items()])
CONTENT = {name: random.Random(name).randbytes(size) for name, size in SIZES.items()}
BLOCK = 16 << 10


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_io, "LEAST_BYTES", 0)
    monkeypatch.setattr(direct_io, "BLOCKS_BYTES", 4 * BLOCK)
    monkeypatch.setattr(direct_io, "MOST_BLOCK_BYTES", BLOCK)
    monkeypatch.setattr(direct_io, "SMALL_BYTES", 512)
    monkeypatch.setattr(hashing, "SEGMENT_BYTES", 64 << 10)
    monkeypatch.setattr(hashing, "BLOCK_BYTES", BLOCK)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[RankFiles]:
    with ExitStack() as stack:
        yield RankFiles(stack, [tmp_path / "rank0.safetensors"], [LAYOUT])


def put(writer: RankWriter, name: str, pieces: int) -> None:
    for begin in range(0, SIZES[name], pieces):
        piece = bytearray(CONTENT[name][begin : begin + pieces])
        writer.put(0, LAYOUT.offsets[name] + begin, memoryview(piece))
        piece[:] = bytes(len(piece))  # readers reuse their buffer
    writer.flush()
    begin = LAYOUT.offsets[name]
    assert writer._files
    assert os.pread(writer._files[0], SIZES[name], begin) == CONTENT[name]  # a finished task is in the file


def check(output: RankFiles) -> None:
    [path] = output.paths
    assert path.read_bytes() == LAYOUT.header + b"".join(CONTENT[name] for name in SIZES)
    assert output.segments() == {path.name: file_segments([path])[0]}


@pytest.mark.parametrize("pieces", [999, 5000, BLOCK, 1 << 20])
@pytest.mark.parametrize("order", ["one two three four five", "five four three two one", "three one five two four"])
def test_direct_writer_files_and_segments_are_correct_in_any_order(output: RankFiles, order: str, pieces: int) -> None:
    writer = output.writer(1)
    assert isinstance(writer, DirectWriter)
    for name in order.split():
        put(writer, name, pieces)
    check(output)


@pytest.mark.parametrize("pieces", [999, 7000])
def test_threads_write_and_hash_without_an_order(output: RankFiles, pieces: int) -> None:
    with ThreadPoolExecutor(len(SIZES)) as pool:
        for each in [pool.submit(put, output.writer(len(SIZES)), name, pieces) for name in reversed(SIZES)]:
            each.result(30)
    check(output)


def test_bytes_of_an_earlier_run_are_hashed_from_the_file(output: RankFiles, tmp_path: Path) -> None:
    for name in ("one", "two", "four"):
        put(output.writer(1), name, 5000)
    with ExitStack() as stack:
        again = RankFiles(stack, output.paths, [LAYOUT])
        for name in ("three", "five"):
            put(again.writer(1), name, 5000)
        check(again)


def test_task_written_in_sequence_is_not_read_back(output: RankFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, begin: int, end: int) -> Iterator[memoryview]:
        assert begin == end, "it is read back"
        return iter(())

    writer = output.writer(1)
    for name in SIZES:
        put(writer, name, 5000)
    monkeypatch.setattr(hashing, "read_chunks", refuse)
    output.segments()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EINVAL])
def test_disk_error_is_reported_and_invalid_alignment_falls_back(
    output: RankFiles, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write = direct_io.write_all

    def refuse(descriptor: int, data: memoryview, offset: int) -> None:
        if descriptor not in output.files and data.nbytes:
            raise OSError(code, os.strerror(code))
        write(descriptor, data, offset)

    monkeypatch.setattr(direct_io, "write_all", refuse)
    if code == errno.EINVAL:
        for name in SIZES:
            put(output.writer(1), name, 5000)
        check(output)
    else:
        with pytest.raises(OSError, match=os.strerror(code)):
            put(output.writer(1), "two", 5000)


def test_short_writes_are_continued(output: RankFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: pwrite(file, data[: max(4096, len(data) // 2)], at))
    for name in SIZES:
        put(output.writer(1), name, 5000)
    check(output)


@pytest.mark.parametrize("why", ["small", "refused"])
def test_small_or_unsupported_output_goes_through_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    if why == "small":
        monkeypatch.setattr(direct_io, "LEAST_BYTES", LAYOUT.nbytes + 1)
    else:
        monkeypatch.setattr(direct_io, "_open_direct", lambda *_: None)
    with ExitStack() as stack:
        output = RankFiles(stack, [tmp_path / "rank0.safetensors"], [LAYOUT])
        assert not isinstance(output.writer(1), DirectWriter)
        for name in reversed(SIZES):
            put(output.writer(1), name, 5000)
        check(output)


def test_file_system_that_refuses_o_direct_is_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(direct_io.os, "open", refuse)
    with ExitStack() as stack:
        assert direct_io._open_direct(stack, [tmp_path / "file"]) is None


@pytest.mark.parametrize(("blocks", "nbytes"), [(1, 1 << 20), (32, 1 << 20), (33, 512 << 10), (4096, 16 << 10)])
def test_block_size_shrinks_with_many_blocks(blocks: int, nbytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_io, "BLOCKS_BYTES", 32 << 20)
    monkeypatch.setattr(direct_io, "MOST_BLOCK_BYTES", 1 << 20)
    assert direct_io.block_bytes(blocks) == nbytes


def test_each_thread_takes_consecutive_tasks_and_then_half_of_the_largest_rest() -> None:
    tasks = [Task(str(number), Any, 10) for number in range(8)]
    queue = TaskQueue(tasks, 2)
    assert [queue.take(0) for _ in range(4)] == tasks[:4]
    assert queue.take(1) == tasks[4]
    assert queue.take(0) == tasks[6]  # tasks 5, 6 and 7 were left
    assert [queue.take(1), queue.take(1), queue.take(1)] == [tasks[5], tasks[7], None]
    assert queue.take(0) is None


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
        assert found[-1] == {path.name: file_segments([path])[0] for path in out.glob("*.safetensors")}
    assert found[0] == found[1]


@pytest.mark.slow
@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(
    ("weights", "stored"),
    [("none", None), ("fp8", None), ("fp8_rowwise", None), ("fp8", "tensor"), ("fp8_rowwise", "channel")],
)
def test_one_thread_hashes_every_encoding_without_reading_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: str, stored: str | None, tensor: int
) -> None:
    source = make_llama(tmp_path / "hf", hidden_size=256, intermediate_size=2048, num_hidden_layers=2)
    if stored:
        compress(source, compressed_tensors(stored))
    monkeypatch.setattr(hashing, "SEGMENT_BYTES", 1 << 20)
    monkeypatch.setattr(hashing, "BLOCK_BYTES", 256 << 10)
    monkeypatch.setattr(stream, "CHUNK_BYTES", 8 << 10)
    monkeypatch.setattr(hashing, "MOST_EARLY_BYTES", 32 << 10)  # scales of rows, and small tensors
    read = list[int]()
    monkeypatch.setattr(hashing, "read_chunks", lambda _, begin, end: iter(read.append(end - begin) or ()))
    modules = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")
    names = [f"transformer.layers.{layer}.{module}" for layer in range(2) for module in modules]
    convert_checkpoint(
        source,
        tmp_path,
        mapping=ParallelMapping(tensor),
        scheme=Scheme() if weights == "none" else Scheme(weights),
        activations=Activations(dict.fromkeys(names, 1.0)),
        threads=1,
    )
    assert not any(read)
