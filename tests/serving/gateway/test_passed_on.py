# SPDX-License-Identifier: Apache-2.0
"""What the gateway passes on to models of each backend, from the configurations of their repositories."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtspec.backends.base import SHARED_MODELS
from trtspec.backends.common.steps import TEXT_INPUTS
from trtspec.backends.edge_llm import artifact as edge_llm
from trtspec.backends.llmapi import artifact as llmapi
from trtspec.backends.sglang import artifact as sglang
from trtspec.backends.vllm import artifact as vllm
from trtspec.serving.gateway.errors import ApiError
from trtspec.serving.gateway.parameters import read_parameters
from trtspec.serving.gateway.triton import TritonModelInfo, text_request, token_request
from trtspec.serving.triton.config import set_parameter
from trtspec.serving.triton.repository_writer import read_config

FORMAT = {"response_format": {"type": "json_object"}, "max_tokens": 5}


def model_of(folder: Path, name: str, **parameters: Any) -> TritonModelInfo:
    config = read_config(
        folder / name, SHARED_MODELS / name / "config.pbtxt" if name == "tensorrt_llm" else TEXT_INPUTS
    )
    for key, value in parameters.items():
        set_parameter(config, key, value)
    return TritonModelInfo.of(config)


def sent_to(model: TritonModelInfo, **body: Any) -> dict[str, bytes]:
    """Return the raw tensors that the gateway sends for a request body."""
    asked = read_parameters({"prompt": "x", **body}, chat=False)
    takes_ids = "input_ids" in model.inputs
    message = token_request(model, [1, 2], asked, 5, -1, [], 64) if takes_ids else text_request(model, "x", asked, 5)
    return dict(zip([tensor.name for tensor in message.inputs], message.raw_input_contents, strict=True))


@pytest.mark.parametrize("module", [vllm, edge_llm])
def test_response_format_is_passed_to_the_ensemble_of_a_text_engine(module: Any) -> None:
    sent = sent_to(model_of(module.MODELS, "ensemble"), **FORMAT)
    assert sent["guided_decoding_guide_type"].endswith(b"json_schema")
    assert sent["guided_decoding_guide"].endswith(b'{"type":"object"}')


@pytest.mark.parametrize(("module", "name"), [(vllm, "ensemble"), (edge_llm, "ensemble"), (llmapi, "tensorrt_llm")])
def test_omitted_sampling_options_are_left_to_a_model_with_own_defaults(module: Any, name: str) -> None:
    sampling = {"temperature", "top_p", "top_k", "runtime_top_p", "runtime_top_k"}
    own = sent_to(model_of(module.MODELS, name, defaults="model"), max_tokens=5)
    assert not sampling & own.keys()
    assert len(sampling & sent_to(model_of(module.MODELS, name), max_tokens=5).keys()) == 3
    assert "temperature" in sent_to(model_of(module.MODELS, name, defaults="model"), max_tokens=5, temperature=0.5)


@pytest.mark.parametrize("module", [llmapi, sglang])
def test_response_format_requires_an_engine_with_a_grammar_backend(module: Any) -> None:
    guided = model_of(module.MODELS, "tensorrt_llm", structured_output=True)
    assert sent_to(guided, **FORMAT)["guided_decoding_guide_type"].endswith(b"json_schema")
    with pytest.raises(ApiError) as refused:
        sent_to(model_of(module.MODELS, "tensorrt_llm"), **FORMAT)
    assert refused.value.message == (
        "response_format is not supported by this server; build its recipe with serving.structured_output: true"
    )
    assert (refused.value.status, refused.value.code) == (400, "unsupported_parameter")
    assert "guided_decoding_guide" not in sent_to(model_of(module.MODELS, "tensorrt_llm"), max_tokens=5)
