# SPDX-License-Identifier: Apache-2.0
"""Mappings between the vocabulary of a draft and its target's vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from trtspec.checkpoints.translation import MAX_LENGTH_RATIO, VocabMapping, read_vocab_mapping


class Vocabulary:
    """The vocabulary of a draft with the target's token ids."""

    def to_target(self, tokens: Tensor) -> Tensor:
        """Return the target's ids of drafted tokens."""
        return tokens

    def spread(self, probs: Tensor) -> Tensor:
        """Map probabilities [..., the draft's vocabulary] to the target's vocabulary."""
        return probs


class SmallerVocabulary(Vocabulary):
    """The vocabulary of a draft with a subset of the target's tokens.

    `target_ids` [the draft's vocabulary] are the target's ids, `size` is the size of the target's vocabulary.
    """

    def __init__(self, target_ids: Tensor, size: int) -> None:
        self._target_ids, self._size = target_ids, size

    def to_target(self, tokens: Tensor) -> Tensor:
        """Return the target's ids of drafted tokens."""
        return self._target_ids[tokens]

    def spread(self, probs: Tensor) -> Tensor:
        """Map probabilities to the target's vocabulary; ids outside the subset get 0."""
        whole = probs.new_zeros((*probs.shape[:-1], self._size))
        return whole.index_copy_(-1, self._target_ids, probs)


SAME = Vocabulary()


class VocabAdapter:
    """The adapter of a draft with the target's tokens.

    `vocabulary` is the vocabulary of the `shared` logits; a text has up to `longer` times as many draft tokens.
    """

    vocabulary: Vocabulary = SAME
    longer = 1

    def spell(self, tokens: Iterable[int]) -> list[int]:
        """Return the draft's tokens for the target's tokens, at least one for each."""
        return [*tokens]

    def read(self, drafted: Tensor) -> Tensor:
        """Return the draft's ids of drafted tokens, which are given as ids of the target."""
        return drafted

    def shared(self, logits: Tensor) -> Tensor:
        """Return the logits of the tokens that may be drafted, from logits [rows, the draft's vocabulary]."""
        return logits


class TranslatingAdapter(VocabAdapter):
    """The adapter of a draft with another vocabulary, which drafts only tokens that both vocabularies have.

    The draft's distribution is computed from the logits of these tokens only, so that verification uses the
    distribution from which the tokens were sampled.
    """

    longer = MAX_LENGTH_RATIO

    def __init__(self, translation: VocabMapping, device: torch.device) -> None:
        self._spellings = translation.spellings
        self._draft_ids = torch.tensor(translation.draft_ids, device=device)
        target_ids = torch.tensor(translation.target_ids, device=device)
        self._draft_of = torch.zeros(len(self._spellings), dtype=torch.int64, device=device)
        self._draft_of[target_ids] = self._draft_ids
        self.vocabulary = SmallerVocabulary(target_ids, len(self._spellings))

    def spell(self, tokens: Iterable[int]) -> list[int]:
        """Return the draft's tokens for the target's tokens."""
        return [drafted for token in tokens for drafted in self._spellings[token]]

    def read(self, drafted: Tensor) -> Tensor:
        """Return the draft's ids of drafted tokens."""
        return self._draft_of[drafted]

    def shared(self, logits: Tensor) -> Tensor:
        """Return the logits of the tokens that both vocabularies have."""
        return logits[:, self._draft_ids]


def load_vocab_adapter(root: Path, target_size: int, draft_size: int, device: torch.device) -> VocabAdapter:
    """Return the adapter for the draft in the checkpoint `root`; the sizes are the numbers of vocabulary entries."""
    translation = read_vocab_mapping(root, target_size, draft_size)
    return TranslatingAdapter(translation, device) if translation else VocabAdapter()
