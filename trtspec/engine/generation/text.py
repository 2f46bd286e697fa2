# SPDX-License-Identifier: Apache-2.0
"""Text of a request's tokens: incremental detokenization, encoding of continuations, and stop conditions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError

# Prefixes to try in `encode`: a tokenizer may encode a text differently after each of them.
ANCHORS = ("", "a", "!", "\n")
STOP_MARGIN = 8  # tokens of context that decoding the beginning of a stop text may need


def begun_length(text: str, marker: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `marker`."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)


class TextPieces:
    """Codec for text that continues other text: some tokenizers drop the leading space of a first token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode("a", add_special_tokens=False)
        self._anchor_len = len(tokenizer.decode(self._anchor))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` add to a preceding text."""
        return self._tokenizer.decode([*self._anchor, *ids])[self._anchor_len :]

    def part(self, token: int) -> bytes:
        """Return the bytes of a token that is a part of a character; b"" for a token with a text of its own."""
        return self._tokenizer.fragment_bytes.get(token, b"")

    def text(self, ids: Sequence[int], *, continues: bool) -> str:
        """Return the text of `ids`, which continue a text or begin one."""
        return self.decode(ids) if continues else self._tokenizer.decode(ids)

    def encode(self, text: str) -> list[int]:
        """Return ids that `decode` maps to exactly this text; raise TrtspecError if such ids do not exist."""
        for anchor in ANCHORS:
            skip = len(self._tokenizer.encode(anchor, add_special_tokens=False))
            ids = self._tokenizer.encode(anchor + text, add_special_tokens=False)[skip:]
            if self.decode(ids) == text:
                return ids
        raise TrtspecError(f"the stop word {text!r} cannot be encoded with the tokens of this model")


class TextStream:
    """Incremental decoder that returns text in pieces that do not split characters."""

    def __init__(self, tokenizer: Tokenizer, pieces: TextPieces | None = None) -> None:
        self._tokenizer = tokenizer
        self._pieces = pieces or TextPieces(tokenizer)
        self._held: list[int] = []
        self._begun = False

    def add(self, ids: Sequence[int], *, last: bool) -> tuple[str, int]:
        """Return (complete text, its number of tokens) after adding `ids`; with `last`, return everything left."""
        if not self._held and ids and (text := self._tokenizer.join_texts(ids)) is not None:
            self._begun = True
            return text, len(ids)
        shown = [*self._held, *ids]
        until = len(shown) if last else self._tokenizer.complete_len(shown)
        if until < len(shown) or self._held:
            shown, self._held = shown[:until], shown[until:]
        if not shown:
            return "", 0
        decode = self._pieces.decode if self._begun else self._tokenizer.decode
        self._begun = True
        return decode(shown), until


@dataclass(frozen=True)
class StopConditions:
    """Stop conditions of one text; stop texts require the tokenizer and are ignored before `min_tokens` of output."""

    end_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    tokenizer: Tokenizer | None = None
    min_tokens: int = 0

    def cut(self, text: Sequence[int], new: Sequence[int]) -> tuple[list[int], str | None]:
        """Return the tokens of `new` to append to the output `text`, and "end_id", "stop" or None if it continues.

        The end token is not appended. A stop text is appended, with the whole token that completes it.
        """
        until = next((at for at, token in enumerate(new) if token in self.end_ids), len(new))
        ended = "end_id" if until < len(new) else None
        kept = list(new[:until])
        stopped = self._stop(text, kept) if self.stop else None
        return (kept, ended) if stopped is None else (kept[:stopped], "stop")

    def _stop(self, text: Sequence[int], new: Sequence[int]) -> int | None:
        """Return the number of new tokens up to the first complete stop text, or None."""
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
