# SPDX-License-Identifier: Apache-2.0
"""How a draft model reads the target's texts, and which tokens it drafts: as they are, or translated."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from trtspec.checkpoints.translation import LONGER, Translation, read_translation
from trtspec.engine.drafting.vocabulary import SAME, SmallerVocabulary, Vocabulary


class Reading:
    """That of a draft whose tokens are the target's.

    `vocabulary` is what `shared` logits are of; a text may be `longer` times as many tokens to the draft.
    """

    vocabulary: Vocabulary = SAME
    longer = 1

    def spell(self, tokens: Iterable[int]) -> list[int]:
        """Return the target's tokens as the draft's, at least one for each."""
        return [*tokens]

    def read(self, drafted: Tensor) -> Tensor:
        """Return drafted tokens, ids of the target, as the draft's; each is one."""
        return drafted

    def shared(self, logits: Tensor) -> Tensor:
        """Return logits [rows, the draft's vocabulary] of the tokens that may be drafted."""
        return logits


class Translated(Reading):
    """That of a draft of another vocabulary, which drafts the tokens that both have.

    Their logits alone make the draft's distribution, as if it had no others: what is verified is what was drawn from.
    """

    longer = LONGER

    def __init__(self, translation: Translation, device: torch.device) -> None:
        self._spellings = translation.spellings
        self._draft_ids = torch.tensor(translation.draft_ids, device=device)
        target_ids = torch.tensor(translation.target_ids, device=device)
        self._draft_of = torch.zeros(len(self._spellings), dtype=torch.int64, device=device)
        self._draft_of[target_ids] = self._draft_ids
        self.vocabulary = SmallerVocabulary(target_ids, len(self._spellings))

    def spell(self, tokens: Iterable[int]) -> list[int]:
        """Return the target's tokens as the draft's."""
        return [drafted for token in tokens for drafted in self._spellings[token]]

    def read(self, drafted: Tensor) -> Tensor:
        """Return drafted tokens as the draft's."""
        return self._draft_of[drafted]

    def shared(self, logits: Tensor) -> Tensor:
        """Return the logits of the tokens that both have."""
        return logits[:, self._draft_ids]


def reading_of(root: Path, target_size: int, draft_size: int, device: torch.device) -> Reading:
    """Return how the draft in a checkpoint reads texts of its target, whose vocabularies have so many entries."""
    translation = read_translation(root, target_size, draft_size)
    return Translated(translation, device) if translation else Reading()
