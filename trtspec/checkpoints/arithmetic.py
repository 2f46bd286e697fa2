# SPDX-License-Identifier: Apache-2.0
"""What a conversion computes of its weights, and that in numpy: the oracle of every faster implementation.

All of it is of bit patterns [rows, columns]. Every implementation says the same, bit for bit, so that files and keys do
not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from trtspec.checkpoints.cast import E4M3_MAX, INFINITY, SIGNLESS, Bits, Floats, cast, every_value, to_e4m3, to_floats

# What zeros get, as from NVIDIA's exporter (modelopt, TensorQuantizer.export_amax), so that none is divided by zero.
SCALE_OF_ZEROS = np.float32(1.0)
# Rows quantized together: a few hundred KiB of float32, which the caches hold.
BLOCK_VALUES = 1 << 16

# The pattern of the largest finite magnitude, and how many values are NaN and infinite.
Counts = tuple[int, int, int]


class Arithmetic(Protocol):
    """Casts, magnitudes and FP8 of the formats BF16, F16 and F32."""

    def count(self, bits: Bits, dtype: str) -> Counts:
        """Return the pattern of the largest finite magnitude, and how many values are NaN and infinite."""

    def cast(self, bits: Bits, source: str, target: str) -> Bits:
        """Return patterns of `source` in `target`, rounded to nearest even; equal formats pass through untouched."""

    def quantizer(self, dtype: str, scale: np.float32) -> Callable[[Bits], Bits]:
        """Return what makes patterns of `dtype`, divided by a scale in float32, F8_E4M3."""

    def quantize_rows(self, bits: Bits, dtype: str) -> tuple[Bits, Floats, Counts]:
        """Return F8_E4M3 patterns, the scale of each row [rows, 1], and what `count` says of the rows."""


class NumpyArithmetic:
    """All of it in numpy: a 16-bit value has 65,536 patterns, so any function of it is a lookup."""

    def count(self, bits: Bits, dtype: str) -> Counts:
        """Look twice only where something is not finite."""
        largest, infinity = largest_magnitude(bits), INFINITY[dtype]
        if largest < infinity:
            return largest, 0, 0
        magnitudes = bits & bits.dtype.type(SIGNLESS[dtype])
        finite = int(magnitudes.max(initial=0, where=magnitudes < infinity))
        return finite, int(np.count_nonzero(magnitudes > infinity)), int(np.count_nonzero(magnitudes == infinity))

    def cast(self, bits: Bits, source: str, target: str) -> Bits:
        """Cast by `checkpoint.cast`."""
        return cast(bits, source, target)

    def quantizer(self, dtype: str, scale: np.float32) -> Callable[[Bits], Bits]:
        """Divide every pattern that there can be once; of float32 each chunk."""
        if dtype == "F32":
            return lambda bits: to_e4m3(divide(bits.view(np.float32), scale))
        table = to_e4m3(divide(every_value(dtype), scale))
        return lambda bits: np.take(table, bits, mode="clip")  # which every pattern is: "clip" only saves the check

    def quantize_rows(self, bits: Bits, dtype: str) -> tuple[Bits, Floats, Counts]:
        """Quantize a few rows at a time."""
        encoded, scales = np.empty(bits.shape, np.uint8), np.empty((len(bits), 1), np.float32)
        step = max(1, BLOCK_VALUES // max(1, bits.shape[1]))
        for begin in range(0, len(bits), step):
            block = slice(begin, begin + step)
            values = to_floats(bits[block], dtype)
            scales[block] = row_scales(values)
            encoded[block] = to_e4m3(divide(values, scales[block]))
        return encoded, scales, self.count(bits, dtype)


def scales_of(largest: Floats) -> Floats:
    """Return the scale for each largest magnitude; as for zeros where the quotient is none any more."""
    scales = largest / np.float32(E4M3_MAX)
    return np.where(scales > 0, scales, SCALE_OF_ZEROS)


def row_scales(values: Floats) -> Floats:
    """Return the scale of each row, [rows, 1], of values [rows, columns]; what is not finite does not count."""
    largest = np.maximum(values.max(1, keepdims=True, initial=0), -values.min(1, keepdims=True, initial=0))
    if not np.isfinite(largest).all():
        largest = np.abs(values).max(1, keepdims=True, initial=0, where=np.isfinite(values))
    return scales_of(largest)


def divide(values: Floats, scale: np.float32 | Floats) -> Floats:
    """Return the quotient in float32; of a table's 65,536 patterns few occur."""
    with np.errstate(invalid="ignore", over="ignore"):
        return values / scale


def largest_magnitude(bits: Bits) -> int:
    """Return the largest pattern without its sign, which is that of the largest magnitude.

    Read as unsigned, negative values are above all others; read as signed, below: two maxima need no copy without
    signs.
    """
    if not bits.size:
        return 0
    sign = 1 << (8 * bits.itemsize - 1)
    unsigned, signed = int(bits.max()), int(bits.view(f"i{bits.itemsize}").max())
    return max(unsigned & (sign - 1) if unsigned & sign else 0, signed)
