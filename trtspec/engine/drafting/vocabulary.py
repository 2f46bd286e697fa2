# SPDX-License-Identifier: Apache-2.0
"""What the tokens of a draft are to its target."""

from __future__ import annotations

from torch import Tensor


class Vocabulary:
    """That of a draft whose tokens are the target's."""

    def to_target(self, tokens: Tensor) -> Tensor:
        """Return the target's ids of drafted ones."""
        return tokens

    def spread(self, probs: Tensor) -> Tensor:
        """Return probabilities [..., the draft's vocabulary] over the target's vocabulary."""
        return probs


class SmallerVocabulary(Vocabulary):
    """That of a draft whose tokens are the target's `target_ids` [the draft's vocabulary], of `size` in all."""

    def __init__(self, target_ids: Tensor, size: int) -> None:
        self._target_ids, self._size = target_ids, size

    def to_target(self, tokens: Tensor) -> Tensor:
        """Return the target's ids of drafted ones."""
        return self._target_ids[tokens]

    def spread(self, probs: Tensor) -> Tensor:
        """Return probabilities over the target's vocabulary; ids that are never drafted get 0."""
        whole = probs.new_zeros((*probs.shape[:-1], self._size))
        return whole.index_copy_(-1, self._target_ids, probs)


SAME = Vocabulary()
