# SPDX-License-Identifier: Apache-2.0
"""The C interface of plugins/include/trtspec/verify.h: its structs in ctypes, and array arguments.

Numpy arrays and torch tensors are checked before a call, because C code cannot check them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import Structure, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from trtspec.core.errors import TrtspecError

ABI_VERSION = 1
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3}
# a numpy array or a torch tensor
Array = Any


def fields(kind: Any, *names: str) -> tuple[tuple[str, Any], ...]:
    """Return (name, kind) for each name: consecutive ctypes fields of the same type."""
    return tuple((name, kind) for name in names)


class RowsStruct(Structure):
    """The struct `trtspec_rows` of verify.h: an array [batch, rows, entries] with strides in entries."""

    _fields_ = (
        ("data", c_void_p),
        *fields(c_int64, "request_stride", "row_stride"),
        *fields(c_int32, "dtype", "entries"),
    )


class SamplingStruct(Structure):
    """The struct `trtspec_sampling` of verify.h."""

    _fields_ = fields(c_void_p, "temperature", "top_p", "top_k", "uniforms")


class ChainArgs(Structure):
    """The struct `trtspec_chain_args` of verify.h."""

    _fields_ = (
        ("struct_size", c_uint32),
        *fields(c_int32, "batch", "draft_len", "draft_kind"),
        *fields(RowsStruct, "target", "draft"),
        *fields(c_void_p, "draft_column", "tokens", "lengths"),
        ("sampling", SamplingStruct),
        *fields(c_void_p, "accepted", "output", "next", "status", "workspace"),
        ("workspace_bytes", c_uint64),
    )


class TreeArgs(Structure):
    """The struct `trtspec_tree_args` of verify.h."""

    _fields_ = (
        ("struct_size", c_uint32),
        *fields(c_int32, "batch", "nodes", "mode", "draft_kind"),
        *fields(c_float, "threshold", "alpha"),
        ("reserved", c_int32),
        *fields(RowsStruct, "target", "draft"),
        *fields(c_void_p, "draft_column", "tokens", "parents", "limits"),
        ("sampling", SamplingStruct),
        *fields(c_void_p, "path", "path_len", "next", "status", "workspace"),
        ("workspace_bytes", c_uint64),
    )


class CompactArgs(Structure):
    """The struct `trtspec_compact_args` of verify.h."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("batch", c_int32),
        ("cache", c_void_p),
        ("planes", c_int32 * 3),
        ("vector_bytes", c_int32),
        ("plane_strides", c_int64 * 3),
        *fields(c_int64, "row_stride", "token_stride"),
        ("block_table", c_void_p),
        *fields(c_int64, "table_stride", "block_stride"),
        *fields(c_int32, "block_tokens", "path_stride"),
        *fields(c_void_p, "path", "path_len", "start"),
    )


