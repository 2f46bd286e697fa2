# SPDX-License-Identifier: Apache-2.0
"""Drafting a chain with a language model, one token a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from trtspec.torch_engine.drafting.base import Draft, DraftSampling
from trtspec.torch_engine.model.windows import Window


def draft_chain(
    forward: Callable[[Tensor, Window], Tensor],
    tokens: Tensor,
    windows: Sequence[Window],
    sampling: DraftSampling | None,
    stop_below: float,
) -> Draft:
    """Draft one token for each window, until no row has a next token that is probable enough.

    Args:
        forward: returns each row's logits [rows, vocab] after tokens at a window.
        tokens: [rows, width of the first window], the end of each text; the other windows are one token wide.
        windows: the positions of the tokens.
        sampling: how rows sample; None where all are greedy.
        stop_below: a row's chain ends where no token is this probable to the draft; 0 for never.
    """
    rows, device = len(tokens), tokens.device
    chain, all_probs, sure = [], [], [True] * rows
    lens = [0] * rows
    for step, window in enumerate(windows):
        logits = forward(tokens, window)
        if stop_below:
            sure = [was and is_ for was, is_ in zip(sure, _are_sure(logits, stop_below), strict=True)]
            if not any(sure):
                break
        if sampling is None:
            tokens = logits.argmax(-1)
        else:
            probs = sampling.params.probs(logits)
            all_probs.append(probs)
            tokens = sampling.draw(probs, step)
        chain.append(tokens)
        lens = [length + one for length, one in zip(lens, sure, strict=True)]
    if not chain:
        return Draft(torch.empty((rows, 0), dtype=torch.int64, device=device))
    return Draft(torch.stack(chain, 1), torch.stack(all_probs, 1) if all_probs else None, lens=lens)


def _are_sure(logits: Tensor, stop_below: float) -> list[bool]:
    """Decide by the draft's distribution before a token is sampled: by the sampled token it would bias the text."""
    sure: list[bool] = (torch.softmax(logits.float(), -1).amax(-1) >= stop_below).tolist()
    return sure
