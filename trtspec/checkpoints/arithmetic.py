# SPDX-License-Identifier: Apache-2.0
"""The numpy implementation of weight casting and FP8 quantization, which is the reference for faster ones.

All functions work on bit patterns [rows, columns]. Every implementation returns bit-identical results, so output files
and cache keys do not depend on which one ran.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from trtspec.checkpoints.cast import E4M3_MAX, INFINITY, SIGNLESS, Bits, Floats, cast, every_value, to_e4m3, to_floats

# The scale of an all-zero tensor, as in NVIDIA's exporter (modelopt, TensorQuantizer.export_amax); avoids 0 / 0.
ZERO_SCALE = np.float32(1.0)
# Values quantized at a time: 256 KiB of float32, which fits into the processor's cache.
BLOCK_VALUES = 1 << 16

# (bit pattern of the largest finite magnitude, number of NaN values, number of infinite values)
Counts = tuple[int, int, int]


class Arithmetic(Protocol):
    """Value counts, casts and FP8 quantization for the formats BF16, F16 and F32."""

    def count(self, bits: Bits, dtype: str) -> Counts:
        """Return the pattern of the largest finite magnitude and the numbers of NaN and infinite values."""

    def cast(self, bits: Bits, source: str, target: str) -> Bits:
        """Return the patterns converted from `source` to `target`, rounded to nearest even; equal formats are returned
        as is.
        """

    def quantizer(self, dtype: str, scale: np.float32) -> Callable[[Bits], Bits]:
        """Return a function that divides patterns of `dtype` by a float32 scale and converts them to F8_E4M3."""

    def quantize_rows(self, bits: Bits, dtype: str) -> tuple[Bits, Floats, Counts]:
        """Return F8_E4M3 patterns, the scale of each row [rows, 1], and the `count` of the input."""


class NumpyArithmetic:
    """The numpy implementation. A 16-bit value has 65,536 patterns, so any function of it is a table lookup."""

    def count(self, bits: Bits, dtype: str) -> Counts:
        """Count in one pass, with a second one only if a value is not finite."""
        largest, infinity = largest_magnitude(bits), INFINITY[dtype]
        if largest < infinity:
            return largest, 0, 0
        magnitudes = bits & bits.dtype.type(SIGNLESS[dtype])
        finite = int(magnitudes.max(initial=0, where=magnitudes < infinity))
        return finite, int(np.count_nonzero(magnitudes > infinity)), int(np.count_nonzero(magnitudes == infinity))

    def cast(self, bits: Bits, source: str, target: str) -> Bits:
        """Cast with `checkpoints.cast`."""
        return cast(bits, source, target)

    def quantizer(self, dtype: str, scale: np.float32) -> Callable[[Bits], Bits]:
        """Precompute a table of all 16-bit patterns; float32 is divided chunk by chunk."""
        if dtype == "F32":
            return lambda bits: to_e4m3(divide(bits.view(np.float32), scale))
        table = to_e4m3(divide(every_value(dtype), scale))
        return lambda bits: np.take(table, bits, mode="clip")  # "clip" skips the bounds check

    def quantize_rows(self, bits: Bits, dtype: str) -> tuple[Bits, Floats, Counts]:
        """Quantize a block of rows at a time."""
        encoded, scales = np.empty(bits.shape, np.uint8), np.empty((len(bits), 1), np.float32)
        step = max(1, BLOCK_VALUES // max(1, bits.shape[1]))
        for begin in range(0, len(bits), step):
            block = slice(begin, begin + step)
            values = to_floats(bits[block], dtype)
            scales[block] = row_scales(values)
            encoded[block] = to_e4m3(divide(values, scales[block]))
        return encoded, scales, self.count(bits, dtype)


def compute_scales(largest: Floats) -> Floats:
    """Return the scale for each largest magnitude: the scale of zeros if the quotient underflows to 0."""
    scales = largest / np.float32(E4M3_MAX)
    return np.where(scales > 0, scales, ZERO_SCALE)


def row_scales(values: Floats) -> Floats:
    """Return the scale of each row [rows, 1] of values [rows, columns]; values that are not finite are ignored."""
    largest = np.maximum(values.max(1, keepdims=True, initial=0), -values.min(1, keepdims=True, initial=0))
    if not np.isfinite(largest).all():
        largest = np.abs(values).max(1, keepdims=True, initial=0, where=np.isfinite(values))
    return compute_scales(largest)


def divide(values: Floats, scale: np.float32 | Floats) -> Floats:
    """Return the float32 quotient without warnings: lookup tables hold patterns that overflow or are NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        return values / scale


def largest_magnitude(bits: Bits) -> int:
    """Return the bit pattern of the largest magnitude, without its sign.

    Interpreted as unsigned integers, negative values are above all others; as signed integers, below. The two maxima
    avoid a copy without signs.
    """
    if not bits.size:
        return 0
    sign = 1 << (8 * bits.itemsize - 1)
    unsigned, signed = int(bits.max()), int(bits.view(f"i{bits.itemsize}").max())
    return max(unsigned & (sign - 1) if unsigned & sign else 0, signed)
