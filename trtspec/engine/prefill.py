# SPDX-License-Identifier: Apache-2.0
"""Prefill a decoder's cache with texts of different lengths, in chunks of a bounded number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trtspec.engine.model.decoder import Decoder

PASS_TOKENS = 64  # a separate pass costs about as much as this many padding tokens


def group_by_length(lens: Sequence[int]) -> list[tuple[int, int]]:
    """Divide texts, whose `lens` ascend, into passes (first, last + 1), minimizing the cost of padding and passes."""
    best = [(0, 0)]  # by the number of texts covered: the cost in tokens, and the start of the last pass
    for end in range(1, len(lens) + 1):
        costs = [best[start][0] + PASS_TOKENS + lens[end - 1] * (end - start) for start in range(end)]
        cost = min(costs)
        best.append((cost, costs.index(cost)))
    passes, end = list[tuple[int, int]](), len(lens)
    while end:
        passes.append((best[end][1], end))
        end = best[end][1]
    return passes[::-1]


@dataclass
class Prefilled:
    """The model's output for some texts.

    `logits` [texts, tail + 1, vocab]: column i is after all but the last tail - i tokens of a text. `features`
    are the hidden states [texts, width, aux_layers * hidden] of each chunk, with the chunk's start.
    """

    logits: Tensor
    features: list[tuple[Tensor, int]] = field(default_factory=list)


def prefill(
    model: Decoder,
    texts: Sequence[Sequence[int]],
    first_row: int,
    max_tokens: int,
    aux_layers: Sequence[int] = (),
    tails: Sequence[int] = (),
    starts: Sequence[int] = (),
) -> Prefilled:
    """Fill rows `first_row`, ... with the texts.

    Shorter texts are padded on the right; padding is masked until real tokens overwrite it.

    Args:
        model: the model whose cache is filled.
        texts: at least one token each.
        first_row: the row of the first text.
        max_tokens: the maximum number of tokens, including padding, in one pass of the model.
        aux_layers: hidden states to return (see `Decoder.forward_with_features`).
        tails: the length of each text's tail in tokens, 0 by default. `logits` beyond it are meaningless.
        starts: the number of leading tokens of each text that its row already holds, 0 by default. At least the tail
            and one more token must remain. `features` then cover only the remaining tokens.
    """
    rows = len(texts)
    tails, starts = tails or [0] * rows, starts or [0] * rows
    texts = [text[start:] for text, start in zip(texts, starts, strict=True)]
    longest = max(map(len, texts))
    padded = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=model.device)
    ends = [[len(text) - 1 - tail] for text, tail in zip(texts, tails, strict=True)]
    wanted = torch.tensor(ends, device=model.device) + torch.arange(max(tails) + 1, device=model.device)
    width = max(1, max_tokens // rows)
    found: Prefilled | None = None
    for start in range(0, longest, width):
        chunk = padded[:, start : start + width]
        window = model.windows.chain([before + start for before in starts], chunk.shape[1], first_row)
        here = wanted - start
        first = torch.arange(rows, device=model.device).unsqueeze(1) * chunk.shape[1]
        at = (here.clamp(0, chunk.shape[1] - 1) + first).flatten()
        logits, features = model.forward_with_features(chunk, window, aux_layers, at)
        logits = logits.view(*wanted.shape, -1)
        if found is None:
            found = Prefilled(logits)
        else:
            found.logits = torch.where((here >= 0).unsqueeze(2), logits, found.logits)
        if features is not None:
            found.features.append((features.view(rows, chunk.shape[1], -1), start))
    if found is None:
        raise ValueError("texts must have at least one token")
    return found
