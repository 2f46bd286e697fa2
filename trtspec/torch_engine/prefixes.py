# SPDX-License-Identifier: Apache-2.0
"""Keys and values of texts that ended, for requests that begin with the same tokens: a system prompt, a conversation.

Who asks for a text piece by piece, as a loop over two models does, sends all of it each time too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from operator import itemgetter

import numpy as np
import numpy.typing as npt
from torch import Tensor

from trtspec.torch_engine.model.cache import KVCache


class PrefixStore:
    """Texts of at most `max_tokens` together, the one that was used longest ago dropped first."""

    def __init__(self, cache: KVCache, max_tokens: int) -> None:
        self._cache, self._max_tokens, self._tokens = cache, max_tokens, 0
        self._kept: OrderedDict[int, tuple[npt.NDArray[np.int64], Tensor]] = OrderedDict()
        self._next = 0

    def keep(self, row: int, text: Sequence[int]) -> None:
        """Keep the keys and values of all but the last token of a text, which has not been a model's input yet."""
        ids = np.array(text[:-1], np.int64)
        if not 0 < len(ids) <= self._max_tokens:
            return
        for number in [number for number, (other, _) in self._kept.items() if _common(ids, other) == len(other)]:
            self._drop(number)
        while self._tokens + len(ids) > self._max_tokens:
            self._drop(next(iter(self._kept)))
        self._kept[self._next] = ids, self._cache.read_row(row, len(ids))
        self._next += 1
        self._tokens += len(ids)

    def known(self, text: Sequence[int]) -> int:
        """Return how many tokens of the beginning of a text are kept, never the last one."""
        return self._longest(text)[0]

    def restore(self, row: int, text: Sequence[int]) -> int:
        """Write what is kept of the beginning of a text into a row; returns how many tokens."""
        length, number = self._longest(text)
        if length:
            self._kept.move_to_end(number)
            self._cache.write_row(row, self._kept[number][1][:, :length])
        return length

    def _longest(self, text: Sequence[int]) -> tuple[int, int]:
        """Return how much of a text the one has that has the most of it, and its number."""
        ids = np.array(text[:-1], np.int64)
        found = [(_common(ids, other), number) for number, (other, _) in self._kept.items()]
        return max(found, key=itemgetter(0), default=(0, 0))

    def _drop(self, number: int) -> None:
        ids, _ = self._kept.pop(number)
        self._tokens -= len(ids)


def _common(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> int:
    """Return how many tokens two texts begin with alike."""
    length = min(len(one), len(other))
    differs = one[:length] != other[:length]
    return int(differs.argmax()) if differs.any() else length
