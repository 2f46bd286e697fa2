# SPDX-License-Identifier: Apache-2.0
"""The structs of plugins/include/trtspec/verify.h in ctypes, field by field."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int32, c_int64, c_uint32, c_uint64, c_void_p

ABI_VERSION = 1
NO_DEVICE_CODE = -7
DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3}


class RowsStruct(Structure):
    """`trtspec_rows`."""

    _fields_ = (
        ("data", c_void_p),
        ("request_stride", c_int64),
        ("row_stride", c_int64),
        ("dtype", c_int32),
        ("entries", c_int32),
    )


class SamplingStruct(Structure):
    """`trtspec_sampling`."""

    _fields_ = (("temperature", c_void_p), ("top_p", c_void_p), ("top_k", c_void_p), ("uniforms", c_void_p))


class ChainArgs(Structure):
    """`trtspec_chain_args`."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("batch", c_int32),
        ("draft_len", c_int32),
        ("draft_kind", c_int32),
        ("target", RowsStruct),
        ("draft", RowsStruct),
        ("draft_column", c_void_p),
        ("tokens", c_void_p),
        ("lengths", c_void_p),
        ("sampling", SamplingStruct),
        ("accepted", c_void_p),
        ("output", c_void_p),
        ("next", c_void_p),
        ("status", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
    )


class TreeArgs(Structure):
    """`trtspec_tree_args`."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("batch", c_int32),
        ("nodes", c_int32),
        ("mode", c_int32),
        ("draft_kind", c_int32),
        ("threshold", c_float),
        ("alpha", c_float),
        ("reserved", c_int32),
        ("target", RowsStruct),
        ("draft", RowsStruct),
        ("draft_column", c_void_p),
        ("tokens", c_void_p),
        ("parents", c_void_p),
        ("limits", c_void_p),
        ("sampling", SamplingStruct),
        ("path", c_void_p),
        ("path_len", c_void_p),
        ("next", c_void_p),
        ("status", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
    )


class CompactArgs(Structure):
    """`trtspec_compact_args`."""

    _fields_ = (
        ("struct_size", c_uint32),
        ("batch", c_int32),
        ("cache", c_void_p),
        ("planes", c_int32 * 3),
        ("vector_bytes", c_int32),
        ("plane_strides", c_int64 * 3),
        ("row_stride", c_int64),
        ("token_stride", c_int64),
        ("block_table", c_void_p),
        ("table_stride", c_int64),
        ("block_stride", c_int64),
        ("block_tokens", c_int32),
        ("path_stride", c_int32),
        ("path", c_void_p),
        ("path_len", c_void_p),
        ("start", c_void_p),
    )
