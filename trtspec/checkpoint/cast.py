# SPDX-License-Identifier: Apache-2.0
"""Cast raw tensor bytes between bf16, fp16 and fp32 in numpy, which has no bf16: bit patterns and lookup tables.

A 16-bit value has 65,536 patterns, so a 16-to-16 cast is one table and `np.take`. Rounding is to nearest, ties to
even, as torch does; a finite value that becomes infinite is counted, because fp16 ends at 65504.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
Cast = Callable[[memoryview], tuple[memoryview, int]]


def make_cast(source: str, target: str) -> Cast:
    """Return a function from raw `source` bytes to (raw `target` bytes, number of values that overflowed).

    `source` is BF16, F16 or F32, `target` BF16 or F16. Equal dtypes pass through untouched.
    """
    if source == target:
        return lambda raw: (raw, 0)
    if source == "F32":
        narrow = _bf16_bits if target == "BF16" else _fp16_bits
        return lambda raw: _narrow(np.frombuffer(raw, np.float32), narrow)
    table, overflows = _table(source, target)

    def through_table(raw: memoryview) -> tuple[memoryview, int]:
        bits = np.frombuffer(raw, np.uint16)
        count = int(np.take(overflows, bits).sum()) if overflows.any() else 0
        return _raw(np.take(table, bits)), count

    return through_table


@cache
def _table(source: str, target: str) -> tuple[Bits, npt.NDArray[np.bool_]]:
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = (every.astype(np.uint32) << 16).view(np.float32) if source == "BF16" else every.view(np.float16)
    wide = wide.astype(np.float32)
    bits = _bf16_bits(wide) if target == "BF16" else _fp16_bits(wide)
    return bits, np.isfinite(wide) & ~np.isfinite(_floats(bits, target))


def _narrow(
    values: npt.NDArray[np.float32], narrow: Callable[[npt.NDArray[np.float32]], Bits]
) -> tuple[memoryview, int]:
    bits = narrow(values)
    dtype = "BF16" if narrow is _bf16_bits else "F16"
    return _raw(bits), int((np.isfinite(values) & ~np.isfinite(_floats(bits, dtype))).sum())


def _bf16_bits(values: npt.NDArray[np.float32]) -> Bits:
    bits = values.view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to nearest, ties to even
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def _fp16_bits(values: npt.NDArray[np.float32]) -> Bits:
    with np.errstate(over="ignore"):
        return values.astype(np.float16).view(np.uint16)


def _floats(bits: Bits, dtype: str) -> npt.NDArray[np.floating[Any]]:
    return (bits.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else bits.view(np.float16)


def _raw(bits: Bits) -> memoryview:
    return bits.data.cast("B")
