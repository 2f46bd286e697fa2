# SPDX-License-Identifier: Apache-2.0
"""Prefix cache: keys and values of finished texts, for requests that begin with the same tokens.

Requests share system prompts and conversations. BLS clients resend the whole text on each call and benefit too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import numpy.typing as npt
import torch

from trtspec.engine.model.cache import KVCache

Ids = npt.NDArray[np.int32]
Slots = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CachedPrefix:
    """The first tokens of a text, and the slots of their keys and values."""

    ids: Ids
    slots: Slots


class PrefixCache:
    """Cached texts of at most `max_tokens` in total; the least recently used text is evicted first.

    Keys and values are stored in one tensor that is allocated once. Separate allocations of varying length and age
    would fragment the allocator's memory.
    """

    def __init__(self, cache: KVCache, max_tokens: int) -> None:
        self._cache, self._max_tokens = cache, max_tokens
        layers, _, *heads = cache.row(0, 0).shape
        self._content = cache.row(0, 0).new_empty((layers, max_tokens, *heads))
        self._stack, self._free = np.arange(max_tokens), max_tokens  # the first `_free` of these slots are free
        self._kept: list[CachedPrefix] = []  # in the order of their last use

    def keep(self, row: int, text: Sequence[int], length: int) -> None:
        """Cache the first `length` tokens of a text, or all of a shorter text, with their keys and values of a row."""
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

    def known(self, text: Sequence[int]) -> int:
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
