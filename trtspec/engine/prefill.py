# SPDX-License-Identifier: Apache-2.0
"""Prefill of a decoder's cache with texts of different lengths, and reuse of the prefixes of finished texts.

Texts are processed in chunks of a bounded number of tokens. The prefix cache keeps the keys and values of system
prompts and conversations that requests share. BLS clients resend the whole text on each call and benefit too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from trtspec.engine.device import pad_rows
from trtspec.engine.model.decoder import Decoder, KVCache

Ids = npt.NDArray[np.int32]
Slots = npt.NDArray[np.int64]
PASS_TOKENS = 64  # a separate pass costs about as much as this many padding tokens


@dataclass(frozen=True)
class CachedPrefix:
    """Token ids of a cached text, and the slots of their keys and values."""

    ids: Ids
    slots: Slots


class PrefixCache:
    """Cache of finished texts with at most `max_tokens` in total; the least recently used text is evicted first.

    Keys and values are stored in one tensor that is allocated once. Separate allocations of varying length and age
    would fragment the allocator's memory.
    """

    def __init__(self, cache: KVCache, max_tokens: int) -> None:
        self._cache, self._max_tokens = cache, max_tokens
        layers, _, *heads = cache.row(0, 0).shape
        self._content = cache.row(0, 0).new_empty((layers, max_tokens, *heads))
        self._stack, self._free = np.arange(max_tokens), max_tokens  # the first `_free` of these slots are free
        self._kept: list[CachedPrefix] = []  # in the order of their last use

    def retain(self, row: int, text: Sequence[int], length: int) -> None:
        """Cache the first `length` tokens of a row's text with their keys and values; skip texts over `max_tokens`."""
        ids = np.array(text[:length], np.int32)
        if not 0 < len(ids) <= self._max_tokens:
            return
        for kept in [kept for kept, common in self._common_prefixes(ids) if common == len(kept.ids)]:
            self._drop(kept)
        while len(ids) > self._free:
            self._drop(self._kept[0])
        self._free -= len(ids)
        slots = self._stack[self._free : self._free + len(ids)].copy()
        self._content.index_copy_(1, self._index(slots), self._cache.row(row, len(ids)))
        self._kept.append(CachedPrefix(ids, slots))

    def cached_length(self, text: Sequence[int]) -> int:
        """Return the number of leading tokens of a text that are cached; the last token never counts."""
        return self._longest(text)[1]

    def restore(self, row: int, text: Sequence[int]) -> int:
        """Copy the cached prefix of a text into a row; return its number of tokens."""
        kept, length = self._longest(text)
        if kept and length:
            self._forget(kept)
            self._kept.append(kept)
            self._cache.row(row, length).copy_(self._content.index_select(1, self._index(kept.slots[:length])))
        return length

    def _index(self, slots: Slots) -> torch.Tensor:
        return torch.from_numpy(slots).to(self._content.device)

    def _longest(self, text: Sequence[int]) -> tuple[CachedPrefix | None, int]:
        """Return the cached text with the longest common prefix, and the length of that prefix."""
        return max(self._common_prefixes(np.array(text[:-1], np.int32)), key=itemgetter(1), default=(None, 0))

    def _common_prefixes(self, ids: Ids) -> Iterator[tuple[CachedPrefix, int]]:
        """Yield the cached texts that begin with the same token, each with the length of the common prefix."""
        for kept in self._kept:
            if len(ids) and ids[0] == kept.ids[0]:
                yield kept, _common(ids, kept.ids)

    def _drop(self, kept: CachedPrefix) -> None:
        self._forget(kept)
        self._stack[self._free : self._free + len(kept.slots)] = kept.slots
        self._free += len(kept.slots)

    def _forget(self, kept: CachedPrefix) -> None:
        self._kept = [other for other in self._kept if other is not kept]


def _common(one: Ids, other: Ids) -> int:
    """Return the length of the common prefix of two non-empty texts."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax())
    return first if differs[first] else length


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
    """Output of the model for some texts.

    `logits` are [texts, tail + 1, vocab]; column i has the logits after all but the last tail - i tokens of a text.
    `features` are the hidden states [texts, width, aux_layers * hidden] of each chunk, with the chunk's start.
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
    """Write the keys and values of the texts to rows `first_row`, `first_row` + 1, ... of the model's cache.

    Shorter texts are padded on the right; padding is masked until real tokens overwrite it.

    Args:
        model: the model whose cache is filled.
        texts: at least one token each.
        first_row: the row of the first text.
        max_tokens: the maximum number of tokens, including padding, in one pass of the model.
        aux_layers: hidden states to return (see `Decoder.forward_with_features`).
        tails: the length of each text's tail in tokens, 0 by default. `logits` beyond it are meaningless.
        starts: the number of leading tokens of each text that are already in its row, 0 by default. At least the tail
            and one more token must remain. `features` then cover only the remaining tokens.
    """
    rows = len(texts)
    tails, starts = tails or [0] * rows, starts or [0] * rows
    texts = [text[start:] for text, start in zip(texts, starts, strict=True)]
    padded = pad_rows(texts, model.device)
    ends = [[len(text) - 1 - tail] for text, tail in zip(texts, tails, strict=True)]
    wanted = torch.tensor(ends, device=model.device) + torch.arange(max(tails) + 1, device=model.device)
    width = max(1, max_tokens // rows)
    found: Prefilled | None = None
    for start in range(0, padded.shape[1], width):
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
