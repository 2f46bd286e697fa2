# SPDX-License-Identifier: Apache-2.0
"""The target as a teacher: its logits and hidden states for a batch, and a cache of them if they fit into memory.

Cached texts are computed in batches that depend on their list alone, because the last bit of a sum depends on the
batch. Therefore the result does not depend on when a training was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, cat, split_with_sizes
from torch.nn.utils.rnn import pad_sequence

from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.engine.device import choose_device, compute_dtype
from trtspec.engine.model.decoder import Decoder
from trtspec.training.batches import TrainingBatch, rows_per_batch
from trtspec.training.texts import TrainingText

MOST_BYTES = 1 << 30
ITEM_BYTES = 4

TargetOutput = tuple[Tensor, Tensor]  # logits and features


class Teacher:
    """A converted checkpoint in the torch engine, with memory for one batch of the given texts."""

    def __init__(self, root: Path, texts: Sequence[TrainingText]) -> None:
        device, checkpoint = choose_device("auto"), load_checkpoint(root)
        longest = max(len(text.tokens) for text in texts)
        dtype = compute_dtype("auto", device, checkpoint)
        self.rows = rows_per_batch(texts)
        self.model = Decoder(checkpoint, self.rows, longest, device, dtype)

    @torch.no_grad()
    def read(self, tokens: Tensor, at: Tensor, aux_layers: Sequence[int]) -> TargetOutput:
        """Return logits [len(at), vocab] at flat indices, and features [rows, width, aux_layers * hidden], in float32.

        Without `aux_layers` the width of the features is 0.
        """
        rows, width = tokens.shape
        window = self.model.windows.chain([0] * rows, width)
        logits, features = self.model.forward_with_features(tokens, window, aux_layers, at)
        features = logits.new_empty(rows * width, 0) if features is None else features
        return logits.float(), features.float().view(rows, width, features.shape[1])


class TargetOutputs:
    """The target's logits at the places of batches of `texts`, and its hidden states at `aux_layers`."""

    def __init__(self, teacher: Teacher, aux_layers: Sequence[int], texts: Sequence[TrainingText]) -> None:
        self.teacher, self.aux_layers = teacher, aux_layers
        self._texts = list(dict.fromkeys(texts))
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._cached: dict[TrainingText, TargetOutput] = {}
        config = teacher.model.config
        logits = sum(len(text.answer) for text in self._texts) * config.vocab_size
        features = sum(len(text.tokens) for text in self._texts) * config.hidden_size * len(aux_layers)
        self._fits = ITEM_BYTES * (logits + features) <= MOST_BYTES

    def of(self, batch: TrainingBatch) -> TargetOutput:
        """Return logits [places, vocab] and features [rows, width, aux_layers * hidden]."""
        if not self._fits:
            return self.teacher.read(batch.tokens, batch.flat(), self.aux_layers)
        for text in batch.texts:
            if text not in self._cached:
                self._compute(self._numbers[text] // self.teacher.rows * self.teacher.rows)
        logits, features = zip(*(self._cached[text] for text in batch.texts), strict=True)
        return cat(logits), pad_sequence(list(features), batch_first=True)

    def _compute(self, first: int) -> None:
        """Compute the batch of the list that starts at `first`."""
        batch = TrainingBatch.of(self._texts[first : first + self.teacher.rows], self.teacher.model.device)
        logits, features = self.teacher.read(batch.tokens, batch.flat(), self.aux_layers)
        for row, (text, own) in enumerate(zip(batch.texts, split_with_sizes(logits, batch.counts), strict=True)):
            self._cached[text] = own, features[row, : len(text.tokens)].clone()
