# SPDX-License-Identifier: Apache-2.0
"""What the models from token ids to token ids share: the text that a request brings, and the ids of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trtspec.checkpoint.tokenizer import Tokenizer
from trtspec.generation.text import Pieces
from trtspec.triton.python_models.tensors import (
    Array,
    Counts,
    RequestTensors,
    count_tensors,
    end_ids_of,
    words_of_tensor,
)


class TokenReader:
    """Reads the tensors of requests."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces = Pieces(tokenizer)

    def read(self, inputs: RequestTensors) -> dict[str, Any]:
        """Return the text to go on with and what ends it, as keyword arguments of the engine's Request."""
        words = inputs.array("stop_words_list")
        return {
            "prompt_ids": tuple(inputs.required("input_ids")[: inputs.scalar("input_lengths")].tolist()),
            "max_new_tokens": inputs.scalar("request_output_len"),
            "end_ids": end_ids_of(self._tokenizer, inputs.scalar("end_id")),
            "stop": () if words is None else tuple(self._pieces.decode(ids) for ids in words_of_tensor(words)),
        }


class Unsent:
    """The ids of one answer that its client has not got yet, and their logits where they are wanted."""

    def __init__(self, inputs: RequestTensors, prompt_ids: Sequence[int]) -> None:
        self._pad_id = inputs.scalar("pad_id", 0)
        self._ids = [] if inputs.scalar("exclude_input_in_output", True) else list(prompt_ids)
        self._logits: list[Array] = []
        self._continues = False

    def add(self, ids: Sequence[int], logits: Array | None = None) -> None:
        """Take new ids and their logits [ids, vocab]."""
        self._ids += ids
        if logits is not None:
            self._logits.append(logits)

    def take(self, counts: Counts) -> list[tuple[str, Array]]:
        """Return all of it as the tensors of one response, beside `counts`; no ids are one pad id of length 0."""
        ids, self._ids = self._ids, []
        logits, self._logits = self._logits, []
        continues, self._continues = self._continues, True
        return [
            ("output_ids", np.array([[ids or [self._pad_id]]], np.int32)),
            ("sequence_length", np.array([[len(ids)]], np.int32)),
            *([("generation_logits", np.concatenate(logits)[None, None])] if logits else []),
            ("continuation", np.array([[continues]])),
            ("sequence_index", np.array([[0]], np.int32)),
            *count_tensors(counts),
        ]
