# SPDX-License-Identifier: Apache-2.0
"""Text in pieces: what tokens add to a text, and tokens that add a given text."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError

# Texts after which a tokenizer may write the same words in other tokens.
ANCHORS = ("", "a", "!", "\n")


class Pieces:
    """Text that does not begin a text: some tokenizers drop the space that their first token stands for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._anchor = tokenizer.encode("a", add_special_tokens=False)
        self._anchor_len = len(tokenizer.decode(self._anchor))

    def decode(self, ids: Sequence[int]) -> str:
        """Return what `ids` add to a text that goes before them."""
        return self._tokenizer.decode([*self._anchor, *ids])[self._anchor_len :]

    def text(self, ids: Sequence[int], *, continues: bool) -> str:
        """Return the text of `ids`, which begin a text or go on with one."""
        return self.decode(ids) if continues else self._tokenizer.decode(ids)

    def encode(self, text: str) -> list[int]:
        """Return ids that `decode` to exactly this text."""
        for anchor in ANCHORS:
            skip = len(self._tokenizer.encode(anchor, add_special_tokens=False))
            ids = self._tokenizer.encode(anchor + text, add_special_tokens=False)[skip:]
            if self.decode(ids) == text:
                return ids
        raise TrtspecError(f"the stop word {text!r} cannot be written in the tokens of this model")


class TextStream:
    """The text of tokens as they come, in pieces that add up to it and break no character."""

    def __init__(self, tokenizer: Tokenizer, pieces: Pieces | None = None) -> None:
        self._tokenizer = tokenizer
        self._pieces = pieces or Pieces(tokenizer)
        self._held: list[int] = []
        self._begun = False

    def add(self, ids: Sequence[int], *, last: bool) -> tuple[str, int]:
        """Return what can be shown now, and how many tokens that is; everything at the last call."""
        self._held += ids
        until = len(self._held) if last else self._tokenizer.complete_len(self._held)
        shown, self._held = self._held[:until], self._held[until:]
        if not shown:
            return "", 0
        decode = self._pieces.decode if self._begun else self._tokenizer.decode
        self._begun = True
        return decode(shown), until
