# SPDX-License-Identifier: Apache-2.0
"""Bindings to the compiled CPU kernels for checkpoint conversion (plugins/quantize).

Arrays are numpy arrays of bit patterns [rows, columns]. Results are bit-identical to `checkpoints.arithmetic`. Formats
have the names used in safetensors.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from ctypes import POINTER, Structure, addressof, byref, c_float, c_int32, c_int64, c_uint32, c_void_p, pointer, sizeof
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.core.errors import TrtspecError
from trtspec.kernels.abi import fields
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.build import HOST_PLUGINS, build_library, find_libraries, loads, plan_library

log = logging.getLogger(__name__)

COMPILE_S = 60

FORMATS = {"F32": 1, "F16": 2, "BF16": 3, "F8_E4M3": 4}
ITEMS = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16, "F8_E4M3": np.uint8}
COUNT, CAST, QUANTIZE_ROWS = range(3)

Bits = npt.NDArray[Any]


def find_host_library() -> KernelLibrary | None:
    """Return the library from the wheel or the user's cache, or None if it is missing or does not load."""
    try:
        found = next(filter(loads, find_libraries(HOST_PLUGINS)), None)
        return load_library(found) if found else None
    except (TrtspecError, OSError):
        return None


def compile_host_library() -> KernelLibrary | None:
    """Compile and load the library, or load it from the cache; return None if that fails.

    Each compiler run is limited to COMPILE_S seconds.
    """
    try:
        return load_library(build_library(plan_library(HOST_PLUGINS), COMPILE_S))
    except (TrtspecError, OSError) as error:
        log.info("using numpy, which is slower but equivalent: %s", error)
        return None


class Instructions(IntEnum):
    """The enum `trtspec_instructions`: the instruction set of a call, which does not affect its results."""

    FASTEST = 0
    PORTABLE = 1
    AVX512 = 2


class CensusStruct(Structure):
    """The struct `trtspec_census`."""

    _fields_ = (*fields(c_int64, "nans", "infinities"), *fields(c_uint32, "largest", "reserved"))


class QuantizeArgs(Structure):
    """The struct `trtspec_quantize_args`."""

    _fields_ = (
        ("struct_size", c_uint32),
        *fields(c_int32, "operation", "instructions", "source_dtype", "target_dtype", "reserved"),
        *fields(c_int64, "rows", "columns"),
        ("source", c_void_p),
        ("source_stride", c_int64),
        ("target", c_void_p),
        ("target_stride", c_int64),
        ("scales", c_void_p),
        ("census", POINTER(CensusStruct)),
    )


@dataclass(frozen=True)
class CompiledArithmetic:
    """The conversion kernels of a library, with a given instruction set or the fastest one of this machine.

    Rows may have any stride and address, but the values within a row must be contiguous.
    """

    library: KernelLibrary
    instructions: Instructions = Instructions.FASTEST

    def count(self, bits: Bits, dtype: str) -> tuple[int, int, int]:
        """Return the bit pattern of the largest finite magnitude, and the numbers of NaN and of infinite values."""
        census = CensusStruct()
        self._run(COUNT, bits, dtype, census=pointer(census))
        return census.largest, census.nans, census.infinities

    def cast(self, bits: Bits, source: str, target: str) -> Bits:
        """Return bit patterns converted from format `source` to `target`; the input itself if both are equal."""
        return bits if source == target else self._cast(bits, source, target, None)

    def quantizer(self, dtype: str, scale: np.float32) -> Callable[[Bits], Bits]:
        """Return a function that divides values of `dtype` by a scale and converts them to F8_E4M3."""
        divisor = c_float(float(scale))
        return lambda bits: self._cast(bits, dtype, "F8_E4M3", divisor)

    def quantize_rows(self, bits: Bits, dtype: str) -> tuple[Bits, npt.NDArray[np.float32], tuple[int, int, int]]:
        """Quantize rows to F8_E4M3; return bit patterns, scales [rows, 1], and the input's `count`."""
        census, scales = CensusStruct(), np.empty((len(bits), 1), np.float32)
        encoded = np.empty(bits.shape, np.uint8)
        self._run(QUANTIZE_ROWS, bits, dtype, encoded, scales=scales.ctypes.data, census=pointer(census))
        return encoded, scales, (census.largest, census.nans, census.infinities)

    def _cast(self, bits: Bits, source: str, target: str, divisor: c_float | None) -> Bits:
        encoded = np.empty(bits.shape, ITEMS[target])
        scales = addressof(divisor) if divisor else None
        self._run(CAST, bits, source, encoded, target_dtype=FORMATS[target], scales=scales)
        return encoded

    def _run(self, operation: int, bits: Bits, dtype: str, encoded: Bits | None = None, **others: Any) -> None:
        args = QuantizeArgs(sizeof(QuantizeArgs), operation, self.instructions, FORMATS[dtype], **others)
        args.rows, args.columns = bits.shape
        args.source, args.source_stride = bits.ctypes.data, bits.strides[0]
        if encoded is not None:
            args.target, args.target_stride = encoded.ctypes.data, encoded.strides[0]
        if bits.dtype != ITEMS[dtype] or (bits.shape[1] > 1 and bits.strides[1] != bits.itemsize):
            raise TrtspecError(f"quantize: {bits.dtype} {bits.shape} {bits.strides} is not an array of {dtype} rows")
        if code := self.library.handle.trtspec_quantize_cpu(byref(args)):
            raise TrtspecError(f"quantize: {self.library.message(code)}", where=str(self.library.path))


def fastest_instructions(library: KernelLibrary) -> Instructions:
    """Return the library's fastest instruction set on this machine; raise TrtspecError if none is supported."""
    code = library.handle.trtspec_quantize_instructions()
    if code < 0:
        raise TrtspecError(library.message(code), where=str(library.path))
    return Instructions(code)
