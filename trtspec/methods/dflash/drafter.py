# SPDX-License-Identifier: Apache-2.0
"""DFlash: drafts the block net's prediction at each mask token, all in one pass (arXiv:2602.06036)."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.drafting.base import DrafterConfig, DraftSampling, DraftTokens
from trtspec.engine.drafting.chain import ConfidenceFloor, draft_parallel
from trtspec.methods.dflash.block_drafter import BlockDrafter


class DFlashDrafter(BlockDrafter):
    """Drafts a chain whose tokens do not depend on each other."""

    def __init__(self, setup: DrafterConfig) -> None:
        super().__init__(setup, "dflash")
        self._floors = ConfidenceFloor(chain=setup.confidence)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Draft `depth` tokens, or fewer if the net's confidence is too low."""
        hidden = self._fill(texts, depth)
        logits = self.network.lm_head(hidden.flatten(0, 1)).view(len(texts), depth, -1)
        return draft_parallel(logits, sampling, self._floors, self.network.vocabulary)


DRAFTER = DFlashDrafter
