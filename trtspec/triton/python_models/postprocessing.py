# SPDX-License-Identifier: Apache-2.0
"""Token ids to text: of a whole answer, or of one piece of a stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.generation.text import Pieces
from trtspec.triton.python_models.tensors import Array, RequestTensors, Settings, respond_each


class TritonPythonModel:
    """Triton calls these by name."""

    def initialize(self, args: dict[str, str]) -> None:
        self.tokenizer = Settings(args).tokenizer()
        self.pieces = Pieces(self.tokenizer)

    def execute(self, requests: list[Any]) -> list[Any]:
        return respond_each(pb_utils, requests, self.decode)

    def decode(self, inputs: RequestTensors) -> list[tuple[str, Array]]:
        decode = self.pieces.decode if inputs.scalar("CONTINUATION", False) else self.tokenizer.decode
        rows = zip(inputs.required("TOKENS_BATCH").tolist(), inputs.required("SEQUENCE_LENGTH").tolist(), strict=True)
        texts = [decode(ids[:length]).encode() for ids, length in rows]
        return [("OUTPUT", np.array([texts], dtype=object))]
