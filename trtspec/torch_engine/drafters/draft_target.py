# SPDX-License-Identifier: Apache-2.0
"""A smaller model drafts a chain, one token a step.

Its cache always lacks the last two tokens of the text, which the first step of a proposal reads. One of them may have
been in it before, but this way all rows have the same width whatever was accepted, and nothing is rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.errors import CheckpointError
from trtspec.torch_engine.drafting.base import Draft, Drafter, DraftSampling, Setup
from trtspec.torch_engine.drafting.chain import Floors, draft_chain
from trtspec.torch_engine.model.decoder import Decoder
from trtspec.torch_engine.model.windows import Window
from trtspec.torch_engine.prefill import prefill


class ModelDrafter(Drafter):
    """Drafts with a converted checkpoint that has the target's vocabulary."""

    def __init__(self, setup: Setup) -> None:
        if setup.root is None:
            raise CheckpointError("draft_target needs a draft checkpoint", hint="name one under speculation.draft")
        room = setup.room
        self._model = Decoder.load(setup.root, room.rows, room.max_len, room.device, room.dtype, room.length)
        self._floors = Floors(setup.options.stop_below, setup.confidence)
        self._draws: bool = setup.options.use_draft_logits
        self.vocab_size = self._model.config.vocab_size

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Fill the draft's cache with the prompts."""
        prefill(self._model, prompts, first_row, max_tokens)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> Draft:
        """Draft one token a step, until no row goes on."""
        model = self._model
        starts = [len(text) - 2 for text in texts]
        windows = [model.windows.chain(starts, 2), *model.windows.singles([start + 2 for start in starts], depth - 1)]
        tokens = torch.tensor([text[-2:] for text in texts], device=model.device)
        seconds = torch.arange(1, 2 * len(texts), 2, device=model.device)

        def forward(tokens: Tensor, window: Window) -> Tensor:
            return model.forward(tokens, window, seconds if window.width == 2 else None)

        return draft_chain(forward, tokens, windows, sampling if self._draws else None, self._floors)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row in the draft's cache."""
        self._model.cache.move_row(source, target, length)


DRAFTER = ModelDrafter
