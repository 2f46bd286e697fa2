# SPDX-License-Identifier: Apache-2.0
"""The target drafts for itself with sublayers left out.

It drafts into its own KV cache, in the slots behind the text that verification writes for good right after. The
layers that are not left out thus find the true keys and values of all text, and nothing is kept between steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.engine.drafting.base import Draft, Drafter, DraftSampling, Setup
from trtspec.engine.drafting.chain import Floors, draft_chain
from trtspec.engine.model.attention_masks import Window
from trtspec.engine.model.decoder import Sublayers


class SwiftDrafter(Drafter):
    """Drafts a chain with what is left of the target."""

    replays = False  # it drafts into the target's own cache, which every step mends
    remembers = False

    def __init__(self, setup: Setup) -> None:
        self._target = setup.target
        skip = setup.options.skip
        self._skipped = Sublayers(frozenset(skip.attention), frozenset(skip.mlp))
        self._floors = Floors(setup.options.stop_below, setup.confidence)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> Draft:
        """Draft from the last token of each text on, which is the first that the cache lacks."""
        windows = self._target.windows.singles([len(text) - 1 for text in texts], depth)
        last = torch.tensor([text[-1:] for text in texts], device=self._target.device)
        return draft_chain(self._forward, last, windows, sampling, self._floors)

    def _forward(self, tokens: Tensor, window: Window) -> Tensor:
        return self._target.forward_with_features(tokens, window, (), skipped=self._skipped)[0]


DRAFTER = SwiftDrafter
