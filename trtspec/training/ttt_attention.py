# SPDX-License-Identifier: Apache-2.0
"""Chains of drafts that a layer makes by reading its own output, one from each place of a batch.

The first pass reads what is known of the whole text. The chain that begins at a place sees the first pass up to that
place, and of each later pass its own entry alone, as when it drafts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.training.batches import Batch
from trtspec.training.layers import Layer

MOST_PASSES = 7  # as EAGLE-3's authors train: SafeAILab/EAGLE, traineagle3


class Chains:
    """What chains have seen so far; `count` below is the most places of a row, as in `Batch.grid`."""

    def __init__(self, batch: Batch) -> None:
        self._batch, self._starts = batch, batch.grid - 1
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    @property
    def tokens(self) -> Tensor:
        """Return the tokens that the next pass reads: behind each of the text at first, then each chain's next one."""
        tokens = self._batch.tokens
        if not self._keys:
            return torch.roll(tokens, -1, 1)  # the first one, behind the last, is seen by no chain
        return tokens.gather(1, (self._starts + 1 + len(self._keys)).clamp(max=tokens.shape[1] - 1))

    def own(self, rows: Tensor) -> Tensor:
        """Return what stands where the chains begin [rows, count, n] in what the next pass reads."""
        return rows if self._keys else rows.gather(1, self._starts.unsqueeze(2).expand(-1, -1, rows.shape[2]))

    def attend(self, layer: Layer, read: Tensor) -> Tensor:
        """Return what a layer's heads say to the chains [rows, count, heads * head_size] in the next pass.

        It reads [rows, width, n] at first, then [rows, count, n].
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
