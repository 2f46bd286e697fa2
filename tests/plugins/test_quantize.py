# SPDX-License-Identifier: Apache-2.0
"""The compiled conversion arithmetic, with every instruction set of this machine: bit-identical to numpy and torch."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, pointer, sizeof
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoints.patterns import ALL16, as_torch, assert_as_torch, decisive_floats
from trtspec.checkpoints.arithmetic import NumpyArithmetic, from_floats, to_floats
from trtspec.core.errors import TrtspecError
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.host_kernels import (
    CAST,
    COUNT,
    FORMATS,
    ITEMS,
    QUANTIZE_ROWS,
    CensusStruct,
    CompiledArithmetic,
    Instructions,
    QuantizeArgs,
    fastest_instructions,
)

ORACLE = NumpyArithmetic()
PATTERNS = {
    "F32": decisive_floats(),
    "F16": ALL16,
    "BF16": ALL16,
    "F8_E4M3": np.arange(256, dtype=np.uint8),
}
WIDE = ("F32", "F16", "BF16")
SCALES = [1.0, 2.0**-9, 0.0123, 3.7e-41, 448.0, 1e30]
BAD_STRUCT_SIZE, BAD_SIZE, BAD_DTYPE, BAD_KIND, BAD_POINTER, UNSUPPORTED_CPU = -1, -2, -3, -4, -5, -9


@pytest.fixture(scope="module")
def library(build_kernels: Callable[..., Path]) -> KernelLibrary:
    return load_library(build_kernels("quantize"))


@pytest.fixture(scope="module", params=[Instructions.PORTABLE, Instructions.AVX512], ids=lambda each: each.name)
def compiled(request: pytest.FixtureRequest, library: KernelLibrary) -> CompiledArithmetic:
    if request.param > fastest_instructions(library):
        pytest.skip(f"this processor lacks {request.param.name}")
    return CompiledArithmetic(library, request.param)


def random_weights(dtype: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Return patterns of normal weights, in rows of different magnitudes down to subnormal numbers and zero."""
    rng = np.random.default_rng([seed, rows, columns])
    values = rng.standard_normal((rows, columns)) * 10.0 ** rng.integers(-42, 3, (rows, 1))
    return from_floats(values.astype(np.float32), dtype)


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("source", FORMATS)
def test_cast_of_every_bit_pattern_equals_numpy_and_torch(
    compiled: CompiledArithmetic, source: str, target: str
) -> None:
    bits = PATTERNS[source][None]
    ours = compiled.cast(bits, source, target)
    if source == target:
        assert ours is bits
        return
    with np.errstate(invalid="ignore"):
        expected = from_floats(to_floats(bits, source), target)
    np.testing.assert_array_equal(ours, expected)
    assert_as_torch(ours, as_torch(bits, source), target)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("scale", SCALES)
def test_quantization_of_every_bit_pattern_equals_numpy_and_torch(
    compiled: CompiledArithmetic, dtype: str, scale: float
) -> None:
    bits = PATTERNS[dtype][None]
    ours = compiled.quantizer(dtype, np.float32(scale))(bits)
    np.testing.assert_array_equal(ours, ORACLE.quantizer(dtype, np.float32(scale))(bits))
    assert_as_torch(ours, as_torch(bits, dtype) / torch.tensor([scale], dtype=torch.float32), "F8_E4M3")


