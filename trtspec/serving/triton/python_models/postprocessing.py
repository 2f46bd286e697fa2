# SPDX-License-Identifier: Apache-2.0
"""The `postprocessing` model: decodes the token ids of a complete response or of one piece of a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.text import TextPieces
from trtspec.serving.triton.python_models.responses import respond_each
from trtspec.serving.triton.python_models.tensors import Array, RequestTensors, Settings, check_ids, checked_length


class TritonPythonModel:
    """The `postprocessing` model; Triton calls `initialize` and `execute` by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.inputs = settings.inputs
        self.pieces = TextPieces(settings.tokenizer())

    def execute(self, requests: list[Any]) -> list[Any]:
        return respond_each(pb_utils, requests, self.decode)

    def decode(self, inputs: RequestTensors) -> list[tuple[str, Array]]:
        inputs.reject_undeclared(self.inputs, "this model")
        continues = inputs.scalar("CONTINUATION", False)
        rows, lengths = inputs.required("TOKENS_BATCH").tolist(), inputs.required("SEQUENCE_LENGTH").tolist()
        if len(rows) != len(lengths):
            raise TrtspecError(f"TOKENS_BATCH has {len(rows)} rows, but SEQUENCE_LENGTH has {len(lengths)}")
        tokens = [
            ids[: checked_length("SEQUENCE_LENGTH", length, ids)] for ids, length in zip(rows, lengths, strict=True)
        ]
        texts = [self.pieces.text(check_ids("TOKENS_BATCH", ids), continues=continues).encode() for ids in tokens]
        return [("OUTPUT", np.array(texts, dtype=object))]
