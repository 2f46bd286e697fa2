# SPDX-License-Identifier: Apache-2.0
"""The KV cache: preallocated, addressed by slots, read through views."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig


class KVCache:
    """Preallocated keys and values of all layers in one tensor, [2 * layers, rows * max_len, kv_heads, head_size].

    The caller tracks the length of each row, and the slots of rejected tokens are overwritten without a rollback.
    """

    def __init__(self, config: ModelConfig, rows: int, max_len: int, device: torch.device, dtype: torch.dtype) -> None:
        self.max_len = max_len
        heads = (config.num_kv_heads, config.head_size)
        self._all = torch.zeros((2 * config.num_layers, rows * max_len, *heads), device=device, dtype=dtype)
        self._flat = self._all.unbind()
        by_row = self._all.view(2 * config.num_layers, rows, max_len, *heads)
        self._by_row = by_row.transpose(2, 3).unbind()

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values [len(slots), kv_heads, head_size]."""
        self._flat[2 * layer].index_copy_(0, slots, keys)
        self._flat[2 * layer + 1].index_copy_(0, slots, values)

    def read(self, layer: int, first_row: int, rows: int, key_len: int) -> tuple[Tensor, Tensor]:
        """Return views of keys and values, each [rows, kv_heads, key_len, head_size]."""
        where = (slice(first_row, first_row + rows), slice(None), slice(key_len))
        return self._by_row[2 * layer][where], self._by_row[2 * layer + 1][where]

    def compact(self, moves: list[tuple[int, int, int]]) -> None:
        """Apply moves (row, from position, to position); all are read before any is written."""
        if moves:
            places = torch.tensor(moves, device=self._all.device)
            base = places[:, 0] * self.max_len
            self._all.index_copy_(1, base + places[:, 2], self._all.index_select(1, base + places[:, 1]))

    def row(self, row: int, length: int) -> Tensor:
        """Return a view of the first `length` positions of a row, [2 * layers, length, kv_heads, head_size]."""
        start = row * self.max_len
        return self._all[:, start : start + length]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of row `source` over row `target`."""
        self.row(target, length).copy_(self.row(source, length))
