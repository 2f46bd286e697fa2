# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of the conversion: casts between floating-point formats and FP8 quantization, on bit patterns.

numpy has neither bfloat16 nor float8. A 16-bit value has 65,536 patterns, so any function of it is one lookup table and
`np.take`. Rounding is to nearest, ties to even, as in torch; the tests compare every pattern with torch.

The numpy implementation is the reference. The compiled library is used if it is available and passes its self-test.
Both return bit-identical results, so output files and cache keys do not depend on which one ran.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from threading import Thread
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtspec.core.errors import TrtspecError
from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.host_kernels import (
    CompiledArithmetic,
    Instructions,
    compile_host_library,
    fastest_instructions,
    find_host_library,
)
from trtspec.kernels.selftest import SelfTestCheck

Bits = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]

E4M3_MAX = 448.0
# Pattern of infinity without its sign; larger patterns are NaN.
INFINITY = {"BF16": 0x7F80, "F16": 0x7C00, "F32": 0x7F800000}
LARGEST_E4M3 = 0x43E00000  # 448 as float32
SIGNLESS = {"BF16": 0x7FFF, "F16": 0x7FFF, "F32": 0x7FFFFFFF}


def to_floats(bits: Bits, dtype: str) -> Floats:
    """Convert BF16, F16, F32 or F8_E4M3 bit patterns to float32; the conversion is exact."""
    if dtype == "BF16":
        return np.left_shift(bits, 16, dtype=np.uint32).view(np.float32)
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return bits.view(np.float32) if dtype == "F32" else np.take(e4m3_values(), bits)


