# SPDX-License-Identifier: Apache-2.0
"""The drafter of the method `none`, which drafts nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtspec.engine.drafting.base import Drafter, DrafterConfig, DraftSampling, DraftTokens


class NoDrafter(Drafter):
    """Returns empty drafts, so that each step generates one token with the target."""

    def __init__(self, setup: DrafterConfig) -> None:
        self._device = setup.room.device

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        return DraftTokens(torch.empty((len(texts), 0), dtype=torch.int64, device=self._device))


DRAFTER = NoDrafter