class View(NamedTuple):
    """The address and layout of an array's memory; strides are in elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    item_bytes: int
    device: str

    def is_dense(self, axes: int) -> bool:
        """Return whether the last `axes` axes are contiguous in row-major order."""
        entries = 1
        for axis in range(len(self.shape) - 1, len(self.shape) - 1 - axes, -1):
            if self.shape[axis] > 1 and self.strides[axis] != entries:
                return 0 in self.shape
            entries *= self.shape[axis]
        return True


class KernelCall:
    """The arrays of one kernel call; each is checked against the first one's device and against an expected shape.

    The constructor raises TrtspecError unless `first` is a numpy array or a torch tensor with `axes` axes.
    """

    def __init__(self, first: Array, axes: int = 3) -> None:
        self._first = first
        view = _make_view(first)
        if view is None or len(view.shape) != axes:
            got = f"of shape {view.shape}" if view else f"a {type(first).__name__}"
            raise TrtspecError(f"the first array is {got}; it must be a numpy array or a tensor with {axes} axes")
        self.shape, self.device = view.shape, view.device.partition(":")[0]
        self._device = view.device

    def view(self, name: str, array: Array) -> View:
        """Return an array's memory layout; raise TrtspecError if it is on another device than the first array."""
        view = _make_view(array)
        if view is None:
            raise TrtspecError(f"{name} is a {type(array).__name__}, not a numpy array or a tensor")
        if view.device != self._device:
            raise TrtspecError(f"{name} is on {view.device}, but the other arrays are on {self._device}")
        return view

    def rows(self, name: str, array: Array, batch: int, rows: int) -> RowsStruct:
        """Return the struct for [batch, rows, entries]; raise TrtspecError for another shape, dtype or layout."""
        view = self.view(name, array)
        if view.dtype not in DTYPES:
            raise TrtspecError(f"{name} is {view.dtype}; supported: {', '.join(DTYPES)}")
        if len(view.shape) != 3 or view.shape[:2] != (batch, rows):
            raise TrtspecError(f"{name} has shape {view.shape}; it must be [{batch}, {rows}, entries]")
        if not view.is_dense(axes=1):
            raise TrtspecError(f"{name} is not dense along its last axis", hint="pass a contiguous copy")
        return RowsStruct(view.address, view.strides[0], view.strides[1], DTYPES[view.dtype], view.shape[2])

    def pointer(self, name: str, array: Array | None, dtype: str, *shape: int) -> int | None:
        """Return an array's address (None for None); raise TrtspecError unless it is dense, of this dtype and shape."""
        if array is None:
            return None
        view = self.view(name, array)
        if view.dtype != dtype or view.shape != shape:
            raise TrtspecError(f"{name} is {view.dtype} {list(view.shape)}; it must be {dtype} {list(shape)}")
        if not view.is_dense(axes=len(shape)):
            raise TrtspecError(f"{name} is not dense", hint="pass a contiguous copy")
        return view.address

    def sampling(
        self, temperature: Array | None, top_k: Array | None, top_p: Array | None, uniforms: Array | None
    ) -> SamplingStruct:
        """Return the sampling struct; parameters are [batch], and `uniforms` is [batch, rows] like the first array."""
        batch, rows, _ = self.shape
        return SamplingStruct(
            self.pointer("temperature", temperature, "float32", batch),
            self.pointer("top_p", top_p, "float32", batch),
            self.pointer("top_k", top_k, "int32", batch),
            self.pointer("uniforms", uniforms, "uint32", batch, rows),
        )

    def empty(self, *shape: int) -> Array:
        """Return an uninitialized int32 array of the first array's library, on the same device."""
        if isinstance(self._first, np.ndarray):
            return np.empty(shape, dtype=np.int32)
        import torch

        return torch.empty(shape, dtype=torch.int32, device=self._first.device)

    def empty_bytes(self, count: int) -> Array:
        """Return `count` uninitialized bytes as a tensor on the first tensor's GPU."""
        import torch

        return torch.empty(count, dtype=torch.uint8, device=self._first.device)

    @contextmanager
    def on_stream(self) -> Iterator[int]:
        """Make the first tensor's GPU the current device and yield the handle of its current stream."""
        import torch

        with torch.cuda.device(self._first.device):
            yield torch.cuda.current_stream().cuda_stream


def data_address(array: Array) -> int:
    view = _make_view(array)
    assert view is not None
    return view.address


def _make_view(array: Array) -> View | None:
    if isinstance(array, np.ndarray):
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return View(array.ctypes.data, array.shape, strides, array.dtype.name, array.itemsize, "cpu")
    if not hasattr(array, "data_ptr"):
        return None
    dtype, device = _torch_name(array.dtype), _torch_name(array.device)
    return View(array.data_ptr(), tuple(array.shape), array.stride(), dtype, array.element_size(), device)


@cache
def _torch_name(thing: Any) -> str:
    """Return the name of a torch dtype or device; cached, because it is the slowest query on a tensor."""
    return str(thing).removeprefix("torch.")
