# SPDX-License-Identifier: Apache-2.0
"""What the models from token ids to token ids share: the text that a request brings, and the ids of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.generation.scores import Scores
from trtspec.engine.generation.text import Pieces
from trtspec.serving.triton.python_models.score_tensors import score_tensors
from trtspec.serving.triton.python_models.tensors import (
    Array,
    Counts,
    RequestTensors,
    check_ids,
    count_tensors,
    end_ids_of,
    length_of,
    nvidia_end_ids,
    words_of_tensor,
)


class TokenReader:
    """Reads the tensors of requests; with `is_nvidia` a text ends at the end id that is given, and no other."""

    def __init__(self, tokenizer: Tokenizer, *, is_nvidia: bool = False) -> None:
        self._tokenizer, self._is_nvidia = tokenizer, is_nvidia
        self._pieces = Pieces(tokenizer)

    def read(self, inputs: RequestTensors) -> dict[str, Any]:
        """Return the text to go on with and what ends it, as keyword arguments of the engine's Request."""
        ids = inputs.required("input_ids").tolist()
        ends, words = self._stops(inputs.array("stop_words_list"))
        return {
            "prompt_ids": tuple(ids[: length_of("input_lengths", inputs.scalar("input_lengths"), ids)]),
            "max_new_tokens": inputs.scalar("request_output_len"),
            "end_ids": (*self._end_ids(inputs.scalar("end_id")), *ends),
            "stop": tuple(self._pieces.decode(check_ids("stop_words_list", word)) for word in words),
        }

    def _stops(self, tensor: Array | None) -> tuple[list[int], list[list[int]]]:
        """Return stop words as end ids and as words: a special token alone has no text that could be looked for."""
        words = [] if tensor is None else words_of_tensor(tensor)
        ends = [word for word in words if len(word) == 1 and word[0] in self._tokenizer.silent]
        return [token for (token,) in ends], [word for word in words if word not in ends]

    def _end_ids(self, asked: int | None) -> tuple[int, ...]:
        return nvidia_end_ids(asked) if self._is_nvidia else end_ids_of(self._tokenizer, asked)


class Unsent:
    """The ids of one answer that its client has not got yet, and their scores where they are wanted.

    The prompt is among them where `exclude_input_in_output` is false, and of a whole answer where a request does not
    say, as NVIDIA's model of this name has it.
    """

    def __init__(self, inputs: RequestTensors, prompt_ids: Sequence[int], *, streaming: bool) -> None:
        self._pad_id = inputs.scalar("pad_id", 0)
        self._ids = [] if inputs.scalar("exclude_input_in_output", streaming) else list(prompt_ids)
        self._scores: list[Scores] = []
        self._cum_log_prob = 0.0
        self._continues = False

    def add(self, ids: Sequence[int], scores: Scores | None = None) -> None:
        """Take new ids and their scores."""
        self._ids += ids
        if scores is None:
            return
        self._scores.append(scores)
        if scores.log_probs is not None:
            self._cum_log_prob += float(scores.log_probs.sum(dtype=np.float64))

    def take(self, counts: Counts) -> list[tuple[str, Array]]:
        """Return all of it as the tensors of one response, beside `counts`; no ids are one pad id of length 0."""
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
