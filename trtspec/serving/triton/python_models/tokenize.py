# SPDX-License-Identifier: Apache-2.0
"""Tokenization of text requests; a text that cannot be a valid prompt is rejected before it is tokenized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.text import TextPieces
from trtspec.serving.triton.python_models.fields import json_preview
from trtspec.serving.triton.python_models.tensors import NO_ID, check_end_id


@dataclass(frozen=True)
class TextLimit:
    """The maximum length of a text with `max_tokens` tokens, because tokenizing a longer one takes seconds."""

    max_tokens: int  # 0: unlimited
    max_bytes: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, max_tokens: int) -> TextLimit:
        """Return the limit for texts of a tokenizer."""
        return cls(max_tokens, max_tokens * max(len(token.encode()) for token in tokenizer.vocabulary))

    def check(self, text: str) -> None:
        """Raise TrtspecError for a text that must have more tokens than allowed."""
        if 0 < self.max_bytes < len(text):  # a text has at least as many bytes as characters
            raise TrtspecError(
                f"text_input has {len(text):,} characters; the limit of {self.max_tokens} tokens is at most "
                f"{self.max_bytes:,} bytes"
            )


class TextReader:
    """Tokenizes prompts and words; thread-safe and without locks."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_tokens: int,
        *,
        stops_at_all: bool = False,
        vocab_size: int = 0,
        is_nvidia: bool = False,
    ) -> None:
        """Read texts of at most `max_tokens` (0: any); with `stops_at_all`, further end ids become stop words.

        The model has `vocab_size` logits including padding; 0: as many as the tokenizer has tokens. With `is_nvidia`,
        only the eos token ends a completion, and the pad token is used for padding.
        """
        self._is_nvidia = is_nvidia
        self._tokenizer, self._vocab_size = tokenizer, vocab_size or tokenizer.vocab_size
        self._bound = TextLimit.of(tokenizer, max_tokens)
        self._stops_at_all = stops_at_all
        self.pieces = TextPieces(tokenizer)

    def prompt(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[int]:
        """Return the ids of a prompt; raises TrtspecError if it is empty or certainly too long."""
        text = "".join(texts)
        self._bound.check(text)
        if ids := self._tokenizer.encode(text, add_special_tokens):
            return ids
        raise TrtspecError("text_input is empty")

    def words(self, texts: Sequence[str]) -> list[list[int]]:
        """Return words as ids; raises TrtspecError for one without a token sequence."""
        return [self.pieces.encode(text) for text in texts]

    def bias(self, texts: Sequence[str], weights: Sequence[float]) -> npt.NDArray[np.float32] | None:
        """Return the bias [vocab_size] of the tokens of words, or None without words.

        TensorRT-LLM rejects a bias of another length (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/batch_manager/
        createNewDecoderRequests.cpp@b35ac1b6). Raises TrtspecError if the numbers of words and weights differ, or if a
        word's token lacks a logit.
        """
        if len(texts) != len(weights):
            raise TrtspecError(
                f"embedding_bias_words has {len(texts)} entries, but embedding_bias_weights has {len(weights)}"
            )
        if not texts:
            return None
        bias = np.zeros(self._vocab_size, np.float32)
        for text, ids, weight in zip(texts, self.words(texts), weights, strict=True):
            if max(ids, default=0) >= self._vocab_size:
                raise TrtspecError(
                    f"embedding_bias_words has {json_preview(text)}, but the model lacks a logit for one of its tokens"
                )
            np.add.at(bias, ids, weight)
        return bias

    def pad_id(self, given: int | None, end_id: int) -> int:
        """Return the padding id: the request's, else with NVIDIA's defaults the pad token, else the end id."""
        own = self._tokenizer.named("pad_token") if self._is_nvidia else ()
        return next(iter(own), max(end_id, 0)) if given is None else given

    def ends(self, given: int | None) -> tuple[int, list[list[int]]]:
        """Return the end id for a request's `given` one, and the further end ids as stop words."""
        tokenizer = self._tokenizer
        own = tokenizer.named("eos_token") if self._is_nvidia else tokenizer.end_ids
        first, *more = own or (NO_ID,) if given is None else (check_end_id(given),)
        return first, [[token] for token in more] if self._stops_at_all else []
