# SPDX-License-Identifier: Apache-2.0
"""PARD: drafts a chain in one pass with a model trained for it, at mask tokens after the text.

The model's KV cache contains the text up to the last pass. The next pass adds the tokens that are new since then and
overwrites the entries of mask tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtspec.engine.device import pad_rows
from trtspec.engine.drafting.base import ConfidenceFloor, DrafterConfig, DraftSampling, DraftTokens, draft_parallel
from trtspec.methods.draft_target.drafter import ModelDrafter


class ParallelModelDrafter(ModelDrafter):
    """Drafts with a model that has the target's vocabulary and a mask token."""

    def __init__(self, setup: DrafterConfig) -> None:
        super().__init__(setup, "pard")
        self._mask = self._model.checkpoint.document.get("mask_token_id", int)
        self._floors = ConfidenceFloor(chain=setup.confidence)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Draft `depth` tokens per row: one after the text, and one after each mask."""
        model, starts = self._model, self._at[: len(texts)]
        news = [text[start:] for text, start in zip(texts, starts, strict=True)]
        width = max(map(len, news)) + depth - 1
        tokens = pad_rows(news, model.device, width, fill=self._mask)
        at = [row * width + len(new) - 1 + step for row, new in enumerate(news) for step in range(depth)]
        logits = model.forward(tokens, model.windows.chain(starts, width), torch.tensor(at, device=model.device))
        self._at[: len(texts)] = map(len, texts)
        return draft_parallel(logits.view(len(texts), depth, -1), sampling, self._floors)


DRAFTER = ParallelModelDrafter
