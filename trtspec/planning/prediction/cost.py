# SPDX-License-Identifier: Apache-2.0
"""Cost of a million generated tokens from the hourly price of a GPU."""

from __future__ import annotations


def dollars_per_million(gpu_price: float, gpus: int, tokens_per_s: float) -> float:
    """Return the dollars per million tokens of fully used GPUs, at dollars per GPU and hour."""
    return gpu_price * gpus / 3600 / tokens_per_s * 1e6
