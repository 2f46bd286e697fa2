# SPDX-License-Identifier: Apache-2.0
"""The end of a growing text: before an end token, or with the token that completes a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.checkpoint.tokenizer import Tokenizer

STOP_MARGIN = 8  # tokens before a stop text that the decoder may need to get its beginning right


@dataclass(frozen=True)
class Endings:
    """The end conditions of one text; stop texts need the tokenizer."""

    end_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None

    def cut(self, text: Sequence[int], new: Sequence[int]) -> tuple[list[int], str | None]:
        """Return what `new` adds to an output `text` that has not ended, and "end_id" or "stop" if it ends now.

        The text does not include an end token; it includes a stop text and the whole token that completes it.
        """
        until = next((place for place, token in enumerate(new) if token in self.end_ids), len(new))
        ended = "end_id" if until < len(new) else None
        kept = list(new[:until])
        stopped = self._stop(text, kept) if self.stop else None
        return (kept, ended) if stopped is None else (kept[:stopped], "stop")

    def _stop(self, text: Sequence[int], new: Sequence[int]) -> int | None:
        """Return the number of new tokens up to the first complete stop text."""
        if self.tokenizer is None:
            raise ValueError("stop texts need a tokenizer")
        reach = max(len(stop.encode()) for stop in self.stop) + STOP_MARGIN
        before = list(text[-reach:])
        for length in range(1, len(new) + 1):
            shown = self.tokenizer.decode([*before, *new[:length]])
            if any(stop in shown for stop in self.stop):
                return length
        return None