def from_floats(values: Floats, dtype: str) -> Bits:
    """Convert float32 values to bit patterns of BF16, F16, F32 or F8_E4M3, rounding to nearest even."""
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

    Larger magnitudes become 448 and NaN stays NaN (0x7f), as in torch's cast. Below 2^-6 the step is 2^-9. Values are
    first rounded to odd in their upper 16 bits: the last bit is set if any lower bit is set. The lookup table then
    rounds those 16 bits, and the result equals rounding the full float32.
    """
    halves = np.ascontiguousarray(values).view(np.uint16).reshape(*values.shape, 2)
    rounded: npt.NDArray[np.uint8] = np.take(_e4m3_table(), halves[..., 1] | (halves[..., 0] != 0), mode="clip")
    return rounded


@cache
def _e4m3_table() -> npt.NDArray[np.uint8]:
    """Return the float8_e4m3fn pattern of each of the 65,536 bfloat16 patterns, as uint8 [65536]."""
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
    """Return the values of the 256 float8_e4m3fn bit patterns, as float32 [256]."""
    patterns = np.arange(256)
    exponent, mantissa = (patterns >> 3 & 15) - 7, patterns & 7
    magnitude = np.where(exponent == -7, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent))
    magnitude[(patterns & 0x7F) == 0x7F] = np.nan
    return np.where(patterns & 0x80, -magnitude, magnitude).astype(np.float32)


@cache
def every_value(dtype: str) -> Floats:
    """Return the float32 values of all 65,536 bit patterns of BF16 or F16, or of all 256 of F8_E4M3."""
    return e4m3_values() if dtype == "F8_E4M3" else to_floats(np.arange(1 << 16, dtype=np.uint16), dtype)


@cache
def cast_table(source: str, target: str) -> Bits:
    """Return the lookup table from all bit patterns of `source` (BF16, F16 or F8_E4M3) to bit patterns of `target`."""
    return from_floats(every_value(source), target)


def cast(bits: Bits, source: str, target: str) -> Bits:
    """Convert bit patterns from `source` to `target`, rounding to nearest even; return `bits` if both are equal."""
    if source == target:
        return bits
    return from_floats(bits.view(np.float32), target) if source == "F32" else np.take(cast_table(source, target), bits)


# The scale of an all-zero tensor, as in NVIDIA's exporter (modelopt, TensorQuantizer.export_amax); avoids 0 / 0.
ZERO_SCALE = np.float32(1.0)
# Values quantized at a time: 256 KiB of float32, which fits into the processor's cache.
BLOCK_VALUES = 1 << 16

# (bit pattern of the largest finite magnitude, number of NaN values, number of infinite values)
Counts = tuple[int, int, int]


class Arithmetic(Protocol):
    """Interface for value counts, casts and FP8 quantization of BF16, F16 and F32 bit patterns."""

    def count(self, bits: Bits, dtype: str) -> Counts:
        """Return the bit pattern of the largest finite magnitude and the numbers of NaN and infinite values."""

    def cast(self, bits: Bits, source: str, target: str) -> Bits:
        """Convert bit patterns from `source` to `target`, rounding to nearest even; return `bits` if both are equal."""

    def quantizer(self, dtype: str, scale: np.float32) -> Callable[[Bits], Bits]:
        """Return a function that divides `dtype` bit patterns by a float32 scale and converts them to F8_E4M3."""

    def quantize_rows(self, bits: Bits, dtype: str) -> tuple[Bits, Floats, Counts]:
        """Quantize each row; return F8_E4M3 bit patterns, float32 scales [rows, 1] and the `count` of the input."""


class NumpyArithmetic:
    """Reference implementation with numpy, using lookup tables for 16-bit formats."""

    def count(self, bits: Bits, dtype: str) -> Counts:
        """Count in one pass; run a second pass only if a value is not finite."""
        largest, infinity = largest_magnitude(bits), INFINITY[dtype]
        if largest < infinity:
            return largest, 0, 0
        magnitudes = bits & bits.dtype.type(SIGNLESS[dtype])
        finite = int(magnitudes.max(initial=0, where=magnitudes < infinity))
        return finite, int(np.count_nonzero(magnitudes > infinity)), int(np.count_nonzero(magnitudes == infinity))

    def cast(self, bits: Bits, source: str, target: str) -> Bits:
        return cast(bits, source, target)

    def quantizer(self, dtype: str, scale: np.float32) -> Callable[[Bits], Bits]:
        """Return a table lookup for 16-bit formats, or a division and rounding of each chunk for F32."""
        if dtype == "F32":
            return lambda bits: to_e4m3(divide(bits.view(np.float32), scale))
        table = to_e4m3(divide(every_value(dtype), scale))
        return lambda bits: np.take(table, bits, mode="clip")  # "clip" skips the bounds check

    def quantize_rows(self, bits: Bits, dtype: str) -> tuple[Bits, Floats, Counts]:
        encoded, scales = np.empty(bits.shape, np.uint8), np.empty((len(bits), 1), np.float32)
        step = max(1, BLOCK_VALUES // max(1, bits.shape[1]))
        for begin in range(0, len(bits), step):
            block = slice(begin, begin + step)
            values = to_floats(bits[block], dtype)
            scales[block] = compute_row_scales(values)
            encoded[block] = to_e4m3(divide(values, scales[block]))
        return encoded, scales, self.count(bits, dtype)


def compute_scales(largest: Floats) -> Floats:
    """Return the FP8 scale amax / 448 for each amax in `largest`, or 1.0 where the quotient is 0."""
    scales = largest / np.float32(E4M3_MAX)
    return np.where(scales > 0, scales, ZERO_SCALE)


def compute_row_scales(values: Floats) -> Floats:
    """Return the scale of each row [rows, 1] of values [rows, columns]; values that are not finite are ignored."""
    largest = np.maximum(values.max(1, keepdims=True, initial=0), -values.min(1, keepdims=True, initial=0))
    if not np.isfinite(largest).all():
        largest = np.abs(values).max(1, keepdims=True, initial=0, where=np.isfinite(values))
    return compute_scales(largest)


def divide(values: Floats, scale: np.float32 | Floats) -> Floats:
    """Return the float32 quotient without numpy warnings: lookup tables contain NaN and values that overflow."""
    with np.errstate(invalid="ignore", over="ignore"):
        return values / scale


def largest_magnitude(bits: Bits) -> int:
    """Return the bit pattern of the largest magnitude, without its sign.

    As unsigned integers, patterns of negative values are larger than all others; as signed integers, they are smaller.
    The result is computed from the maxima of both views, which avoids a copy with cleared sign bits.
    """
    if not bits.size:
        return 0
    sign = 1 << (8 * bits.itemsize - 1)
    unsigned, signed = int(bits.max()), int(bits.view(f"i{bits.itemsize}").max())
    return max(unsigned & (sign - 1) if unsigned & sign else 0, signed)


SELF_TEST_SCALE = np.float32(0.0123)


def run_self_test(library: KernelLibrary) -> Iterator[SelfTestCheck]:
    """Compare the compiled arithmetic with numpy's; yield a check for each instruction set and 16-bit format."""
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(64, -1)
    for each, dtype in product(range(Instructions.PORTABLE, fastest_instructions(library) + 1), ("BF16", "F16")):
        compiled = CompiledArithmetic(library, Instructions(each))
        expected = _results(NumpyArithmetic(), bits, dtype)
        differing = [
            name for name, found in _results(compiled, bits, dtype).items() if not _equal(found, expected[name])
        ]
        name = f"quantize, {compiled.instructions.name.lower()}, every pattern of {dtype}"
        yield SelfTestCheck(name, not differing, "; ".join(f"{one} differs" for one in differing))


