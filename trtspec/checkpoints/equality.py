# SPDX-License-Identifier: Apache-2.0
"""Comparison of two stored tensors by value, across dtypes and files, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from trtspec.checkpoints.safetensors import ITEM_BYTES, TensorInfo
from trtspec.core.errors import CheckpointError
from trtspec.core.files import file_identity, open_regular

ITEMS = 1 << 19  # compared at a time
FLOATS = ("BF16", "F16", "F32")


def have_equal_values(one: TensorInfo, other: TensorInfo) -> bool:
    """Return whether two tensors have the same shape and values; stop reading at the first difference.

    Floating-point values are compared as float32, which is exact; 0 equals -0. Other dtypes are compared by their
    bytes. The result is cached as long as neither file changes. Raises CheckpointError if a file ends early.
    """
    if one.shape != other.shape:
        return False
    return _compare(one, other, file_identity(one.file), file_identity(other.file))


@lru_cache(maxsize=64)
def _compare(one: TensorInfo, other: TensorInfo, *identities: str) -> bool:
    are_floats = one.dtype in FLOATS and other.dtype in FLOATS
    if one.dtype != other.dtype and not are_floats:
        return False
    for left, right in zip(_pieces(one), _pieces(other), strict=True):
        if left == right and one.dtype == other.dtype:
            continue
        if not are_floats or not _are_equal_floats((left, one.dtype), (right, other.dtype)):
            return False
    return True


def _pieces(tensor: TensorInfo) -> Iterator[bytes]:
    """Yield the tensor's bytes, `ITEMS` items at a time."""
    left = tensor.nbytes
    with open_regular(tensor.file) as file:
        file.seek(tensor.offset)
        while left:
            piece = file.read(min(left, ITEMS * ITEM_BYTES[tensor.dtype]))
            if len(piece) % ITEM_BYTES[tensor.dtype] or not piece:
                raise CheckpointError(
                    "ends early; it was changed while being read",
                    where=str(tensor.file),
                    hint="try again when no process writes to it",
                )
            yield piece
            left -= len(piece)


def _are_equal_floats(*pieces: tuple[bytes, str]) -> bool:
    import numpy as np  # needed only if the bytes differ

    from trtspec.checkpoints.cast import to_floats

    left, right = (
        to_floats(np.frombuffer(piece, np.uint32 if dtype == "F32" else np.uint16), dtype) for piece, dtype in pieces
    )
    return bool(np.array_equal(left, right))
