# SPDX-License-Identifier: Apache-2.0
"""A smaller model drafts a chain, one token a step.

Its cache is always two tokens short of the text: the first step of a proposal takes in the last two. One of them it
may have seen, but then every row has the same width whatever was accepted, and nothing has to be rolled back.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.engines.embedded.decoder import Decoder
from trtspec.engines.embedded.drafters.base import Draft, Drafter, Sampling, Setup
from trtspec.engines.embedded.prefill import prefill
from trtspec.errors import CheckpointError


class ModelDrafter(Drafter):
    """Drafts with a converted checkpoint of the target's vocabulary."""

    def __init__(self, setup: Setup) -> None:
        if setup.root is None:
            raise CheckpointError("draft_target needs a draft checkpoint", hint="name one under speculation.draft")
        room = setup.room
        self._model = Decoder(setup.root, room.rows, room.max_len, room.device, room.dtype)
        self._stop_below: float = setup.options.stop_below
        self.vocab_size = self._model.config.vocab_size

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Fill the draft's cache with the prompts."""
        prefill(self._model, prompts, first_row, max_tokens)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: Sampling | None) -> Draft:
        """Draft one token a step, each after the one before, until no row is sure enough of its next one."""
        model, rows = self._model, len(texts)
        starts = [len(text) - 2 for text in texts]
        windows = [model.windows.chain(starts, 2), *model.windows.singles([start + 2 for start in starts], depth - 1)]
        tokens = torch.tensor([text[-2:] for text in texts], device=model.device)
        at: Tensor | None = torch.arange(1, 2 * rows, 2, device=model.device)
        chain, all_probs, sure = [], [], [True] * rows
        lens = [0] * rows
        for step, window in enumerate(windows):
            logits = model.forward(tokens, window, at)
            if self._stop_below:
                sure = [was and is_ for was, is_ in zip(sure, self._is_sure(logits), strict=True)]
                if not any(sure):
                    break
            if sampling is None:
                tokens = logits.argmax(-1)
            else:
                probs = sampling.warp.probs(logits)
                all_probs.append(probs)
                tokens = sampling.draw(probs, step)
            chain.append(tokens)
            lens = [length + one for length, one in zip(lens, sure, strict=True)]
            at = None
        if not chain:
            return Draft(torch.empty((rows, 0), dtype=torch.int64, device=model.device))
        return Draft(torch.stack(chain, 1), torch.stack(all_probs, 1) if all_probs else None, lens=lens)

    def _is_sure(self, logits: Tensor) -> list[bool]:
        """Tell by the draft's own distribution, before a token is drawn from it: by the token it would bias the text."""
        sure: list[bool] = (torch.softmax(logits.float(), -1).amax(-1) >= self._stop_below).tolist()
        return sure

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row in the draft's cache."""
        self._model.cache.move_row(source, target, length)


DRAFTER = ModelDrafter
