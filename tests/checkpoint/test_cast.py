# SPDX-License-Identifier: Apache-2.0
"""Casts are bit for bit torch's, over all 65,536 patterns of a 16-bit value."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from trtspec.checkpoint.cast import make_cast

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def values(dtype: str) -> torch.Tensor:
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    if dtype != "F32":
        return every.view(TORCH[dtype])
    # all bf16 patterns, and around each the fp32 values that decide about rounding
    wide = (torch.arange(1 << 16, dtype=torch.int64) << 16).repeat_interleave(5)
    return (wide + torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001]).repeat(1 << 16)).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize(("source", "target"), [("BF16", "F16"), ("F16", "BF16"), ("F32", "BF16"), ("F32", "F16")])
def test_casts_are_those_of_torch(source: str, target: str) -> None:
    original = values(source)
    raw = memoryview(original.view(torch.uint8).numpy())
    data, overflowed = make_cast(source, target)(raw)
    ours = torch.from_numpy(np.frombuffer(data, np.int16).copy()).view(TORCH[target])
    expected = original.to(TORCH[target])
    numbers = ~expected.isnan()
    assert torch.equal(ours.view(torch.int16)[numbers], expected.view(torch.int16)[numbers])
    assert ours[~numbers].isnan().all()
    assert overflowed == int((original.isfinite() & expected.isinf()).sum())


def test_equal_dtypes_are_not_touched() -> None:
    raw = memoryview(bytes(range(16)))
    assert make_cast("BF16", "BF16")(raw) == (raw, 0)
