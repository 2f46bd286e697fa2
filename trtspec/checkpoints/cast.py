# SPDX-License-Identifier: Apache-2.0
"""Conversions between floating-point formats as bit patterns, because numpy has neither bfloat16 nor float8.

A 16-bit value has 65,536 patterns, so any function of it is one lookup table and `np.take`. Rounding is to nearest,
ties to even, as in torch; the tests compare every pattern with torch.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

E4M3_MAX = 448.0
# Pattern of infinity without its sign; larger patterns are NaN.
INFINITY = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
LARGEST_E4M3 = 0x43E00000  # 448 as float32
SIGNLESS = {"BF16": 0x7FFF, "F16": 0x7FFF, "F32": 0x7FFFFFFF}


def to_floats(bits: Bits, dtype: str) -> Floats:
    """Return the float32 values of BF16, F16, F32 or F8_E4M3 patterns; the conversion is exact."""
    if dtype == "BF16":
        return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return bits.view(np.float32) if dtype == "F32" else np.take(e4m3_values(), bits)


def from_floats(values: Floats, dtype: str) -> Bits:
    """Return the patterns of float32 values in BF16, F16, F32 or F8_E4M3."""
    if dtype == "BF16":
        bits = values.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)
    if dtype == "F16":
        with np.errstate(over="ignore"):
            halves = values.astype(np.float16).view(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7E00), halves)  # numpy versions differ in the NaN bits they keep
    return values.view(np.uint32) if dtype == "F32" else to_e4m3(values)


def to_e4m3(values: Floats) -> npt.NDArray[np.uint8]:
    """Round float32 to float8_e4m3fn: 4 exponent bits with bias 7, 3 mantissa bits, no infinity, largest value 448.

    Larger values become 448 and NaN stays NaN (0x7f), as in torch's cast; below 2^-6 the step is 2^-9. The upper 16
    bits index the table, with their last bit set if any lower bit is set: rounding to odd keeps everything that a later
    rounding to fewer bits needs.
    """
    halves = np.ascontiguousarray(values).view(np.uint16).reshape(*values.shape, 2)
    rounded: npt.NDArray[np.uint8] = np.take(_e4m3_table(), halves[..., 1] | (halves[..., 0] != 0), mode="clip")
    return rounded


@cache
def _e4m3_table() -> npt.NDArray[np.uint8]:
    """Return the e4m3 pattern for each value of the upper 16 bits of a float32, which are a bfloat16."""
    bits = np.arange(1 << 16, dtype=np.uint32) << 16
    magnitude = np.minimum(bits & 0x7FFFFFFF, np.uint32(LARGEST_E4M3))
    # the last bit of 2^14 is worth 2^-9, so adding 2^14 rounds to e4m3's subnormals
    small = (magnitude.view(np.float32) + np.float32(2**14)).view(np.uint32)
    normal = (magnitude + np.uint32(0x7FFFF) + ((magnitude >> 20) & 1)) >> 20
    rounded = np.where(magnitude < 121 << 23, small, normal - np.uint32(120 << 3)) & 0x7F
    rounded[(bits & 0x7FFFFFFF) > INFINITY["F32"]] = 0x7F
    return (rounded | (bits >> 24 & 0x80)).astype(np.uint8)


@cache
def e4m3_values() -> Floats:
    """Return the value of each of the 256 patterns of float8_e4m3fn."""
    patterns = np.arange(256)
    exponent, mantissa = (patterns >> 3 & 15) - 7, patterns & 7
    magnitude = np.where(exponent == -7, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent))
    magnitude[(patterns & 0x7F) == 0x7F] = np.nan
    return np.where(patterns & 0x80, -magnitude, magnitude).astype(np.float32)


@cache
def every_value(dtype: str) -> Floats:
    """Return the value of each of the 65,536 patterns of BF16 or F16, or of the 256 of F8_E4M3."""
    return e4m3_values() if dtype == "F8_E4M3" else to_floats(np.arange(1 << 16, dtype=np.uint16), dtype)


@cache
def cast_table(source: str, target: str) -> Bits:
    """Return the `target` pattern of each `source` pattern; `source` is BF16, F16 or F8_E4M3."""
    return from_floats(every_value(source), target)


def cast(bits: Bits, source: str, target: str) -> Bits:
    """Return patterns converted from `source` to `target`; equal dtypes are returned as is."""
    if source == target:
        return bits
    return from_floats(bits.view(np.float32), target) if source == "F32" else np.take(cast_table(source, target), bits)
