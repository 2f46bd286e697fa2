# SPDX-License-Identifier: Apache-2.0
"""Text to token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.errors import TrtspecError
from trtspec.generation.text import Pieces
from trtspec.triton.python_models.tensors import Array, RequestTensors, Settings, respond_each, tensor_of_words

NO_ID = -1


class TritonPythonModel:
    """Triton calls these by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.tokenizer = settings.tokenizer()
        self.pieces = Pieces(self.tokenizer)
        self.stops_at_all = settings.parameter("stop_at_all_end_ids") == "true"

    def execute(self, requests: list[Any]) -> list[Any]:
        return respond_each(pb_utils, requests, self.encode)

    def encode(self, inputs: RequestTensors) -> list[tuple[str, Array]]:
        prompt = self.tokenizer.encode("".join(inputs.texts("QUERY")))
        if not prompt:
            raise TrtspecError("text_input is empty")
        given_end_id = inputs.scalar("END_ID")
        end_ids = self.tokenizer.end_ids if given_end_id is None else (given_end_id,)
        end_id = next(iter(end_ids), NO_ID)
        more_ends = [[token] for token in end_ids[1:]] if self.stops_at_all else []
        return [
            ("INPUT_ID", np.array([prompt], np.int32)),
            ("REQUEST_INPUT_LEN", np.array([[len(prompt)]], np.int32)),
            ("REQUEST_OUTPUT_LEN", np.array([[inputs.scalar("REQUEST_OUTPUT_LEN")]], np.int32)),
            ("STOP_WORDS_IDS", tensor_of_words(self.words(inputs, "STOP_WORDS_DICT") + more_ends)[None]),
            ("BAD_WORDS_IDS", tensor_of_words(self.words(inputs, "BAD_WORDS_DICT"))[None]),
            ("OUT_END_ID", np.array([[end_id]], np.int32)),
            ("OUT_PAD_ID", np.array([[inputs.scalar("PAD_ID", max(end_id, 0))]], np.int32)),
        ]

    def words(self, inputs: RequestTensors, name: str) -> list[list[int]]:
        return [self.pieces.encode(text) for text in inputs.texts(name)]
