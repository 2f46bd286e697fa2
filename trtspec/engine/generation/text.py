# SPDX-License-Identifier: Apache-2.0
"""Incremental detokenization, and encoding of text that continues another text."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError

# Texts after which a tokenizer may encode the same text differently.
ANCHORS = ("", "a", "!", "\n")


class TextPieces:
    """Decodes and encodes text that does not begin a text: some tokenizers drop the leading space of a first token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode("a", add_special_tokens=False)
        self._anchor_len = len(tokenizer.decode(self._anchor))

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` add to a preceding text."""
        return self._tokenizer.decode([*self._anchor, *ids])[self._anchor_len :]

    def text(self, ids: Sequence[int], *, continues: bool) -> str:
        """Return the text of `ids`, which begin a text or continue one."""
        return self.decode(ids) if continues else self._tokenizer.decode(ids)

    def encode(self, text: str) -> list[int]:
        """Return ids that `decode` maps to exactly this text; raise TrtspecError if they do not exist."""
        for anchor in ANCHORS:
            skip = len(self._tokenizer.encode(anchor, add_special_tokens=False))
            ids = self._tokenizer.encode(anchor + text, add_special_tokens=False)[skip:]
            if self.decode(ids) == text:
                return ids
        raise TrtspecError(f"the stop word {text!r} cannot be encoded with the tokens of this model")


class TextStream:
    """Streams the text of tokens in pieces that do not split characters."""

    def __init__(self, tokenizer: Tokenizer, pieces: TextPieces | None = None) -> None:
        self._tokenizer = tokenizer
        self._pieces = pieces or TextPieces(tokenizer)
        self._held: list[int] = []
        self._begun = False

    def add(self, ids: Sequence[int], *, last: bool) -> tuple[str, int]:
        """Return the text that is complete and its number of tokens; everything at the last call."""
        self._held += ids
        until = len(self._held) if last else self._tokenizer.complete_len(self._held)
        shown, self._held = self._held[:until], self._held[until:]
        if not shown:
            return "", 0
        decode = self._pieces.decode if self._begun else self._tokenizer.decode
        self._begun = True
        return decode(shown), until
