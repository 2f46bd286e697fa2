# SPDX-License-Identifier: Apache-2.0
"""What a request from text brings as token ids; a text that no prompt can be is refused before it is tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.text import Pieces
from trtspec.serving.triton.python_models.fields import shown
from trtspec.serving.triton.python_models.tensors import NO_ID, check_end_id


@dataclass(frozen=True)
class TextBound:
    """The longest text that so many tokens can be, since to tokenize a longer one takes seconds."""

    max_tokens: int  # 0: any text
    max_bytes: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_tokens: int) -> TextBound:
        """Return the bound of a tokenizer's texts."""
        return cls(max_tokens, max_tokens * max(len(token.encode()) for token in tokenizer.vocabulary))

    def check(self, text: str) -> None:
        """Raise TrtspecError for a text that has more tokens, whatever they are."""
        if 0 < self.max_bytes < len(text):  # which has at least as many bytes
            raise TrtspecError(
                f"text_input has {len(text):,} characters, and {self.max_tokens} tokens, which are the most that are "
                f"taken, are at most {self.max_bytes:,} bytes"
            )


class TextReader:
    """Tokenizes prompts and words; used by many threads at once, whose texts do not wait for each other."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_tokens: int,
        *,
        stops_at_all: bool = False,
        vocab_size: int = 0,
        is_nvidia: bool = False,
    ) -> None:
        """Read texts of at most `max_tokens` (0: any); with `stops_at_all` further end ids are stop words.

        The model has `vocab_size` logits, padding included; 0: as many as the tokenizer has tokens. With `is_nvidia`
        the eos token alone ends a text, and the pad token pads.
        """
        self._is_nvidia = is_nvidia
        self._tokenizer, self._vocab_size = tokenizer, vocab_size or tokenizer.vocab_size
        self._bound = TextBound.of(tokenizer, max_tokens)
        self._stops_at_all = stops_at_all
        self.pieces = Pieces(tokenizer)

    def prompt(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a prompt; raises TrtspecError for an empty one, or one that cannot be short enough."""
        text = "".join(texts)
        self._bound.check(text)
        if ids := self._tokenizer.encode(text, add_special_tokens):
            return ids
        raise TrtspecError("text_input is empty")

    def words(self, texts: Sequence[str]) -> list[list[int]]:
        """Return words as ids; raises TrtspecError for one that cannot be written in tokens."""
        return [self.pieces.encode(text) for text in texts]

    def bias(self, texts: Sequence[str], weights: Sequence[float]) -> npt.NDArray[np.float32] | None:
        """Return what is added to the logits [vocab_size] of each token of words; None where no word is given.

        TensorRT-LLM refuses one of another length (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/batch_manager/
        createNewDecoderRequests.cpp@b35ac1b6). Raises TrtspecError where words and weights are not as many, and for a
        word whose token has no logit.
        """
        if len(texts) != len(weights):
            raise TrtspecError(f"embedding_bias_words are {len(texts)}, and embedding_bias_weights {len(weights)}")
        if not texts:
            return None
        bias = np.zeros(self._vocab_size, np.float32)
        for text, ids, weight in zip(texts, self.words(texts), weights, strict=True):
            if max(ids, default=0) >= self._vocab_size:
                raise TrtspecError(
                    f"embedding_bias_words has {shown(text)}, and the model has no logit for all its tokens"
                )
            np.add.at(bias, ids, weight)
        return bias

    def pad_id(self, given: int | None, end_id: int) -> int:
        """Return the id that pads: what a request gave, NVIDIA's models the tokenizer's own, else what ends a text."""
        own = self._tokenizer.named("pad_token") if self._is_nvidia else ()
        return next(iter(own), max(end_id, 0)) if given is None else given

    def ends(self, given: int | None) -> tuple[int, list[list[int]]]:
        """Return the id that ends a text where a request gave this one, and the further ones as stop words."""
        tokenizer = self._tokenizer
        own = tokenizer.named("eos_token") if self._is_nvidia else tokenizer.end_ids
        first, *more = own or (NO_ID,) if given is None else (check_end_id(given),)
        return first, [[token] for token in more] if self._stops_at_all else []
