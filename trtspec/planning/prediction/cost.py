# SPDX-License-Identifier: Apache-2.0
"""What a million generated tokens cost, from the price of a GPU's hour."""

from __future__ import annotations


def dollars_per_million(gpu_price: float, gpus: int, tokens_per_s: float) -> float:
    """Return dollars for a million tokens on GPUs that are busy all the time, at dollars a GPU and hour."""
    return gpu_price * gpus / 3600 / tokens_per_s * 1e6
