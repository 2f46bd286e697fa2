# SPDX-License-Identifier: Apache-2.0
"""Read the headers of safetensors files and lay out new files: 8 bytes of length, a JSON header, then the data.

Format: https://github.com/huggingface/safetensors#format. Headers are untrusted, so every number is checked against the
file before memory is allocated.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from trtspec.checkpoints.safe_json import parse_object, repr_short
from trtspec.core.errors import CheckpointError
from trtspec.core.files import describe_read_error, open_regular

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
              "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}  # fmt: skip
MAX_HEADER_BYTES = 16 << 20
MAX_HEADER_VALUES = 600_000  # eight values per matrix
MAX_NAME = 512
PIECE_ITEMS = 1 << 19
MAX_RANK = 8
MAX_TENSOR_BITS = 1 << 63
GIT_LFS = b"version "
DAMAGED = "download or save the file again: it was cut off or changed"
RENAME = "save the tensors under other names"
UNREADABLE = "name a checkpoint with readable files"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a file: `nbytes` bytes from the file offset `offset`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    offset: int
    nbytes: int

    @property
    def end(self) -> int:
        """Return the offset in the file after the tensor's last byte."""
        return self.offset + self.nbytes


def bytes_by_dtype(tensors: Iterable[TensorInfo]) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for tensor in tensors:
        counted[tensor.dtype] += tensor.nbytes
    return dict(sorted(counted.items()))


def read_header(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors of a safetensors file by name, in file order.

    Raises CheckpointError if the file is not a regular file or is truncated, has overlapping, missing or surplus bytes,
    names a tensor twice, or has a header larger than MAX_HEADER_BYTES or with more than MAX_HEADER_VALUES values.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            raw = _read_raw(path, file, size)
    except OSError as error:
        _refuse(path, describe_read_error(error), UNREADABLE)
    start = 8 + len(raw)
    tensors = [_tensor(path, name, entry, start) for name, entry in _parse(path, raw).items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.nbytes))
    _check_contiguous(path, tensors, start, size)
    return {tensor.name: tensor for tensor in tensors}


def _refuse(path: Path, message: str, hint: str = DAMAGED) -> NoReturn:
    raise CheckpointError(message, where=str(path), hint=hint)


def _read_raw(path: Path, file: BinaryIO, size: int) -> bytes:
    head = file.read(8)
    if head == GIT_LFS:
        _refuse(path, "a Git LFS pointer, not the file itself", "fetch it with git lfs pull")
    length = int.from_bytes(head, "little")
    if size < 8 or length > size - 8:
        _refuse(path, f"truncated: the header ends at byte {8 + length:,}, but the file has {size:,} bytes")
    if length > MAX_HEADER_BYTES:
        _refuse(
            path, f"a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read", "save it in several files"
        )
    raw = file.read(length)
    if len(raw) < length:
        _refuse(path, "ends inside its header; it was changed while being read")
    return raw


def _parse(path: Path, raw: bytes) -> dict[str, Any]:
    try:
        header = parse_object(raw, MAX_HEADER_VALUES)
        _check_metadata(header.pop("__metadata__", {}))
    except ValueError as error:
        _refuse(path, f"not a safetensors file: invalid header: {error}")
    return header


def _check_metadata(metadata: Any) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its __metadata__ does not map text to text")
    for text in (*metadata, *metadata.values()):
        text.encode()  # raises ValueError for a lone surrogate, as other readers do


def _tensor(path: Path, name: str, entry: Any, data_start: int) -> TensorInfo:
    if not _is_name(name):
        _refuse(
            path,
            f"tensor name {repr_short(name)} has a path separator or unprintable character, or a wrong length",
            RENAME,
        )
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        _refuse(path, f"tensor {repr_short(name)} must have exactly the keys dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        _refuse(
            path,
            f"tensor {repr_short(name)} has the unknown dtype {repr_short(str(dtype))}",
            f"supported: {', '.join(ITEM_BYTES)}",
        )
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(path, f"tensor {repr_short(name)} has an invalid shape or offset")
    # other readers multiply all dimensions, even of an empty tensor, and could overflow
    if len(shape) > MAX_RANK or prod(n for n in shape if n) * 8 * ITEM_BYTES[dtype] > MAX_TENSOR_BITS:
        _refuse(path, f"tensor {repr_short(name)} has more than {MAX_RANK} dimensions, or is too large")
    nbytes = offsets[1] - offsets[0]
    if prod(shape) * ITEM_BYTES[dtype] != nbytes:
        _refuse(path, f"tensor {repr_short(name)}: {dtype} {shape} does not fill its {nbytes:,} bytes")
    return TensorInfo(name, dtype, tuple(shape), path, data_start + offsets[0], nbytes)


def _is_name(name: str) -> bool:
    plain = name.isprintable() and "/" not in name and "\\" not in name
    return plain and 1 <= len(name) <= MAX_NAME and name not in (".", "..")


def _are_sizes(numbers: Any) -> bool:
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number < 1 << 62 for number in numbers)


def _check_contiguous(path: Path, tensors: list[TensorInfo], start: int, size: int) -> None:
    position = start
    for tensor in tensors:
        if tensor.offset != position:
            _refuse(path, f"tensor {repr_short(tensor.name)} begins at byte {tensor.offset:,}, expected {position:,}")
        position += tensor.nbytes
    if position > size:
        _refuse(path, f"truncated: its tensors need {position:,} bytes, but the file has {size:,}")
    if position < size:
        _refuse(path, f"{size - position:,} bytes after the last tensor")


def read_tensor(tensor: TensorInfo) -> Iterator[bytes]:
    """Yield a stored tensor's bytes, `PIECE_ITEMS` items at a time; raise CheckpointError if its file ends early."""
    item, left = ITEM_BYTES[tensor.dtype], tensor.nbytes
    with open_regular(tensor.file) as file:
        file.seek(tensor.offset)
        while left:
            piece = file.read(min(left, PIECE_ITEMS * item))
            if len(piece) % item or not piece:
                hint = "try again when no process writes to it"
                _refuse(tensor.file, "ends early; it was changed while being read", hint)
            yield piece
            left -= len(piece)


@dataclass(frozen=True)
class FileLayout:
    """Layout of a safetensors file to be written: its header, each tensor's offset in the file, and its size."""

    header: bytes
    offsets: dict[str, int]
    nbytes: int


def lay_out(tensors: Iterable[tuple[str, str, tuple[int, ...]]]) -> FileLayout:
    """Return the layout of a file with the given (name, dtype, shape) tensors, in this order."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, dtype, shape in tensors:
        end = position + prod(shape) * ITEM_BYTES[dtype]
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    raw = json.dumps(entries, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)  # the format aligns the data to 8 bytes
    header = len(raw).to_bytes(8, "little") + raw
    entries.pop("__metadata__")
    offsets = {name: len(header) + entry["data_offsets"][0] for name, entry in entries.items()}
    return FileLayout(header, offsets, len(header) + position)
