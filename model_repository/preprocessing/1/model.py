# SPDX-License-Identifier: Apache-2.0
"""Text to token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.errors import TrtspecError
from trtspec.triton.backend import Inputs, Pieces, Settings, respond, tensor_of_words

NO_ID = -1


class TritonPythonModel:
    """Triton calls these by name."""

    def initialize(self, args: dict[str, str]) -> None:
        self.tokenizer = Settings(args).tokenizer()
        self.pieces = Pieces(self.tokenizer)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [
            respond(pb_utils, lambda request=request: self.encode(Inputs(pb_utils, request))) for request in requests
        ]

    def encode(self, inputs: Inputs) -> list[tuple[str, np.ndarray]]:
        prompt = self.tokenizer.encode("".join(inputs.texts("QUERY")))
        if not prompt:
            raise TrtspecError("text_input is empty")
        end_id = inputs.scalar("END_ID", next(iter(self.tokenizer.end_ids), NO_ID))
        return [
            ("INPUT_ID", np.array([prompt], np.int32)),
            ("REQUEST_INPUT_LEN", np.array([[len(prompt)]], np.int32)),
            ("REQUEST_OUTPUT_LEN", np.array([[inputs.scalar("REQUEST_OUTPUT_LEN")]], np.int32)),
            ("STOP_WORDS_IDS", self.words(inputs, "STOP_WORDS_DICT")),
            ("BAD_WORDS_IDS", self.words(inputs, "BAD_WORDS_DICT")),
            ("OUT_END_ID", np.array([[end_id]], np.int32)),
            ("OUT_PAD_ID", np.array([[inputs.scalar("PAD_ID", max(end_id, 0))]], np.int32)),
        ]

    def words(self, inputs: Inputs, name: str) -> np.ndarray:
        return tensor_of_words([self.pieces.encode(text) for text in inputs.texts(name)])[None]
