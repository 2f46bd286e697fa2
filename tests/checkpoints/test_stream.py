# SPDX-License-Identifier: Apache-2.0
"""The streaming converter: the same bytes for all threads, chunks and interruptions, and its errors."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import signal
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests._support.durability import die_at, finish, start  # noqa: F401
from tests._support.tiny import convert, make_llama
from trtspec.checkpoints import direct_io, stream
from trtspec.checkpoints.conversion import Activations
from trtspec.checkpoints.direct_io import DirectWriter, RankWriter, ReadBuffer, SourceFile
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import CheckpointError
from trtspec.core.processes import wait_until

FP8 = {"mapping": ParallelMapping(2, 2), "scheme": Scheme("fp8", "fp8"), "dtype": "float16"}
ROWS = Scheme("fp8_rowwise")
LAYERS = 4


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_llama(tmp_path / "hf", attention_bias=True, vocab_size=67, num_hidden_layers=LAYERS)


@pytest.fixture
def activations() -> Activations:
    found = Activations()
    for layer in range(LAYERS):
        prefix = f"transformer.layers.{layer}"
        for number, module in enumerate(("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")):
            found.inputs[f"{prefix}.{module}"] = 3.0 + layer + number
        found.keys[f"{prefix}.attention"], found.values[f"{prefix}.attention"] = 900.0, 500.0 + layer
    return found


def digests(out: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())}


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [Scheme(), Scheme("fp8", "fp8"), Scheme("fp8_rowwise")], ids=lambda s: s.weights)
@pytest.mark.parametrize("chunk_bytes", [64, 1000, 1 << 20])
def test_output_bytes_are_independent_of_threads_and_chunks(
    source: Path,
    tmp_path: Path,
    activations: Activations,
    monkeypatch: pytest.MonkeyPatch,
    chunk_bytes: int,
    scheme: Scheme,
) -> None:
    options = {"mapping": ParallelMapping(2, 2), "scheme": scheme, "activations": activations}
    expected = digests(convert(source, tmp_path / "one", threads=1, **options))
    monkeypatch.setattr(stream, "CHUNK_BYTES", chunk_bytes)
    assert digests(convert(source, tmp_path / "many", threads=8, **options)) == expected


def test_row_scales_are_written_once_per_tensor(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writing them once per chunk took thousands of writes and pieces to hash."""
    puts: list[tuple[int, int]] = []
    put = stream.TransferWorker.put

    def count(worker: stream.TransferWorker, rank: int, offset: int, values: Any) -> None:
        if values.dtype == np.float32:
            puts.append((rank, offset))
        put(worker, rank, offset, values)

    monkeypatch.setattr(stream.TransferWorker, "put", count)
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1000)
    out = convert(source, tmp_path / "out", mapping=ParallelMapping(2), scheme=Scheme("fp8_rowwise"))
    files = [load_file(out / f"rank{rank}.safetensors") for rank in (0, 1)]
    scales = [name for file in files for name in file if name.endswith("per_channel_scale")]
    fused = sum(name.endswith("qkv.per_channel_scale") for name in scales)
    assert len(puts) == len(scales) + 2 * fused  # one per q, k and v
    assert len(set(puts)) == len(puts)


def write_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_io, "LEAST_BYTES", 0)
    monkeypatch.setattr(direct_io, "MOST_BLOCK_BYTES", 16 << 10)
    monkeypatch.setattr(direct_io, "BLOCKS_BYTES", 16 * (16 << 10))


