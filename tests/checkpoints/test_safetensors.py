# SPDX-License-Identifier: Apache-2.0
"""Headers of safetensors files: the library's files are read here, and the library reads files laid out here.

Invalid files are in corpus.py and test_fuzz.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.checkpoints.corpus import data_bytes, good_header, pack
from trtspec.checkpoints.safetensors import MAX_HEADER_VALUES, TensorInfo, lay_out, read_header


def read_bytes(tensor: TensorInfo) -> bytes:
    return tensor.file.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]


def test_file_written_by_safetensors_is_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tensors = {
        "b": rng.random((3, 5), np.float32),
        "a.x": rng.integers(0, 9, 7),
        "one empty": np.zeros((0, 4), np.float16),
        "another": np.zeros((4, 0), np.float16),
        "scalar": np.array(2.5),
    }
    path = tmp_path / "m.safetensors"
    save_file(tensors, path, {"format": "pt", "note": "Größe {1}, [2]\n"})
    header = read_header(path)
    assert header.keys() == tensors.keys()
    for name, tensor in header.items():
        assert tensor.shape == tensors[name].shape
        assert read_bytes(tensor) == tensors[name].tobytes()


def test_layout_is_readable_by_safetensors(tmp_path: Path) -> None:
    first, second = np.arange(6, dtype=np.float32).reshape(2, 3), np.arange(5, dtype=np.uint8)
    layout = lay_out([("second", "U8", (5,)), ("first", "F32", (2, 3))])
    whole = bytearray(layout.nbytes)
    whole[: len(layout.header)] = layout.header
    for name, tensor in (("second", second), ("first", first)):
        whole[layout.offsets[name] : layout.offsets[name] + tensor.nbytes] = tensor.tobytes()
    path = tmp_path / "m.safetensors"
    path.write_bytes(whole)
    loaded = load_file(path)
    np.testing.assert_array_equal(loaded["first"], first)
    np.testing.assert_array_equal(loaded["second"], second)


@pytest.mark.parametrize("padding", [b"", b" " * 7, b"\n"])
def test_header_padding_is_ignored(padding: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    raw = pack(good_header(), 0)[8:] + padding
    path.write_bytes(pack(raw, data_bytes(good_header())))
    assert read_header(path)["model.norm.weight"].shape == (8,)


@pytest.mark.slow
def test_header_with_as_many_tensors_as_a_large_moe_is_read(tmp_path: Path) -> None:
    """Qwen3-235B in FP8: 94 layers of 128 experts, each with three matrices and their scales."""
    shapes = {f"{layer}.{expert}.{n}": [1, 1] for layer in range(94) for expert in range(128) for n in range(6)}
    header = good_header(shapes)
    path = tmp_path / "m.safetensors"
    path.write_bytes(pack(header, data_bytes(header)))
    assert len(read_header(path)) == 94 * 128 * 6 < MAX_HEADER_VALUES / 8
