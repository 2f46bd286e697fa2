# SPDX-License-Identifier: Apache-2.0
"""Attention of blocks that a net fills in one pass, with one block at each place of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import TrainableLayer

Heads = tuple[Tensor, Tensor, Tensor]


class BlockAttention:
    """Blocks of `width` positions, each starting at a place of the batch; `count` is the maximum of places per row.

    A block attends to the text before its place and to itself, with `is_causal` only up to the current position.
    """

    def __init__(self, batch: TrainingBatch, width: int, *, is_causal: bool) -> None:
        self._batch, self._width = batch, width
        numbers = torch.arange(width, device=batch.tokens.device)
        self.at = (batch.grid.unsqueeze(2) + numbers).flatten(1)  # [rows, count * width]
        self.anchors = batch.grid.repeat_interleave(width, 1)  # the start of each position's block
        self._hidden = numbers > numbers.unsqueeze(1) if is_causal else None

    def attend(self, layer: TrainableLayer, known: Heads, read: Tensor) -> Tensor:
        """Return a layer's attention output for the blocks, whose input is [rows, count * width, n]; the heads' width.

        `known` are queries, keys and values of the text.
        """
        config = layer.config
        group = config.num_heads // config.num_kv_heads
        query, *own = layer.heads(read, self.at)
        keys, values, own_keys, own_values = (each.repeat_interleave(group, 1) for each in (*known[1:], *own))
        behind = torch.arange(keys.shape[2], device=read.device) >= self.anchors[:, None, :, None]
        scores = [(query @ keys.mT).masked_fill(behind, -torch.inf)]
        inner = self._apart(query) @ self._apart(own_keys).mT
        scores.append((inner if self._hidden is None else inner.masked_fill(self._hidden, -torch.inf)).flatten(2, 3))
        weights = torch.softmax(torch.cat(scores, -1) * config.score_scale, -1)
        text, block = torch.split_with_sizes(weights, [keys.shape[2], self._width], -1)
        mixed = text @ values + (self._apart(block) @ self._apart(own_values)).flatten(2, 3)
        joined: Tensor = mixed.transpose(1, 2).flatten(2)
        return joined

    def step(self, hidden: Tensor, number: int) -> Tensor:
        """Return the states [places, hidden] at one position of each block, from [rows, count * width, hidden]."""
        rows, entries, _ = hidden.shape
        return hidden.view(rows, entries // self._width, self._width, -1)[self._batch.is_place, number]

    def _apart(self, heads: Tensor) -> Tensor:
        rows, count, entries, _ = heads.shape
        return heads.reshape(rows, count, entries // self._width, self._width, -1)