def _results(arithmetic: Arithmetic, bits: Any, dtype: str) -> dict[str, tuple[Any, ...]]:
    casts = {
        f"cast to {target}": (arithmetic.cast(bits, dtype, target),) for target in ("BF16", "F16", "F32", "F8_E4M3")
    }
    rows = arithmetic.quantize_rows(bits, dtype)
    by_tensor = arithmetic.quantizer(dtype, SELF_TEST_SCALE)(bits)
    return {**casts, "count": arithmetic.count(bits, dtype), "by row": rows, "by tensor": (by_tensor,)}


def _equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(map(np.array_equal, one, other))


log = logging.getLogger(__name__)


WORTH_BYTES = 256 << 20  # numpy finishes smaller conversions before a library could be compiled


def choose_arithmetic(nbytes: int) -> Arithmetic:
    """Return the compiled arithmetic if its library is in the wheel or the cache, else numpy's.

    If `nbytes`, the size of the conversion, is large, the library is compiled in the background and replaces numpy's
    arithmetic as soon as it is ready.
    """
    if found := _tested(find_host_library()):
        log.info("converting weights with %s (%s)", found.library.path, found.instructions.name)
        return found
    return CompilingArithmetic() if nbytes >= WORTH_BYTES else NumpyArithmetic()


class CompilingArithmetic:
    """Arithmetic that starts with numpy and switches to a library compiled by the background thread `compiling`."""

    def __init__(self) -> None:
        self._now: Arithmetic = NumpyArithmetic()
        self.compiling = Thread(target=self._compile, name="compile")
        self.compiling.start()

    def _compile(self) -> None:
        self._now = _tested(compile_host_library()) or self._now

    def count(self, bits: Bits, dtype: str) -> Counts:
        return self._now.count(bits, dtype)

    def cast(self, bits: Bits, source: str, target: str) -> Bits:
        return self._now.cast(bits, source, target)

    def quantizer(self, dtype: str, scale: np.float32) -> Callable[[Bits], Bits]:
        return self._now.quantizer(dtype, scale)

    def quantize_rows(self, bits: Bits, dtype: str) -> tuple[Bits, Floats, Counts]:
        return self._now.quantize_rows(bits, dtype)


def _tested(library: KernelLibrary | None) -> CompiledArithmetic | None:
    """Return the arithmetic of `library` if it passes the self-test on this machine (10 ms), else None."""
    if library is None:
        return None
    try:
        if all(check.ok for check in run_self_test(library)):
            return CompiledArithmetic(library, fastest_instructions(library))
    except TrtspecError as error:
        log.info("converting weights with numpy: %s", error)
        return None
    message = "%s failed its self-test on this machine; converting weights with numpy, which is slower"
    log.warning(message, library.path)
    return None
