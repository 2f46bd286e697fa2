# SPDX-License-Identifier: Apache-2.0
"""Stop conditions of a growing text: it ends before an end token, or with the token that completes a stop text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.checkpoints.tokenizer import Tokenizer

STOP_MARGIN = 8  # tokens of context that decoding the beginning of a stop text may need


@dataclass(frozen=True)
class StopConditions:
    """The stop conditions of one text; stop texts need the tokenizer and are ignored before `min_tokens` of output."""

    end_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    min_tokens: int = 0

    def cut(self, text: Sequence[int], new: Sequence[int]) -> tuple[list[int], str | None]:
        """Return the tokens of `new` to append to an unfinished output `text`, and "end_id" or "stop" if it ends now.

        The text does not include an end token; it includes a stop text and the whole token that completes it.
        """
        until = next((at for at, token in enumerate(new) if token in self.end_ids), len(new))
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
        first = max(1, self.min_tokens - len(text))
        earlier = self.tokenizer.decode([*before, *new[: first - 1]]) if self.min_tokens else ""
        for length in range(first, len(new) + 1):
            shown = self.tokenizer.decode([*before, *new[:length]])
            if any(shown.rfind(stop) > earlier.rfind(stop) for stop in self.stop):
                return length
        return None
