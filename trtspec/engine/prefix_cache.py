# SPDX-License-Identifier: Apache-2.0
"""Keys and values of texts that ended, for requests that begin with the same tokens: a system prompt, a conversation.

Who asks for a text piece by piece, as a loop over two models does, sends all of it each time too.
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
class Kept:
    """The beginning of a text: its tokens, and the slots of their keys and values."""

    ids: Ids
    slots: Slots


class PrefixStore:
    """Texts of at most `max_tokens` together, the one that was used longest ago dropped first.

    Their keys and values lie in one tensor that is allocated once: pieces of all lengths, each as old as its text,
    would keep an allocator from giving back what lies between them.
    """

    def __init__(self, cache: KVCache, max_tokens: int) -> None:
        self._cache, self._max_tokens = cache, max_tokens
        layers, _, *heads = cache.row(0, 0).shape
        self._content = cache.row(0, 0).new_empty((layers, max_tokens, *heads))
        self._stack, self._free = np.arange(max_tokens), max_tokens  # the first `_free` of these slots hold nothing
        self._kept: list[Kept] = []  # in the order of their last use

    def keep(self, row: int, text: Sequence[int], length: int) -> None:
        """Keep the first `length` tokens of a text, all of one that is shorter, as the row has them."""
        ids = np.array(text[:length], np.int32)
        if not 0 < len(ids) <= self._max_tokens:
            return
        for kept in [kept for kept, common in self._alike(ids) if common == len(kept.ids)]:
            self._drop(kept)
        while len(ids) > self._free:
            self._drop(self._kept[0])
        self._free -= len(ids)
        slots = self._stack[self._free : self._free + len(ids)].copy()
        self._content.index_copy_(1, self._index(slots), self._cache.row(row, len(ids)))
        self._kept.append(Kept(ids, slots))

    def known(self, text: Sequence[int]) -> int:
        """Return how many tokens of the beginning of a text are kept, never the last one."""
        return self._longest(text)[1]

    def restore(self, row: int, text: Sequence[int]) -> int:
        """Write what is kept of the beginning of a text into a row; returns how many tokens."""
        kept, length = self._longest(text)
        if kept and length:
            self._forget(kept)
            self._kept.append(kept)
            self._cache.row(row, length).copy_(self._content.index_select(1, self._index(kept.slots[:length])))
        return length

    def _index(self, slots: Slots) -> torch.Tensor:
        return torch.from_numpy(slots).to(self._content.device)

    def _longest(self, text: Sequence[int]) -> tuple[Kept | None, int]:
        """Return which text has the most of a text's beginning, and how much."""
        return max(self._alike(np.array(text[:-1], np.int32)), key=itemgetter(1), default=(None, 0))

    def _alike(self, ids: Ids) -> Iterator[tuple[Kept, int]]:
        """Yield the texts that begin with the same token, and with how many of them."""
        for kept in self._kept:
            if len(ids) and ids[0] == kept.ids[0]:
                yield kept, _common(ids, kept.ids)

    def _drop(self, kept: Kept) -> None:
        self._forget(kept)
        self._stack[self._free : self._free + len(kept.slots)] = kept.slots
        self._free += len(kept.slots)

    def _forget(self, kept: Kept) -> None:
        self._kept = [other for other in self._kept if other is not kept]


def _common(one: Ids, other: Ids) -> int:
    """Return how many tokens two texts of one at least begin with alike."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    first = int(differs.argmax())
    return first if differs[first] else length
