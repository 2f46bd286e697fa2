# SPDX-License-Identifier: Apache-2.0
"""Read and lay out safetensors files without loading them: 8 bytes of length, a JSON header, then the bytes.

Format: https://github.com/huggingface/safetensors#format. Headers come from untrusted files, so every number is
checked against the file before anything is allocated; nothing here knows what a tensor means.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, NoReturn

from trtspec.errors import CheckpointError

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1,
              "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}  # fmt: skip
MAX_HEADER_BYTES = 16 << 20
MAX_TENSORS = 200_000
NAME = re.compile(r"[^/\\\x00-\x1f\x7f]{1,512}")


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of a file: `offset` is where its bytes begin in `file`, `nbytes` how many there are."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a safetensors file, in file order.

    Raises CheckpointError for a file that is truncated, holds overlapping, missing or surplus bytes, names a tensor
    twice, or whose header is larger than 16 MiB or 200,000 tensors.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                _refuse(path, f"truncated: the header should end at byte {8 + length:,} and the file has {size:,}")
            if length > MAX_HEADER_BYTES:
                _refuse(path, f"a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read")
            raw = file.read(length)
    except OSError as error:
        _refuse(path, f"cannot be read: {error.strerror}")
    tensors = [_tensor(path, name, entry, 8 + length) for name, entry in _parse(path, raw).items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    _check_contiguous(path, tensors, 8 + length, size)
    return {tensor.name: tensor for tensor in tensors}


def _refuse(path: Path, message: str) -> NoReturn:
    raise CheckpointError(message, where=str(path))


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            seen: set[str] = set()
            twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
            _refuse(path, f"the header names {twice!r} twice")
        return table

    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"not a safetensors file: its header is not JSON ({error.__class__.__name__})")
    if not isinstance(header, dict):
        _refuse(path, "not a safetensors file: its header is not a JSON object")
    header.pop("__metadata__", None)
    if len(header) > MAX_TENSORS:
        _refuse(path, f"{len(header):,} tensors; at most {MAX_TENSORS:,} are read")
    return header


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    if not NAME.fullmatch(name):
        _refuse(path, f"tensor name {name[:80]!r} has a path separator or control character, or is too long")
    try:
        dtype, shape, (begin, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        _refuse(path, f"tensor {name!r} lacks dtype, shape or data_offsets")
    if dtype not in ITEM_BYTES:
        _refuse(path, f"tensor {name!r} has the unknown dtype {dtype!r}")
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in (*shape, begin, end)) or begin > end:
        _refuse(path, f"tensor {name!r} has a shape or offset that is no valid number")
    if prod(shape) * ITEM_BYTES[dtype] != end - begin:
        _refuse(path, f"tensor {name!r}: {dtype} {list(shape)} does not fill its {end - begin:,} bytes")
    return TensorInfo(name, dtype, shape, path, data_start + begin, end - begin)


def _check_contiguous(path: Path, tensors: list[TensorInfo], start: int, size: int) -> None:
    position = start
    for tensor in tensors:
        if tensor.offset != position:
            _refuse(path, f"tensor {tensor.name!r} begins at byte {tensor.offset:,}, expected {position:,}")
        position += tensor.nbytes
    if position > size:
        _refuse(path, f"truncated: its tensors need {position:,} bytes and the file has {size:,}")
    if position < size:
        _refuse(path, f"{size - position:,} bytes after the last tensor belong to none")


def iter_chunks(tensor: TensorInfo, buffer: bytearray) -> Iterator[memoryview]:
    """Yield the tensor's bytes through `buffer`, again and again overwritten; its length is the chunk size.

    Raises CheckpointError if the file became shorter since its header was read.
    """
    view = memoryview(buffer)
    with tensor.file.open("rb", buffering=0) as file:
        for done in range(0, tensor.nbytes, len(buffer)):
            chunk = view[: min(len(buffer), tensor.nbytes - done)]
            filled = 0
            while filled < len(chunk):
                got = os.preadv(file.fileno(), [chunk[filled:]], tensor.offset + done + filled)
                if not got:
                    _refuse(tensor.file, f"ends inside tensor {tensor.name!r}; it was changed while being read")
                filled += got
            yield chunk


class Writer:
    """A safetensors file whose tensors are laid out first and filled in any order.

    Args:
        path: the file, created anew.
        tensors: (name, dtype, shape) of each tensor, in file order.
    """

    def __init__(self, path: Path, tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        offset = 0
        for name, dtype, shape in tensors:
            nbytes = prod(shape) * ITEM_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
            offset += nbytes
        raw = json.dumps(header, separators=(",", ":")).encode()
        raw += b" " * (-len(raw) % 8)  # the format aligns the data to 8 bytes
        self._starts = {
            name: 8 + len(raw) + entry["data_offsets"][0] for name, entry in header.items() if "dtype" in entry
        }
        self._file = path.open("wb", buffering=0)
        self._file.write(len(raw).to_bytes(8, "little") + raw)
        if offset:
            os.posix_fallocate(self._file.fileno(), 8 + len(raw), offset)  # a full disk is found before the work

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, name: str, position: int, data: memoryview) -> None:
        """Write `data` at byte `position` of tensor `name`."""
        start = self._starts[name] + position
        while data.nbytes:
            done = os.pwrite(self._file.fileno(), data, start)
            data, start = data[done:], start + done
