# SPDX-License-Identifier: Apache-2.0
"""Mappings from the token ids of a draft to its target's token ids."""

from __future__ import annotations

from torch import Tensor


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
