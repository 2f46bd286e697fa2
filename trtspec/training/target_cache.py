# SPDX-License-Identifier: Apache-2.0
"""Cache of the target's outputs on training texts, if they fit into memory; otherwise they are computed each time.

Cached texts are computed in batches that depend on their list alone, because the last bit of a sum depends on the
batch. Therefore the result does not depend on when a training was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, cat, split_with_sizes
from torch.nn.utils.rnn import pad_sequence

from trtspec.training.batches import TrainingBatch
from trtspec.training.teacher import Teacher
from trtspec.training.texts import TrainingText

MOST_BYTES = 1 << 30
ITEM_BYTES = 4

TargetOutput = tuple[Tensor, Tensor | None]


class TargetOutputs:
    """The target's logits at the places of batches of `texts`, and its hidden states at `aux_layers`."""

    def __init__(self, teacher: Teacher, aux_layers: Sequence[int], texts: Sequence[TrainingText]) -> None:
        self.teacher, self.aux_layers = teacher, aux_layers
        self._texts = list(dict.fromkeys(texts))
        self._numbers = {text: number for number, text in enumerate(self._texts)}
        self._kept: dict[TrainingText, TargetOutput] = {}
        config = teacher.model.config
        logits = sum(len(text.answer) for text in self._texts) * config.vocab_size
        features = sum(len(text.tokens) for text in self._texts) * config.hidden_size * len(aux_layers)
        self._fit = ITEM_BYTES * (logits + features) <= MOST_BYTES

    def of(self, batch: TrainingBatch) -> TargetOutput:
        """Return logits [places, vocab] and features [rows, width, aux_layers * hidden] (None without aux_layers)."""
        if not self._fit:
            return self.teacher.read(batch.tokens, batch.flat(), self.aux_layers)
        for text in batch.texts:
            if text not in self._kept:
                self._learn(self._numbers[text] // self.teacher.rows * self.teacher.rows)
        logits, features = zip(*(self._kept[text] for text in batch.texts), strict=True)
        if not self.aux_layers:
            return cat(logits), None
        return cat(logits), pad_sequence(list(features), batch_first=True)

    def _learn(self, first: int) -> None:
        """Compute the batch of the list that starts at `first`."""
        batch = TrainingBatch.of(self._texts[first : first + self.teacher.rows], self.teacher.model.device)
        logits, features = self.teacher.read(batch.tokens, batch.flat(), self.aux_layers)
        for row, (text, own) in enumerate(zip(batch.texts, split_with_sizes(logits, batch.counts), strict=True)):
            kept = None if features is None else features[row, : len(text.tokens)].clone()
            self._kept[text] = own, kept
