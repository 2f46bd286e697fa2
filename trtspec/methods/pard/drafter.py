# SPDX-License-Identifier: Apache-2.0
"""PARD: drafts a chain in one pass with a model trained for it, at mask tokens after the text.

Its cache holds the text up to the last pass; the next pass processes the new tokens and overwrites the masks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trtspec.core.errors import CheckpointError
from trtspec.engine.drafting.base import Drafter, DrafterConfig, DraftSampling, DraftTokens
from trtspec.engine.drafting.chain import ConfidenceFloor, draft_parallel
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.prefill import PrefixCache, prefill


class ParallelModelDrafter(Drafter):
    """Drafts with a converted checkpoint that has the target's vocabulary and a mask token."""

    def __init__(self, setup: DrafterConfig) -> None:
        if setup.root is None:
            raise CheckpointError("pard needs a draft checkpoint", hint="set speculation.draft")
        room = setup.room
        self._model = Decoder.load(setup.root, room.rows, room.max_len, room.device, room.dtype, room.length)
        self._prefixes = PrefixCache(self._model.cache, room.kept_tokens)
        self._mask = self._model.checkpoint.document.get("mask_token_id", int)
        self._floors = ConfidenceFloor(chain=setup.confidence)
        self._known = [0] * room.rows  # number of tokens of each row's text in the cache
        self.vocab_size = self._model.config.vocab_size

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Fill the draft's cache with the prompts."""
        cached = [self._prefixes.restore(row, prompt) for row, prompt in enumerate(prompts, first_row)]
        prefill(self._model, prompts, first_row, max_tokens, starts=cached)
        self._known[first_row : first_row + len(prompts)] = map(len, prompts)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Draft `depth` tokens: one after the text, and one after each mask."""
        model, starts = self._model, self._known[: len(texts)]
        news = [[*text[start:]] for text, start in zip(texts, starts, strict=True)]
        width = max(map(len, news)) + depth - 1
        tokens = torch.tensor([new + [self._mask] * (width - len(new)) for new in news], device=model.device)
        at = [row * width + len(new) - 1 + step for row, new in enumerate(news) for step in range(depth)]
        logits = model.forward(tokens, model.windows.chain(starts, width), torch.tensor(at, device=model.device))
        self._known[: len(texts)] = map(len, texts)
        return draft_parallel(logits.view(len(texts), depth, -1), sampling, self._floors)

    def keep(self, row: int, text: Sequence[int]) -> None:
        """Add the keys and values of the processed tokens to the prefix cache."""
        self._prefixes.keep(row, text, self._known[row])

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row's cache."""
        self._model.cache.move_row(source, target, length)
        self._known[target] = self._known[source]


DRAFTER = ParallelModelDrafter
