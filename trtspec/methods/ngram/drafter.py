# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup: searches each text for its last tokens on the host, without a draft model."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.device import pad_rows
from trtspec.engine.drafting.base import Drafter, DrafterConfig, DraftSampling, DraftTokens
from trtspec.engine.generation.suffixes import SuffixIndex


class NgramDrafter(Drafter):
    """Drafts the continuation of the longest match of the text's last tokens; rows without a match get no draft."""

    def __init__(self, setup: DrafterConfig) -> None:
        self._device = setup.room.device
        self._min_match: int = setup.options.min_match
        self._max_match: int = setup.options.max_match
        self._indexes: dict[int, SuffixIndex] = {}

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Create an empty index for each row; prompts are indexed at the first draft, if there is one."""
        for row in range(first_row, first_row + len(prompts)):
            self._indexes[row] = SuffixIndex(self._max_match)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Return a chain of `depth` tokens for each row with a match, and an empty one for other rows."""
        chains = [self._continuation(row, text, depth) for row, text in enumerate(texts)]
        return DraftTokens(pad_rows(chains, self._device), lens=[len(chain) for chain in chains])

    def _continuation(self, row: int, text: Sequence[int], depth: int) -> list[int]:
        index = self._indexes[row]
        index.extend(text[len(index) :])
        return index.continuation(depth) if index.matched >= self._min_match else []

    def move_row(self, source: int, target: int, length: int) -> None:
        self._indexes[target] = self._indexes.pop(source)


DRAFTER = NgramDrafter
