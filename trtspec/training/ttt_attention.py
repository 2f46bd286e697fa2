# SPDX-License-Identifier: Apache-2.0
"""Attention of autoregressive draft chains that start at each place of a batch.

The first pass reads the whole text. A chain attends to the first pass up to its place, and in each later pass only to
its own entry, as when it drafts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.training.batches import TrainingBatch
from trtspec.training.layers import TrainableLayer

MOST_PASSES = 7  # as in the training of EAGLE-3's authors: SafeAILab/EAGLE, traineagle3


class RolloutAttention:
    """Keys and values of chains so far; `count` is the maximum of places per row, as in `TrainingBatch.grid`."""

    def __init__(self, batch: TrainingBatch) -> None:
        self._batch, self._starts = batch, batch.grid - 1
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @property
    def tokens(self) -> Tensor:
        """Return the input tokens of the next pass: the text shifted by one at first, then each chain's next token."""
        tokens = self._batch.tokens
        if not self._keys:
            return torch.roll(tokens, -1, 1)  # no chain sees the last entry, which wraps around
        return tokens.gather(1, (self._starts + 1 + len(self._keys)).clamp(max=tokens.shape[1] - 1))

    def own(self, rows: Tensor) -> Tensor:
        """Return the entries [rows, count, n] of the next pass's input at the chains' starts."""
        return rows if self._keys else rows.gather(1, self._starts.unsqueeze(2).expand(-1, -1, rows.shape[2]))

    def attend(self, layer: TrainableLayer, read: Tensor) -> Tensor:
        """Return a layer's attention output for the chains [rows, count, heads * head_size] in the next pass.

        The input is [rows, width, n] in the first pass, then [rows, count, n].
        """
        config, step = layer.config, len(self._keys)
        query, key, value = layer.heads(read, self._starts + step if step else None)
        if not step:
            at = self._starts[:, None, :, None]
            query = query.gather(2, at.expand(-1, query.shape[1], -1, query.shape[3]))
        group = config.num_heads // config.num_kv_heads
        self._keys.append(key.repeat_interleave(group, 1))
        self._values.append(value.repeat_interleave(group, 1))
        return self._mix(query, config.score_scale).transpose(1, 2).flatten(2)

    def _mix(self, query: Tensor, scale: float) -> Tensor:
        width = self._batch.tokens.shape[1]
        future = torch.arange(width, device=query.device) > self._starts[:, None, :, None]
        scores = [(query @ self._keys[0].mT).masked_fill(future, -torch.inf)]
        scores += [(query * own).sum(-1, keepdim=True) for own in self._keys[1:]]
        weights = torch.softmax(torch.cat(scores, -1) * scale, -1)
        mixed = weights[..., :width] @ self._values[0]
        for number, own in enumerate(self._values[1:]):
            mixed = mixed + weights[..., width + number, None] * own
        return mixed
