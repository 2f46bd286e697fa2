# SPDX-License-Identifier: Apache-2.0
"""Triton model that converts the tensors of NVIDIA's ensemble to the JSON sampling parameters of Triton's vLLM backend.

Defaults are the same as for other engines: greedy without a temperature, and the text without the prompt.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Constraint, EngineRequest, SamplingOptions, TokenLimits, check_request
from trtspec.serving.triton.python_models.responses import respond_each
from trtspec.serving.triton.python_models.tensors import (
    Array,
    RequestTensors,
    Settings,
    check_draft_tokens,
    check_unsupported,
    read_sampling,
)
from trtspec.serving.triton.python_models.token_io import read_constraint

ENGINE = "vLLM"
MOST_SEED = 2**63 - 1  # vLLM keeps seeds as int64; vllm-project/vllm:vllm/v1/worker/gpu/sample/states.py@v0.32.0
LIMITS = TokenLimits(max_seq_len=1 << 31)  # vLLM enforces its own limit
# Fields of vLLM's StructuredOutputsParams (vllm-project/vllm:vllm/sampling_params.py@v0.32.0) by guide type. Its own
# json_object allows objects only, unlike the guide type json.
GUIDE_FIELDS = {"json": "json", "json_schema": "json", "regex": "regex", "ebnf_grammar": "grammar"}
ANY_JSON = "{}"


class TritonPythonModel:
    """The model class; Triton calls initialize and execute by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        tokenizer = settings.tokenizer()
        self.end_ids = tokenizer.end_ids
        # vLLM itself also ends a text at the tokenizer's eos token
        self.ends_alike = bool(self.end_ids) and {*tokenizer.named("eos_token")} <= {*self.end_ids}
        self.draft_len, self.sampling_defaults = settings.draft_len, settings.sampling_defaults
        self.inputs = settings.inputs

    def execute(self, requests: list[Any]) -> list[Any]:
        return respond_each(pb_utils, requests, self.answer)

    def answer(self, inputs: RequestTensors) -> list[tuple[str, Array]]:
        """Return the tensors that vLLM's model requires in addition to the text."""
        with inputs.naming():
            self.check(inputs)
            exclude_input = inputs.scalar("exclude_input_in_output", True)
            if inputs.scalar("stream", False) and not exclude_input:
                raise TrtspecError("exclude_input_in_output: false is not served in a stream by vLLM")
            text = json.dumps(self.parameters(inputs))
        return [
            ("sampling_parameters", np.array([[text.encode()]], object)),
            ("exclude_input", np.array([[exclude_input]])),
            ("return_counts", np.array([[True]])),
        ]

    def check(self, inputs: RequestTensors) -> None:
        """Raise TrtspecError for unsupported features, and for errors for which vLLM's own messages are unclear."""
        inputs.reject_undeclared(self.inputs, ENGINE)
        check_unsupported(inputs, ENGINE)
        check_draft_tokens(inputs, self.draft_len, ENGINE)
        if (seed := inputs.scalar("seed", 0)) > MOST_SEED:
            raise TrtspecError(f"seed is {seed}, but {ENGINE} supports at most {MOST_SEED}")
        if not "".join(inputs.texts("text_input")):
            raise TrtspecError("text_input is empty")

    def parameters(self, inputs: RequestTensors) -> dict[str, Any]:
        """Return vLLM's SamplingParams as JSON values."""
        sampling = SamplingOptions(**read_sampling(inputs, defaults=self.sampling_defaults))
        stop, constraint = tuple(inputs.texts("stop_words")), read_constraint(inputs)
        asked = EngineRequest((0,), inputs.scalar("max_tokens"), sampling, stop=stop, constraint=constraint)
        check_request(asked, LIMITS, vocab_size=1, has_tokenizer=True)
        end_id = inputs.scalar("end_id")
        is_own = end_id is None or end_id in self.end_ids
        return {
            "max_tokens": asked.max_new_tokens,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "seed": sampling.seed,
            "stop": list(asked.stop),
            "ignore_eos": not (is_own and self.ends_alike),
            "stop_token_ids": list(self.end_ids) if is_own else [end_id] * (end_id >= 0),
            **({"structured_outputs": structured_outputs(constraint)} if constraint else {}),
        }


def structured_outputs(constraint: Constraint) -> str:
    """Return vLLM's StructuredOutputsParams as JSON text, which Triton's vLLM backend parses."""
    guide = ANY_JSON if constraint.guide_type == "json" else constraint.guide
    return json.dumps({GUIDE_FIELDS[constraint.guide_type]: guide})
