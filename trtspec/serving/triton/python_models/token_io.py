# SPDX-License-Identifier: Apache-2.0
"""Input and output of the token-level models: the text in a request and the ids in its response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.generation.scores import Scores
from trtspec.engine.generation.text import TextPieces
from trtspec.serving.triton.python_models.score_tensors import score_tensors
from trtspec.serving.triton.python_models.tensors import (
    Array,
    RequestTensors,
    TokenCounts,
    check_ids,
    checked_length,
    count_tensors,
    nvidia_end_ids,
    request_end_ids,
    tensor_to_words,
)


class TokenReader:
    """Reads the tensors of requests; with `is_nvidia`, only the request's own end id ends a text."""

    def __init__(self, tokenizer: Tokenizer, *, is_nvidia: bool = False) -> None:
        self._tokenizer, self._is_nvidia = tokenizer, is_nvidia
        self._pieces = TextPieces(tokenizer)

    def read(self, inputs: RequestTensors) -> dict[str, Any]:
        """Return the prompt and its stop conditions, as keyword arguments of the engine's Request."""
        ids = inputs.required("input_ids").tolist()
        ends, words = self._stops(inputs.array("stop_words_list"))
        return {
            "prompt_ids": tuple(ids[: checked_length("input_lengths", inputs.scalar("input_lengths"), ids)]),
            "max_new_tokens": inputs.scalar("request_output_len"),
            "end_ids": (*self._end_ids(inputs.scalar("end_id")), *ends),
            "stop": tuple(self._pieces.decode(check_ids("stop_words_list", word)) for word in words),
        }

    def _stops(self, tensor: Array | None) -> tuple[list[int], list[list[int]]]:
        """Return stop words as end ids and as words: a single special token lacks a text that could be searched for."""
        words = [] if tensor is None else tensor_to_words(tensor)
        ends = [word for word in words if len(word) == 1 and word[0] in self._tokenizer.silent]
        return [token for (token,) in ends], [word for word in words if word not in ends]

    def _end_ids(self, asked: int | None) -> tuple[int, ...]:
        return nvidia_end_ids(asked) if self._is_nvidia else request_end_ids(self._tokenizer, asked)


class UnsentTokens:
    """The ids of one response that are not sent yet, and their scores if requested.

    The prompt is included if `exclude_input_in_output` is false, and by default for non-streamed requests, as in
    NVIDIA's model of this name.
    """

    def __init__(self, inputs: RequestTensors, prompt_ids: Sequence[int], *, streaming: bool) -> None:
        self._pad_id = inputs.scalar("pad_id", 0)
        self._ids = [] if inputs.scalar("exclude_input_in_output", streaming) else list(prompt_ids)
        self._scores: list[Scores] = []
        self._cum_log_prob = 0.0
        self._continues = False

    def add(self, ids: Sequence[int], scores: Scores | None = None) -> None:
        """Add new ids and their scores."""
        self._ids += ids
        if scores is None:
            return
        self._scores.append(scores)
        if scores.log_probs is not None:
            self._cum_log_prob += float(scores.log_probs.sum(dtype=np.float64))

    def take(self, counts: TokenCounts) -> list[tuple[str, Array]]:
        """Return the unsent ids and `counts` as the tensors of one response; no ids become one pad id of length 0."""
        ids, self._ids = self._ids, []
        scores, self._scores = self._scores, []
        continues, self._continues = self._continues, True
        return [
            ("output_ids", np.array([[ids or [self._pad_id]]], np.int32)),
            ("sequence_length", np.array([[len(ids)]], np.int32)),
            *(score_tensors(Scores.joined(scores), self._cum_log_prob) if scores else []),
            ("continuation", np.array([[continues]])),
            ("sequence_index", np.array([[0]], np.int32)),
            *count_tensors(counts),
        ]