@given(scale=st.floats(2.0**-140, 2.0**120, width=32), dtype=st.sampled_from(["F16", "BF16"]))
def test_quantization_with_any_scale_equals_numpy(library: KernelLibrary, scale: float, dtype: str) -> None:
    expected = ORACLE.quantizer(dtype, np.float32(scale))(ALL16[None])
    for instructions in range(Instructions.PORTABLE, fastest_instructions(library) + 1):
        ours = CompiledArithmetic(library, Instructions(instructions)).quantizer(dtype, np.float32(scale))(ALL16[None])
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("columns", [0, 1, 2, 7, 31, 32, 33, 63, 65, 127, 1000, 4099])
@pytest.mark.parametrize("dtype", WIDE)
def test_row_quantization_equals_numpy_and_torch(compiled: CompiledArithmetic, dtype: str, columns: int) -> None:
    bits = random_weights(dtype, 37, columns)
    encoded, scales, counts = compiled.quantize_rows(bits, dtype)
    expected = ORACLE.quantize_rows(bits, dtype)
    np.testing.assert_array_equal(encoded, expected[0])
    np.testing.assert_array_equal(scales, expected[1])
    assert counts == expected[2] == compiled.count(bits, dtype)
    if columns:
        weights = as_torch(bits, dtype).float()
        theirs = weights.abs().amax(1, keepdim=True) / 448.0
        theirs[theirs == 0] = 1.0
        assert torch.equal(torch.from_numpy(scales), theirs)
        assert torch.equal(torch.from_numpy(encoded), (weights / theirs).to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.parametrize("dtype", WIDE)
def test_non_finite_values_are_counted_and_do_not_affect_the_scales(compiled: CompiledArithmetic, dtype: str) -> None:
    bits = random_weights(dtype, 5, 130)
    odd = from_floats(np.array([np.nan, np.inf, -np.inf, -np.nan], np.float32), dtype)
    bits[1, 5], bits[1, 129], bits[3] = odd[0], odd[1], np.resize(odd, 130)
    encoded, scales, counts = compiled.quantize_rows(bits, dtype)
    expected = ORACLE.quantize_rows(bits, dtype)
    np.testing.assert_array_equal(encoded, expected[0])
    np.testing.assert_array_equal(scales, expected[1])
    assert counts == expected[2] == compiled.count(bits, dtype) == (counts[0], 66, 66)
    assert scales[3] == 1.0


@pytest.mark.parametrize("dtype", WIDE)
def test_counts_of_all_bit_patterns_equal_numpy(compiled: CompiledArithmetic, dtype: str) -> None:
    bits = PATTERNS[dtype].reshape(2, -1)
    assert compiled.count(bits, dtype) == ORACLE.count(bits, dtype)
    assert compiled.count(bits[:0], dtype) == compiled.count(bits[:, :0], dtype) == (0, 0, 0)


def test_row_scale_is_never_zero(compiled: CompiledArithmetic) -> None:
    """The smallest magnitudes divided by 448 are zero in float32 and cannot be used as divisors."""
    for arithmetic in (compiled, ORACLE):
        encoded, scales, _ = arithmetic.quantize_rows(np.array([[1, 0, 2]], np.uint32), "F32")
        assert (encoded.tolist(), scales.tolist()) == ([[0, 0, 0]], [[1.0]])


@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("dtype", WIDE)
def test_rows_with_any_alignment_and_stride_equal_numpy(compiled: CompiledArithmetic, dtype: str, offset: int) -> None:
    whole = random_weights(dtype, 9, 101)
    memory = bytearray(offset + whole.nbytes)
    memory[offset:] = whole.tobytes()
    part = np.frombuffer(memory, whole.dtype, offset=offset).reshape(whole.shape)[1:8:2, 3:98]
    kept = np.ascontiguousarray(whole[1:8:2, 3:98])
    for ours, expected in zip(compiled.quantize_rows(part, dtype), ORACLE.quantize_rows(kept, dtype), strict=True):
        np.testing.assert_array_equal(ours, expected)
    np.testing.assert_array_equal(compiled.cast(part, dtype, "F8_E4M3"), ORACLE.cast(kept, dtype, "F8_E4M3"))


def call(library: KernelLibrary, **changes: object) -> int:
    """Quantize [2, 70] weights into the middle of a larger matrix whose rest must not change; return the code."""
    weights, target = random_weights("BF16", 2, 70), np.full((4, 100), 0xEE, np.uint8)
    scales, census = np.full(3, 7.0, np.float32), CensusStruct(largest=77)
    args = QuantizeArgs(sizeof(QuantizeArgs), QUANTIZE_ROWS, 0, FORMATS["BF16"], FORMATS["F8_E4M3"], 0, 2, 70)
    args.source, args.source_stride = weights.ctypes.data, 140
    args.target, args.target_stride = target[1:, 11:].ctypes.data, 100
    args.scales, args.census = scales.ctypes.data, pointer(census)
    for name, value in changes.items():
        setattr(args, name, value)
    code = library.handle.trtspec_quantize_cpu(byref(args))
    inside = target[1:3, 11:81].copy()
    target[1:3, 11:81] = 0xEE
    assert (target == 0xEE).all()
    assert scales[2] == 7.0
    assert code == 0 or ((inside == 0xEE).all() and (scales == 7.0).all() and census.largest == 77)
    return code


@pytest.mark.parametrize("instructions", list(Instructions))
def test_nothing_is_written_outside_the_target(library: KernelLibrary, instructions: Instructions) -> None:
    assert call(library, instructions=instructions) == (
        0 if instructions <= fastest_instructions(library) else UNSUPPORTED_CPU
    )


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"struct_size": 8}, BAD_STRUCT_SIZE),
        ({"operation": 3}, BAD_KIND),
        ({"operation": -1}, BAD_KIND),
        ({"rows": -1}, BAD_SIZE),
        ({"columns": -1}, BAD_SIZE),
        ({"source_dtype": 0}, BAD_DTYPE),
        ({"source_dtype": FORMATS["F8_E4M3"]}, BAD_DTYPE),
        ({"operation": COUNT, "source_dtype": 5}, BAD_DTYPE),
        ({"operation": CAST, "target_dtype": 0}, BAD_DTYPE),
        ({"source": None}, BAD_POINTER),
        ({"target": None}, BAD_POINTER),
        ({"scales": None}, BAD_POINTER),
        ({"census": None}, BAD_POINTER),
        ({"operation": COUNT, "census": None}, BAD_POINTER),
        ({"instructions": 3}, UNSUPPORTED_CPU),
        ({"instructions": -1}, UNSUPPORTED_CPU),
    ],
)
def test_invalid_call_returns_a_code_and_writes_nothing(
    library: KernelLibrary, changes: dict[str, object], code: int
) -> None:
    assert call(library, **changes) == code


def test_null_struct_is_rejected(library: KernelLibrary) -> None:
    assert library.handle.trtspec_quantize_cpu(None) == BAD_POINTER


@pytest.mark.parametrize(
    "bits", [np.zeros((2, 6), np.uint32), np.zeros((2, 6), np.uint16)[:, ::2], np.zeros((6, 2), np.uint16).T]
)
def test_array_that_is_not_rows_of_the_format_is_rejected(library: KernelLibrary, bits: np.ndarray) -> None:
    with pytest.raises(TrtspecError, match="is not an array of BF16 rows"):
        CompiledArithmetic(library).count(bits, "BF16")


def test_every_format_has_an_item_type() -> None:
    assert list(FORMATS) == list(ITEMS)
