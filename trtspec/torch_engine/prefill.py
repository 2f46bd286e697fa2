# SPDX-License-Identifier: Apache-2.0
"""Prefill a decoder's cache with texts of different lengths, in chunks of a bounded number of tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trtspec.torch_engine.model.decoder import Decoder
from trtspec.torch_engine.model.windows import Window

PASS_TOKENS = 64  # a pass of its own costs about what so many tokens of padding cost


def alike(lens: Sequence[int]) -> list[tuple[int, int]]:
    """Divide texts, whose `lens` ascend, into passes (first, last + 1): little padding in few of them."""
    best = [(0, 0)]  # by how many of the texts are taken: the cost in tokens, and where the last pass begins
    for end in range(1, len(lens) + 1):
        costs = [best[start][0] + PASS_TOKENS + lens[end - 1] * (end - start) for start in range(end)]
        cost = min(costs)
        best.append((cost, costs.index(cost)))
    passes, end = list[tuple[int, int]](), len(lens)
    while end:
        passes.append((best[end][1], end))
        end = best[end][1]
    return passes[::-1]


@dataclass(frozen=True)
class Chunk:
    """What is read of texts in one pass: `tokens` [texts, width], number `start` of each unread part and on.

    `at` are the flat indices of the tokens whose logits are wanted; those of a text that does not end here are of no
    use, as `ends` [texts, tail + 1], the places of the wanted ones in the chunk, tell.
    """

    tokens: Tensor
    window: Window
    ends: Tensor
    at: Tensor
    start: int


@dataclass
class Prefilled:
    """The model's output for some texts, once the chunks are added one after the other.

    `logits` [texts, tail + 1, vocab]: column i is after all but the last tail - i tokens of a text. `features`
    are the hidden states [texts, width, aux_layers * hidden] of each chunk, and where it starts.
    """

    logits: Tensor = field(default_factory=lambda: torch.empty(0))
    features: list[tuple[Tensor, int]] = field(default_factory=list)

    def add(self, chunk: Chunk, logits: Tensor, features: Tensor | None) -> None:
        """Take what the model's pass over the chunk gave."""
        logits = logits.view(*chunk.ends.shape, -1)
        self.logits = torch.where((chunk.ends >= 0).unsqueeze(2), logits, self.logits) if chunk.start else logits
        if features is not None:
            self.features.append((features.view(*chunk.tokens.shape, -1), chunk.start))


def prefill(
    model: Decoder,
    texts: Sequence[Sequence[int]],
    first_row: int,
    max_tokens: int,
    aux_layers: Sequence[int] = (),
    tails: Sequence[int] = (),
    starts: Sequence[int] = (),
) -> Prefilled:
    """Fill rows `first_row`, ... with the texts; `aux_layers` are hidden states that are wanted, the rest see `chunks`.

    `features` are those of what the rows do not hold already.
    """
    found = Prefilled()
    for chunk in chunks(model, texts, first_row, max_tokens, tails, starts):
        found.add(chunk, *model.forward_with_features(chunk.tokens, chunk.window, aux_layers, chunk.at))
    return found


def chunks(
    model: Decoder,
    texts: Sequence[Sequence[int]],
    first_row: int,
    max_tokens: int,
    tails: Sequence[int] = (),
    starts: Sequence[int] = (),
) -> Iterator[Chunk]:
    """Yield the passes that fill rows `first_row`, ... with texts.

    Shorter texts are padded on the right; padding is masked until real tokens overwrite it.

    Args:
        model: the model whose cache is filled.
        texts: at least one token each.
        first_row: the row of the first text.
        max_tokens: the most tokens, padding included, in one pass of the model.
        tails: how many tokens at the end of each text are its tail, by default 0. `logits` beyond it are meaningless.
        starts: how many tokens at the beginning of each text its row holds already, by default 0: at most all but the
            tail and one more.
    """
    rows = len(texts)
    tails, starts = tails or [0] * rows, starts or [0] * rows
    texts = [text[start:] for text, start in zip(texts, starts, strict=True)]
    longest = max(map(len, texts))
    padded = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts], device=model.device)
    ends = [[len(text) - 1 - tail] for text, tail in zip(texts, tails, strict=True)]
    wanted = torch.tensor(ends, device=model.device) + torch.arange(max(tails) + 1, device=model.device)
    width = max(1, max_tokens // rows)
    for start in range(0, longest, width):
        tokens = padded[:, start : start + width]
        window = model.windows.chain([before + start for before in starts], tokens.shape[1], first_row)
        here = wanted - start
        first = torch.arange(rows, device=model.device).unsqueeze(1) * tokens.shape[1]
        at = (here.clamp(0, tokens.shape[1] - 1) + first).flatten()
        yield Chunk(tokens, window, here, at, start)
