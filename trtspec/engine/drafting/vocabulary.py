# SPDX-License-Identifier: Apache-2.0
"""Mappings between the vocabulary of a draft and its target's vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from trtspec.checkpoints.translation import MAX_LENGTH_RATIO, VocabMapping, read_vocab_mapping


class Vocabulary:
    """The vocabulary of a draft with the target's tokens; a text has up to `longer` times as many draft tokens."""

    longer = 1

    def to_target(self, tokens: Tensor) -> Tensor:
        """Return the target's ids of drafted tokens."""
        return tokens

    def to_draft(self, tokens: Tensor) -> Tensor:
        """Return the draft's ids of drafted tokens, which are given as ids of the target."""
        return tokens

    def spell(self, tokens: Iterable[int]) -> list[int]:
        """Return the draft's tokens for the target's tokens, at least one for each."""
        return [*tokens]

    def shared(self, logits: Tensor) -> Tensor:
        """Return the logits of the tokens that may be drafted, from logits [rows, all of the draft's tokens]."""
        return logits

    def spread(self, probs: Tensor) -> Tensor:
        """Map probabilities [..., tokens that may be drafted] to the target's vocabulary; the other ids get 0."""
        return probs


SAME = Vocabulary()


class SmallerVocabulary(Vocabulary):
    """The vocabulary of a draft with a subset of the target's tokens.

    `target_ids` [the draft's vocabulary] are the target's ids, `size` is the size of the target's vocabulary.
    """

    def __init__(self, target_ids: Tensor, size: int) -> None:
        self._target_ids, self._size = target_ids, size

    def to_target(self, tokens: Tensor) -> Tensor:
        return self._target_ids[tokens]

    def spread(self, probs: Tensor) -> Tensor:
        whole = probs.new_zeros((*probs.shape[:-1], self._size))
        return whole.index_copy_(-1, self._target_ids, probs)


class TranslatedVocabulary(SmallerVocabulary):
    """The vocabulary of a draft with other tokens, which drafts only tokens that the target has too.

    The draft's distribution is computed from the logits of these tokens only, so that verification uses the
    distribution from which the tokens were sampled.
    """

    longer = MAX_LENGTH_RATIO

    def __init__(self, mapping: VocabMapping, device: torch.device) -> None:
        super().__init__(torch.tensor(mapping.target_ids, device=device), len(mapping.spellings))
        self._spellings = mapping.spellings
        self._draft_ids = torch.tensor(mapping.draft_ids, device=device)
        self._draft_of = torch.zeros(len(mapping.spellings), dtype=torch.int64, device=device)
        self._draft_of[self._target_ids] = self._draft_ids

    def to_draft(self, tokens: Tensor) -> Tensor:
        return self._draft_of[tokens]

    def spell(self, tokens: Iterable[int]) -> list[int]:
        return [drafted for token in tokens for drafted in self._spellings[token]]

    def shared(self, logits: Tensor) -> Tensor:
        return logits[:, self._draft_ids]


def load_vocabulary(root: Path, target_size: int, draft_size: int, device: torch.device) -> Vocabulary:
    """Return the vocabulary of the draft in the checkpoint `root`; the sizes are the numbers of vocabulary entries."""
    mapping = read_vocab_mapping(root, target_size, draft_size)
    return TranslatedVocabulary(mapping, device) if mapping else SAME
