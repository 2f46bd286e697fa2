# SPDX-License-Identifier: Apache-2.0
"""Text to token ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.triton.python_models.tensors import Array, RequestTensors, Settings, respond_each, tensor_of_words
from trtspec.triton.python_models.text_input import TextReader


class TritonPythonModel:
    """Triton calls these by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        stops_at_all = settings.parameter("stop_at_all_end_ids") == "true"
        self.reader = TextReader(
            settings.tokenizer(), int(settings.parameter("max_input_len")), stops_at_all=stops_at_all
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        return respond_each(pb_utils, requests, self.encode)

    def encode(self, inputs: RequestTensors) -> list[tuple[str, Array]]:
        prompt = self.reader.prompt(inputs.texts("QUERY"))
        end_id, more_ends = self.reader.ends(inputs.scalar("END_ID"))
        pad_id = inputs.scalar("PAD_ID", max(end_id, 0))
        bias = self.reader.bias(inputs.texts("EMBEDDING_BIAS_WORDS"), inputs.numbers("EMBEDDING_BIAS_WEIGHTS"))
        stop, bad = (self.reader.words(inputs.texts(name)) for name in ("STOP_WORDS_DICT", "BAD_WORDS_DICT"))
        return [
            ("INPUT_ID", np.array([prompt], np.int32)),
            ("REQUEST_INPUT_LEN", np.array([[len(prompt)]], np.int32)),
            ("REQUEST_OUTPUT_LEN", np.array([[inputs.scalar("REQUEST_OUTPUT_LEN")]], np.int32)),
            ("STOP_WORDS_IDS", tensor_of_words(stop + more_ends)[None]),
            ("BAD_WORDS_IDS", tensor_of_words(bad)[None]),
            ("EMBEDDING_BIAS", np.zeros((1, 0), np.float32) if bias is None else bias[None]),
            ("DECODER_INPUT_ID", np.array([[pad_id]], np.int32)),  # of models with an encoder, which none here is
            ("REQUEST_DECODER_INPUT_LEN", np.array([[1]], np.int32)),
            ("OUT_END_ID", np.array([[end_id]], np.int32)),
            ("OUT_PAD_ID", np.array([[pad_id]], np.int32)),
        ]
