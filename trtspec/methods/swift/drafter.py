# SPDX-License-Identifier: Apache-2.0
"""SWIFT: drafts with the target itself, with sublayers skipped.

Drafting uses the slots after the text in the target's KV cache, and verification overwrites them. The remaining layers
therefore attend to exact keys and values of the text, and no state is kept between steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.engine.drafting.base import (
    ConfidenceFloor,
    Drafter,
    DrafterConfig,
    DraftSampling,
    DraftTokens,
    draft_chain,
)
from trtspec.engine.model.decoder import Sublayers
from trtspec.engine.model.positions import Window


class SwiftDrafter(Drafter):
    """Drafts a chain with those sublayers of the target that are not skipped."""

    replays = False  # drafts are written to the target's cache, and verification must overwrite them
    remembers = False

    def __init__(self, setup: DrafterConfig) -> None:
        self._target = setup.target
        skip = setup.options.skip
        self._skipped = Sublayers(frozenset(skip.attention), frozenset(skip.mlp))
        self._floors = ConfidenceFloor(setup.options.stop_below, setup.confidence)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Draft a chain from each text's last token, which is the first token without keys and values in the cache."""
        first, *windows = self._target.windows.singles([len(text) - 1 for text in texts], depth)
        last = torch.tensor([text[-1:] for text in texts], device=self._target.device)
        return draft_chain(self._forward(last, first), self._forward, windows, sampling, self._floors)

    def _forward(self, tokens: Tensor, window: Window) -> Tensor:
        return self._target.forward_with_features(tokens, window, (), skipped=self._skipped)[0]


DRAFTER = SwiftDrafter
