# SPDX-License-Identifier: Apache-2.0
"""Blocks of places that a net fills in one pass, one behind the text up to each place of a batch."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.training.batches import Batch
from trtspec.training.layers import Layer

Heads = tuple[Tensor, Tensor, Tensor]


class Blocks:
    """Blocks of `width` places, the first at a place of the batch itself; `count` is the most places of a row.

    A block sees the text before its place, and itself: all of it, or with `is_causal` what is not behind.
    """

    def __init__(self, batch: Batch, width: int, *, is_causal: bool) -> None:
        self._batch, self._width = batch, width
        numbers = torch.arange(width, device=batch.tokens.device)
        self.at = (batch.grid.unsqueeze(2) + numbers).flatten(1)  # [rows, count * width]
        self.anchors = batch.grid.repeat_interleave(width, 1)  # where each one's block begins
        self._hidden = numbers > numbers.unsqueeze(1) if is_causal else None

    def attend(self, layer: Layer, known: Heads, read: Tensor) -> Tensor:
        """Return what a layer's heads say to the blocks, which read [rows, count * width, n]; as wide as the heads are.

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
        """Return what stands at one place of each block [places, hidden], out of [rows, count * width, hidden]."""
        rows, entries, _ = hidden.shape
        return hidden.view(rows, entries // self._width, self._width, -1)[self._batch.is_place, number]

    def _apart(self, heads: Tensor) -> Tensor:
        rows, count, entries, _ = heads.shape
        return heads.reshape(rows, count, entries // self._width, self._width, -1)