def commit_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent commits of several tasks, whose number would depend on the machine."""
    note, one_by_one = stream.ConversionJournal.finish, threading.Lock()

    def finish_and_wait(notes: stream.ConversionJournal, name: str) -> None:
        with one_by_one:
            note(notes, name)
            assert wait_until(lambda: not notes._finished, 30, interval_s=0.001)

    monkeypatch.setattr(stream, "COMMIT_EVERY_S", 0.0)
    monkeypatch.setattr(stream.ConversionJournal, "finish", finish_and_wait)


@pytest.mark.slow
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("point", ["journal.finished", "journal.committed"])
def test_killed_conversion_resumes_with_the_remaining_tensors(
    source: Path,
    tmp_path: Path,
    activations: Activations,
    monkeypatch: pytest.MonkeyPatch,
    die_at: Callable[[str, Callable[[], object]], int],  # noqa: F811
    point: str,
    in_blocks: bool,
) -> None:
    if in_blocks:
        write_in_blocks(monkeypatch)
    expected = digests(convert(source, tmp_path / "whole", activations=activations, **FP8))
    commit_each_task(monkeypatch)
    out, notes = tmp_path / "killed", tmp_path / "notes"

    def work() -> None:
        convert(source, out, activations=activations, journal=notes, threads=1, **FP8)

    deaths = 0
    while die_at(point, work) == -signal.SIGKILL:
        deaths += 1
        done = notes.read_text().splitlines()[1:]
        if point == "journal.committed":
            assert len(done) >= deaths  # each run makes progress
        elif deaths == 3:
            break  # killed before any commit, it starts over each time
    work()
    assert digests(out) == expected
    if point == "journal.committed":
        assert deaths >= 3


def test_finished_tensors_are_not_read_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, notes = tmp_path / "c", tmp_path / "notes"
    convert(source, out, journal=notes)
    expected, reads = digests(out), []
    monkeypatch.setattr(
        stream.TransferWorker, "chunks", lambda self, tensor, **_: iter(reads.append(tensor.name) or ())
    )
    convert(source, out, journal=notes)
    assert (digests(out), reads) == (expected, [])
    notes.write_text("".join(line for line in notes.open() if "layers.1.mlp.proj" not in line))
    convert(source, out, journal=notes)
    assert reads == ["model.layers.1.mlp.down_proj.weight"]


def test_truncated_last_journal_line_is_ignored(source: Path, tmp_path: Path) -> None:
    out, notes = tmp_path / "c", tmp_path / "notes"
    convert(source, out, journal=notes)
    expected, (stamp, first, *_) = digests(out), notes.read_text().splitlines()
    notes.write_text(f"{stamp}\n{first[:-1]}")  # the truncated line could be the name of another task
    convert(source, out, journal=notes)
    assert digests(out) == expected
    assert first[:-1] not in notes.read_text().splitlines()
    assert sorted(notes.read_text().splitlines()) == sorted(set(notes.read_text().splitlines()))


@pytest.mark.parametrize("in_blocks", [False, True])
def test_journal_records_a_task_only_after_its_bytes_are_synced(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_blocks: bool
) -> None:
    if in_blocks:
        write_in_blocks(monkeypatch)
    notes, seen = tmp_path / "notes", []
    monkeypatch.setattr(stream, "COMMIT_EVERY_S", 0.0)
    monkeypatch.setattr(os, "fdatasync", lambda _: seen.append(("data", len(notes.read_text().splitlines()))))
    monkeypatch.setattr(os, "fsync", lambda _: seen.append(("notes", len(notes.read_text().splitlines()))))
    convert(source, tmp_path / "c", journal=notes, mapping=ParallelMapping(2))
    assert len(seen) % 3 == 0
    lines = 1  # the stamp
    for first, second, noted in zip(seen[::3], seen[1::3], seen[2::3], strict=True):
        assert (first, second) == (("data", lines), ("data", lines))  # both ranks, before the journal grows
        assert noted[0] == "notes"
        assert noted[1] > lines
        lines = noted[1]


def write_again(path: Path) -> None:
    """Write the same bytes, and hide it as far as a user can."""
    before = path.stat()
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def put_a_copy(path: Path) -> None:
    """Replace a file by another one with the same bytes and times."""
    shutil.copy2(path, path.with_name("copy"))
    os.replace(path.with_name("copy"), path)


@pytest.mark.parametrize("replace", [lambda path: os.utime(path, ns=(1, 1)), write_again, put_a_copy])
def test_replaced_source_is_converted_from_the_start(
    source: Path, tmp_path: Path, replace: Callable[[Path], object]
) -> None:
    out, notes, shard = tmp_path / "c", tmp_path / "notes", source / "model.safetensors"
    expected, content = digests(convert(source, out, journal=notes)), shard.read_bytes()
    with (out / RANK).open("r+b") as file:
        file.seek(-64, os.SEEK_END)
        file.write(b"x" * 64)  # as if the source had temporarily had other bytes
    replace(shard)
    convert(source, out, journal=notes)
    assert shard.read_bytes() == content
    assert digests(out) == expected


def test_damaged_output_is_rewritten(source: Path, tmp_path: Path) -> None:
    out, notes = tmp_path / "c", tmp_path / "notes"
    expected = digests(convert(source, out, journal=notes))
    os.truncate(out / "rank0.safetensors", 1000)
    assert digests(convert(source, out, journal=notes)) == expected


def test_progress_counts_every_source_byte_once(source: Path, tmp_path: Path, activations: Activations) -> None:
    counted: list[int] = []
    nbytes = sum(tensor.nbytes for tensor in load_file(source / "model.safetensors").values())
    for options in ({}, {**FP8, "activations": activations}, {"scheme": Scheme("fp8_rowwise")}):
        counted.clear()
        convert(source, tmp_path / str(len(options)), on_bytes=counted.append, journal=tmp_path / "notes", **options)
        assert sum(counted) == nbytes
        (tmp_path / "notes").unlink()


def test_bytes_of_finished_tasks_are_reported_first(source: Path, tmp_path: Path) -> None:
    out, notes, counted = tmp_path / "c", tmp_path / "notes", list[int]()
    nbytes = sum(tensor.nbytes for tensor in load_file(source / "model.safetensors").values())
    convert(source, out, journal=notes, on_bytes=counted.append)
    assert (counted[0], sum(counted)) == (0, nbytes)
    counted.clear()
    convert(source, out, journal=notes, on_bytes=counted.append)
    assert counted == [nbytes]


def damage(source: Path, **values: float) -> None:
    tensors = load_file(source / "model.safetensors")
    for name, value in values.items():
        tensors[name.replace("__", ".")].view(-1)[:2] = value
    save_file(tensors, source / "model.safetensors", {"format": "pt"})


def test_nonfinite_values_are_rejected_with_tensor_names_and_counts(
    source: Path, tmp_path: Path, activations: Activations
) -> None:
    damage(source, model__norm__weight=float("nan"), model__layers__1__mlp__up_proj__weight=float("-inf"))
    for number, options in enumerate(({}, {**FP8, "activations": activations}, {"scheme": Scheme("fp8_rowwise")})):
        with pytest.raises(CheckpointError) as error:
            convert(source, tmp_path / str(number), **options)
        found = str(error.value)
        assert "model.norm.weight: 2 NaN and 0 infinite values in model.safetensors" in found
        assert "model.layers.1.mlp.up_proj.weight: 0 NaN and 2 infinite values in model.safetensors" in found
        assert str(source) in found
        assert "hint: the checkpoint is damaged; set allow_nonfinite: true in the recipe to convert it anyway" in found


@pytest.mark.parametrize(
    "options", [{}, {"mapping": ParallelMapping(2)}, {"dtype": "float16"}, {"scheme": ROWS}], ids=str
)
def test_parts_of_tensors_have_the_output_and_the_issues_of_whole_tensors(
    source: Path, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, notes = digests(convert(source, tmp_path / "whole", **options)), tmp_path / "notes"
    monkeypatch.setattr(stream, "PART_BYTES", 1000)
    assert digests(convert(source, tmp_path / "parts", journal=notes, **options)) == expected
    names = notes.read_text().splitlines()
    assert "lm_head.weight 1" in names
    assert "transformer.ln_f.weight" in names
    tensors = load_file(source / "model.safetensors")
    tensors["lm_head.weight"][[0, 1, -1], 3] = float("nan")
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"lm_head\.weight: 3 NaN and 0 infinite values in model\."):
        convert(source, tmp_path / "flawed", **options)


def test_nonfinite_values_are_reported_again_on_retry(source: Path, tmp_path: Path) -> None:
    damage(source, model__norm__weight=float("nan"))
    found = []
    for _ in range(2):
        with pytest.raises(CheckpointError) as error:
            convert(source, tmp_path / "c", journal=tmp_path / "notes")
        found.append(str(error.value))
    assert found[0] == found[1]
    assert "transformer.ln_f.weight" not in (tmp_path / "notes").read_text().splitlines()


def test_nonfinite_values_are_converted_with_allow_nonfinite(
    source: Path, tmp_path: Path, activations: Activations
) -> None:
    clean = load_file(convert(source, tmp_path / "clean", scheme=Scheme("fp8"), activations=activations) / RANK)
    damage(source, model__layers__1__mlp__up_proj__weight=float("nan"))
    out = convert(source, tmp_path / "c", scheme=Scheme("fp8"), activations=activations, allow_nonfinite=True)
    tensors, scale = load_file(out / RANK), "transformer.layers.1.mlp.gate.weights_scaling_factor"
    weight = tensors["transformer.layers.1.mlp.gate.weight"].float()
    assert torch.equal(tensors[scale], clean[scale])  # the scale is computed from the finite values
    assert weight.isnan().sum() == 2


RANK = "rank0.safetensors"


def test_float32_values_too_large_for_float16_are_rejected_with_their_count(tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf", dtype="float32")
    damage(source, model__layers__0__self_attn__o_proj__weight=70000.0)
    with pytest.raises(CheckpointError) as error:
        convert(source, tmp_path / "c", "float16")
    assert "model.layers.0.self_attn.o_proj.weight: 2 values are too large for F16 in model.safetensors" in str(
        error.value
    )
    assert "hint: set dtype: bfloat16 in the recipe" in str(error.value)
    assert convert(source, tmp_path / "b", "bfloat16")


def test_shrinking_source_is_an_error(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = ReadBuffer.read

    def shrink(*arguments: Any, **keep: Any) -> memoryview:
        os.truncate(source / "model.safetensors", 5000)
        return read(*arguments, **keep)

    monkeypatch.setattr(ReadBuffer, "read", shrink)
    with pytest.raises(CheckpointError, match=r"ends inside tensor 'model.*'; it was changed while being read"):
        convert(source, tmp_path / "c")


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("supported", [True, False])
@pytest.mark.parametrize("weights", ["none", "fp8_rowwise"])
def test_output_does_not_depend_on_what_is_in_the_page_cache(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: bool, supported: bool, weights: str
) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 10_000)
    expected = digests(convert(source, tmp_path / "one", scheme=Scheme(weights)))
    opened, preadv, is_direct = direct_io._open_direct, os.preadv, list[bool]()
    monkeypatch.setattr(direct_io, "LEAST_BYTES", 0)
    monkeypatch.setattr(direct_io, "SMALL_BYTES", 512)

    def read(file: int, *others: Any) -> int:
        is_direct.append(bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT))
        return preadv(file, *others)

    monkeypatch.setattr(SourceFile, "is_cached", lambda *_: cached)
    monkeypatch.setattr(direct_io, "_open_direct", lambda *given: opened(*given) if supported else None)
    monkeypatch.setattr(direct_io.os, "preadv", read)
    assert digests(convert(source, tmp_path / "two", scheme=Scheme(weights))) == expected
    assert any(is_direct) == (supported and not cached)


@pytest.mark.parametrize("ranks", [1, 2])
def test_cached_tensors_are_read_into_the_memory_that_they_are_written_from(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    expected = digests(convert(source, tmp_path / "one", mapping=ParallelMapping(ranks)))
    filled, fill = dict[int, int](), DirectWriter.fill

    def count(writer: DirectWriter, file: int, nbytes: int) -> None:
        filled[file] = filled.get(file, 0) + nbytes
        fill(writer, file, nbytes)

    monkeypatch.setattr(direct_io, "LEAST_BYTES", 0)
    monkeypatch.setattr(direct_io, "SMALL_BYTES", 512)
    monkeypatch.setattr(SourceFile, "is_cached", lambda *_: True)
    monkeypatch.setattr(DirectWriter, "put", RankWriter.put)
    monkeypatch.setattr(DirectWriter, "fill", count)
    assert digests(convert(source, tmp_path / "two", mapping=ParallelMapping(ranks))) == expected
    sizes = [(tmp_path / "two" / f"rank{rank}.safetensors").stat().st_size for rank in range(ranks)]
    assert all(filled[rank] > size / 4 for rank, size in enumerate(sizes))


def test_cached_part_of_a_file_is_recognized_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_SYNC)  # pages that are not written are not dropped
    os.write(descriptor, bytes(8 << 20))
    os.close(descriptor)
    with closing(SourceFile(path)) as file:
        os.posix_fadvise(file.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(file.descriptor, 1 << 20, 6 << 20)  # with what the kernel reads ahead of it
        if file.is_cached(0, 1 << 20):
            pytest.skip("this file system does not drop cached pages")
        assert not file.is_cached(1, (2 << 20) + 1)
        assert file.is_cached(6 << 20, 7 << 20)
        assert file.is_cached((6 << 20) + 3, (6 << 20) + 40_000)
        os.truncate(path, 100)
        assert file.is_cached(5 << 20, 8 << 20)  # a read from the page cache finds that the file is too short


def test_rows_longer_than_a_buffer_are_rejected(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "MOST_ROW_BYTES", 64)
    with pytest.raises(
        CheckpointError, match=r"rows of 96 bytes in 'model.*down_proj.weight'; at most 64 are converted"
    ):
        convert(source, tmp_path / "c")


def test_file_system_without_preallocation_is_supported(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = digests(convert(source, tmp_path / "one"))

    def refuse(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "no such thing here")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert digests(convert(source, tmp_path / "other")) == expected


def test_zero_weights_convert_with_positive_finite_scales(
    source: Path, tmp_path: Path, activations: Activations
) -> None:
    tensors = load_file(source / "model.safetensors")
    for name in tensors:
        if "layers.0" in name:
            tensors[name].zero_()
    save_file(tensors, source / "model.safetensors", {"format": "pt"})
    for scheme in (Scheme("fp8"), Scheme("fp8_rowwise")):
        out = load_file(convert(source, tmp_path / scheme.weights, scheme=scheme, activations=activations) / RANK)
        assert not out["transformer.layers.0.attention.qkv.weight"].float().any()
        for name, tensor in out.items():
            if name.endswith(("scaling_factor", "scale")):
                assert (tensor > 0).all()
                assert tensor.isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mapping": ParallelMapping(3)}, "4 attention heads cannot be divided by 3 ranks"),
        ({"scheme": Scheme("fp8", exclude=("lm_head", "*.fc"))}, "engines fuse mlp.fc and mlp.gate of a layer"),
        (
            {"mapping": ParallelMapping(1, 2), "scheme": Scheme("fp8_rowwise", exclude=("lm_head", "*.0.*"))},
            "pipeline stages number their layers from 0, so patterns cannot select single layers",
        ),
    ],
)
def test_conversion_that_no_engine_can_load_is_rejected_without_output(
    source: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        convert(source, tmp_path / "c", **options)
    assert not list((tmp_path / "c").iterdir())
