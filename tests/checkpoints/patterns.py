# SPDX-License-Identifier: Apache-2.0
"""Bit patterns at rounding boundaries, and their torch tensors."""

from __future__ import annotations

import numpy as np
import torch

TORCH = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn}
ITEM = {"BF16": np.uint16, "F16": np.uint16, "F32": np.uint32, "F8_E4M3": np.uint8}
ALL16 = np.arange(1 << 16, dtype=np.uint16)


def decisive_floats() -> np.ndarray:
    """Return the patterns of float32 around every value and every tie of the smaller formats, and random ones.

    Their mantissas end at bits 16 (bfloat16), 13 (float16) and 20 (e4m3), and higher for subnormals. Each prefix of
    such a length is followed by zero, a half, and the neighbours of both.
    """
    found = [np.random.default_rng(0).integers(0, 1 << 32, 200_000, dtype=np.uint32)]
    for bit in range(13, 24):
        prefixes = np.arange(1 << (32 - bit), dtype=np.uint32) << np.uint32(bit)
        half = np.uint32(1 << (bit - 1))
        found += [prefixes + tail for tail in (np.uint32(0), np.uint32(1), half - 1, half, half + 1)]
    return np.concatenate(found)


def as_torch(bits: np.ndarray, dtype: str) -> torch.Tensor:
    """Return patterns as a tensor of their dtype."""
    return torch.from_numpy(bits.view(f"i{bits.itemsize}").copy()).view(TORCH[dtype])


def assert_as_torch(ours: np.ndarray, original: torch.Tensor, dtype: str) -> None:
    """Assert the bits of torch's cast of `original`; NaN only has to stay NaN."""
    expected = original.to(TORCH[dtype])
    assert ours.dtype == ITEM[dtype]
    numbers = ~original.isnan()
    bits = as_torch(ours, dtype)
    assert torch.equal(bits[numbers].view(torch.uint8), expected[numbers].view(torch.uint8))
    assert bits[~numbers].float().isnan().all()
