# SPDX-License-Identifier: Apache-2.0
"""The `preprocessing` model: tokenizes the text fields of a request."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.serving.triton.python_models.responses import respond_each
from trtspec.serving.triton.python_models.tensors import (
    Array,
    RequestTensors,
    Settings,
    check_unsupported_inputs,
    encode_token_lists,
)
from trtspec.serving.triton.python_models.token_io import TextReader


class TritonPythonModel:
    """The `preprocessing` model; Triton calls `initialize` and `execute` by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.inputs, self.is_nvidia = settings.inputs, settings.is_nvidia
        self.reader = TextReader(
            settings.tokenizer(),
            settings.count("max_input_len"),
            stops_at_all=settings.flag("stop_at_all_end_ids"),
            vocab_size=settings.count("vocab_size"),
            is_nvidia=settings.is_nvidia,
        )

    def execute(self, requests: list[Any]) -> list[Any]:
        return respond_each(pb_utils, requests, self.encode)

    def encode(self, inputs: RequestTensors) -> list[tuple[str, Array]]:
        inputs.reject_undeclared(self.inputs, "this model")
        check_unsupported_inputs(inputs, self.inputs, "this model")
        prompt = self.reader.prompt(inputs.texts("QUERY"))
        end_id, more_ends = self.reader.ends(inputs.scalar("END_ID"))
        pad_id = self.reader.pad_id(inputs.scalar("PAD_ID"), end_id)
        bias = self.reader.bias(inputs.texts("EMBEDDING_BIAS_WORDS"), inputs.values("EMBEDDING_BIAS_WEIGHTS"))
        stop, bad = (self.reader.encode_all(inputs.texts(name)) for name in ("STOP_WORDS_DICT", "BAD_WORDS_DICT"))
        return [
            ("INPUT_ID", np.array([prompt], np.int32)),
            ("REQUEST_INPUT_LEN", np.array([[len(prompt)]], np.int32)),
            ("REQUEST_OUTPUT_LEN", np.array([[inputs.scalar("REQUEST_OUTPUT_LEN")]], np.int32)),
            ("STOP_WORDS_IDS", self.token_lists_tensor(stop + more_ends)),
            ("BAD_WORDS_IDS", self.token_lists_tensor(bad)),
            ("EMBEDDING_BIAS", np.zeros((1, 0), np.float32) if bias is None else bias[None]),
            # used by encoder-decoder models only, which are unsupported
            ("DECODER_INPUT_ID", np.array([[pad_id]], np.int32)),
            ("REQUEST_DECODER_INPUT_LEN", np.array([[1]], np.int32)),
            ("OUT_END_ID", np.array([[end_id]], np.int32)),
            ("OUT_PAD_ID", np.array([[pad_id]], np.int32)),
        ]

    def token_lists_tensor(self, words: list[list[int]]) -> Array:
        """Return a word list tensor `[1, 2, n]`; without words, n is 0 with NVIDIA's defaults, else 1."""
        if not words and self.is_nvidia:
            return np.zeros((1, 2, 0), np.int32)
        return encode_token_lists(words)[None]
