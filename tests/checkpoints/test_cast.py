# SPDX-License-Identifier: Apache-2.0
"""Casts are bit-identical to torch's for all 16-bit patterns, and for the float32 values at rounding boundaries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.checkpoints.patterns import ALL16, ITEM, as_torch, assert_as_torch, decisive_floats
from trtspec.checkpoints.arithmetic import cast, cast_table, e4m3_values, every_value, from_floats, to_e4m3, to_floats
from trtspec.checkpoints.encodings import requantization_table


@pytest.mark.parametrize("target", ["BF16", "F16", "F32", "F8_E4M3"])
@pytest.mark.parametrize("source", ["BF16", "F16"])
def test_casts_of_all_16_bit_patterns_match_torch(source: str, target: str) -> None:
    if source == target:
        assert cast(ALL16, source, target) is ALL16
    else:
        assert_as_torch(cast(ALL16, source, target), as_torch(ALL16, source), target)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["BF16", "F16", "F8_E4M3"])
def test_float32_rounding_matches_torch(target: str) -> None:
    bits = decisive_floats()
    assert_as_torch(cast(bits, "F32", target), as_torch(bits, "F32"), target)


def test_e4m3_rounds_ties_to_even_and_saturates_at_448() -> None:
    values = np.array([1.0625, 1.1875, 2**-10, 3 * 2**-10, 448, 463.9, 1e30, np.inf, -np.inf, -0.0], np.float32)
    expected = [1.0, 1.25, 0.0, 2**-8, 448, 448, 448, 448, -448, -0.0]
    rounded = to_floats(to_e4m3(values), "F8_E4M3")
    np.testing.assert_array_equal(rounded, expected)
    assert np.signbit(rounded[-1])


def test_e4m3_values_match_torch() -> None:
    theirs = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    np.testing.assert_array_equal(e4m3_values(), theirs.numpy())
    assert np.nanmax(e4m3_values()) == 448.0


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F8_E4M3"])
def test_values_round_trip_through_floats(dtype: str) -> None:
    bits = np.arange(256 if dtype == "F8_E4M3" else 1 << 16).astype(ITEM[dtype])
    values = to_floats(bits, dtype)
    np.testing.assert_array_equal(values, as_torch(bits, dtype).float().numpy())
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(from_floats(values, dtype)[numbers], bits[numbers])


def test_cast_table_is_cached() -> None:
    assert cast_table("BF16", "F16") is cast_table("BF16", "F16")


SCALES = st.floats(2.0**-40, 2.0**40, width=32)


@pytest.mark.slow
@given(scale=SCALES, dtype=st.sampled_from(["BF16", "F16"]))
def test_quantized_patterns_match_torch_for_any_scale(scale: float, dtype: str) -> None:
    with np.errstate(invalid="ignore", over="ignore"):
        ours = to_e4m3(every_value(dtype) / np.float32(scale))
    assert_as_torch(ours, as_torch(ALL16, dtype) / torch.tensor([scale], dtype=torch.float32), "F8_E4M3")


@given(scale=SCALES, larger=st.floats(1.0, 64.0, width=32))
def test_requantized_patterns_match_torch_for_any_scale(scale: float, larger: float) -> None:
    merged = np.float32(scale) * np.float32(larger)
    patterns = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    original = patterns.float() * torch.tensor(scale) / torch.tensor(merged)
    assert_as_torch(requantization_table(np.float32(scale), merged), original, "F8_E4M3")
