# SPDX-License-Identifier: Apache-2.0
"""The KV cache: preallocated, addressed by slots, read as views."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.checkpoint.model_config import ModelConfig


class KVCache:
    """Preallocated keys and values: per layer one tensor [rows * max_len, kv_heads, head_size] each.

    A row's length is kept by the caller, so rolling back rejected tokens costs nothing: their slots are written again.
    """

    def __init__(self, config: ModelConfig, rows: int, max_len: int, device: torch.device, dtype: torch.dtype) -> None:
        shape = (rows * max_len, config.num_kv_heads, config.head_size)
        self.max_len = max_len
        self._keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        self._values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(config.num_layers)]
        by_row = (rows, max_len, *shape[1:])
        self._by_row = [
            (keys.view(by_row).transpose(1, 2), values.view(by_row).transpose(1, 2))
            for keys, values in zip(self._keys, self._values, strict=True)
        ]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [len(slots), kv_heads, head_size]."""
        self._keys[layer].index_copy_(0, slots, keys)
        self._values[layer].index_copy_(0, slots, values)

    def read(self, layer: int, first_row: int, rows: int, key_len: int) -> tuple[Tensor, Tensor]:
        """Return views of keys and values, each [rows, kv_heads, key_len, head_size]."""
        keys, values = self._by_row[layer]
        where = (slice(first_row, first_row + rows), slice(None), slice(key_len))
        return keys[where], values[where]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of row `source` over row `target`."""
        here, there = source * self.max_len, target * self.max_len
        for cache in (*self._keys, *self._values):
            cache[there : there + length] = cache[here : here + length]
