# SPDX-License-Identifier: Apache-2.0
"""A smaller model drafts a chain, one token a step.

Its cache is always two tokens short of the text: the first step of a proposal takes in the last two. One of them it
may have seen, but then every row has the same width whatever was accepted, and nothing has to be rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from trtspec.engines.embedded.decoder import Decoder
from trtspec.engines.embedded.drafters.base import Draft, Room
from trtspec.engines.embedded.prefill import prefill
from trtspec.errors import CheckpointError
from trtspec.kernels.chain import Warp, pick


class ModelDrafter:
    """Drafts with a converted checkpoint of the target's vocabulary."""

    def __init__(self, root: Path | None, room: Room) -> None:
        if root is None:
            raise CheckpointError("draft_target needs a draft checkpoint", hint="name one under speculation.draft")
        self._model = Decoder(root, room.rows, room.max_len, room.device, room.dtype)
        self.vocab_size = self._model.config.vocab_size

    def prefill(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Fill the draft's cache with the prompts."""
        prefill(self._model, prompts, first_row, max_tokens)

    def propose(
        self, texts: Sequence[Sequence[int]], draft_len: int, warp: Warp | None, uniforms: Tensor | None
    ) -> Draft:
        """Draft one token a step, each after the one before."""
        model, rows = self._model, len(texts)
        starts = [len(text) - 2 for text in texts]
        windows = [model.window(starts, 2), *model.single_windows([start + 2 for start in starts], draft_len - 1)]
        tokens = torch.tensor([text[-2:] for text in texts], device=model.device)
        at: Tensor | None = torch.arange(1, 2 * rows, 2, device=model.device)
        chain, all_probs = [], []
        for step, window in enumerate(windows):
            logits = model.forward(tokens, window, at)
            if warp is None or uniforms is None:
                tokens = logits.argmax(-1)
            else:
                probs = warp.probs(logits)
                all_probs.append(probs)
                tokens = pick(probs, uniforms[:, step])
            chain.append(tokens)
            at = None
        return Draft(torch.stack(chain, 1), torch.stack(all_probs, 1) if all_probs else None)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row in the draft's cache."""
        self._model.cache.move_row(source, target, length)


DRAFTER = ModelDrafter
