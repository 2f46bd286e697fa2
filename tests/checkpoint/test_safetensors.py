# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files: what the library writes is read, what is broken is refused and named."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from trtspec.checkpoint.safetensors import Writer, iter_chunks, read_header
from trtspec.errors import CheckpointError

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write_raw(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def test_what_the_library_writes_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {"b": rng.random((3, 5), np.float32), "a.x": rng.integers(0, 9, 7), "empty": np.zeros((0, 4), np.float16)}
    path = tmp_path / "m.safetensors"
    save_file(tensors, path, {"format": "pt"})
    header = read_header(path)
    assert header.keys() == tensors.keys()
    for name, tensor in header.items():
        assert tensor.shape == tensors[name].shape
        chunks = b"".join(bytes(chunk) for chunk in iter_chunks(tensor, bytearray(11)))
        assert chunks == tensors[name].tobytes()


def test_what_we_write_the_library_reads(tmp_path: Path) -> None:
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(5, dtype=np.uint8)
    path = tmp_path / "m.safetensors"
    with Writer(path, [("second", "U8", (5,)), ("first", "F32", (2, 3))]) as writer:
        raw = memoryview(first.tobytes())
        writer.write("first", 8, raw[8:])
        writer.write("second", 0, memoryview(second.tobytes()))
        writer.write("first", 0, raw[:8])
    loaded = load_file(path)
    np.testing.assert_array_equal(loaded["first"], first)
    np.testing.assert_array_equal(loaded["second"], second)


BROKEN = {
    "empty": (b"", b"", 0, "not a safetensors file: its header is not JSON"),
    "longer than the file": ({}, b"", 1 << 62, "truncated: the header should end at byte 4,611,686,018,427,387,912"),
    "not JSON": (b"{" * 50_000, b"", None, "its header is not JSON"),
    "deep JSON": (b"[" * 200_000, b"", None, "its header is not JSON"),
    "not an object": ([1], b"", None, "its header is not a JSON object"),
    "twice": (b'{"a":1,"a":2}', b"", None, "the header names 'a' twice"),
    "separator": ({"../a": F32}, b"", None, "tensor name '../a' has a path separator"),
    "no shape": ({"a": {"dtype": "F32"}}, b"", None, "tensor 'a' lacks dtype, shape or data_offsets"),
    "entry is a number": ({"a": 3}, b"", None, "tensor 'a' lacks dtype, shape or data_offsets"),
    "dtype": ({"a": F32 | {"dtype": "F33"}}, b"", None, "tensor 'a' has the unknown dtype 'F33'"),
    "negative": ({"a": F32 | {"shape": [-2]}}, b"", None, "a shape or offset that is no valid number"),
    "float": ({"a": F32 | {"shape": [2.0]}}, b"", None, "a shape or offset that is no valid number"),
    "size": ({"a": F32 | {"shape": [3]}}, bytes(8), None, "F32 \\[3\\] does not fill its 8 bytes"),
    "overlap": ({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, bytes(12), None, "'b' begins at byte"),
    "hole": ({"a": F32, "b": F32 | {"data_offsets": [12, 20]}}, bytes(20), None, "'b' begins at byte"),
    "truncated data": ({"a": F32}, bytes(7), None, "truncated: its tensors need"),
    "surplus": ({"a": F32}, bytes(9), None, "1 bytes after the last tensor belong to none"),
}


@pytest.mark.parametrize("case", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_is_refused_and_named(case: tuple[Any, bytes, int | None, str], tmp_path: Path) -> None:
    header, data, length, message = case
    path = write_raw(tmp_path / "broken.safetensors", header, data, length)
    with pytest.raises(CheckpointError, match=f"broken.safetensors: .*{message}"):
        read_header(path)


def test_a_header_bomb_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "bomb.safetensors", b" " * (17 << 20))
    started = time.monotonic()
    with pytest.raises(CheckpointError, match="a header of 17,825,792 bytes; at most 16,777,216 are read"):
        read_header(path)
    assert time.monotonic() - started < 1


def test_a_million_empty_tensors_are_refused(tmp_path: Path) -> None:
    entry = '"%d":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
    raw = ("{" + ",".join(entry % number for number in range(250_000)) + "}").encode()
    with pytest.raises(CheckpointError, match="250,000 tensors; at most 200,000 are read"):
        read_header(write_raw(tmp_path / "many.safetensors", raw))


def test_a_file_that_shrinks_while_read_is_noticed(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "m.safetensors", {"a": F32}, bytes(8))
    tensor = read_header(path)["a"]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="ends inside tensor 'a'; it was changed while being read"):
        list(iter_chunks(tensor, bytearray(64)))
