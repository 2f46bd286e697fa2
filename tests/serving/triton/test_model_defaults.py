# SPDX-License-Identifier: Apache-2.0
"""`serving.defaults: model`: the values of omitted fields, by Triton's tensors and through the OpenAI gateway."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import triton_to_np_dtype

from tests.serving.triton.artifact import SERVING, emit_repository, make_tokenizer
from tests.serving.triton.fakes import make_pb_utils
from tests.serving.triton.test_models import ask, start
from trtspec.backends.code_policy import _models
from trtspec.engine.generation.request import NO_EDITS, SamplingOptions
from trtspec.serving.gateway.parameters import read_parameters
from trtspec.serving.gateway.triton import TritonModelInfo, token_request
from trtspec.serving.triton.config import load_config
from trtspec.serving.triton.python_models.tensors import NO_ID

SETTINGS = {
    "do_sample": True, "temperature": 0.6, "top_k": 20, "repetition_penalty": 1.3, "min_length": 6,
    "suppress_tokens": [7], "no_repeat_ngram_size": 3, "begin_suppress_tokens": [9], "eos_token_id": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root: Path = tmp_path_factory.mktemp("artifact")
    make_tokenizer(root / "tokenizer")
    (root / "tokenizer" / "generation_config.json").write_text(json.dumps(SETTINGS))
    emit_repository(root / "model_repository", replace(SERVING, defaults="model"))
    return root


def asked_of(artifact: Path, monkeypatch: pytest.MonkeyPatch, **inputs: Any) -> Any:
    model = start(artifact, make_pb_utils(), monkeypatch)
    model.execute([ask(1, 2, **inputs)])
    (asked,) = model.engine.asked
    return asked


def test_request_without_parameters_uses_the_model_defaults(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = asked_of(artifact, monkeypatch)
    assert asked.sampling == SamplingOptions(0.6, 20, 1.0, 0)
    assert asked.edits == replace(
        NO_EDITS, repetition_penalty=1.3, min_tokens=4, bad_words=((7,),), no_repeat_ngram=3, begin_suppressed=(9,)
    )


def test_request_parameters_override_the_model_defaults(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = np.float32(1.0)
    asked = asked_of(artifact, monkeypatch, temperature=np.float32(0.0), repetition_penalty=one, min_tokens=1)
    assert asked.sampling.greedy
    assert (asked.edits.repetition_penalty, asked.edits.min_tokens, asked.edits.bad_words) == (1.0, 1, ((7,),))


def test_generation_config_is_ignored_without_the_defaults_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tokenizer(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "generation_config.json").write_text(json.dumps(SETTINGS))
    emit_repository(tmp_path / "model_repository")
    asked = asked_of(tmp_path, monkeypatch)
    assert asked.sampling.greedy
    assert asked.edits == NO_EDITS


@pytest.mark.parametrize("defaults", ["model", "nvidia"])
def test_code_policy_accepts_the_defaults_parameter(defaults: str, tmp_path: Path) -> None:
    emit_repository(tmp_path, replace(SERVING, defaults=defaults))
    odd = [why for _, why in _models(tmp_path, "embedded")]
    assert not [why for why in odd if "parameter" in why]


def _tensors(artifact: Path, **body: Any) -> dict[str, Any]:
    """Return the tensors that the gateway sends for a request body."""
    model = TritonModelInfo.of(load_config(artifact / "model_repository" / "tensorrt_llm" / "config.pbtxt"))
    asked = read_parameters({"prompt": "x", **body}, chat=False)
    message = token_request(model, [1, 2], asked, 5, NO_ID, [], 64)
    return {
        tensor.name: np.frombuffer(raw, triton_to_np_dtype(tensor.datatype)).tolist()
        for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    }


def test_gateway_omits_parameters_that_the_client_omitted(artifact: Path) -> None:
    fields = {"temperature", "runtime_top_k", "runtime_top_p", "repetition_penalty", "min_tokens"}
    assert not fields & _tensors(artifact).keys()
    named = _tensors(artifact, temperature=1.0, repetition_penalty=1.0, min_tokens=0)
    assert {"temperature": [1.0], "repetition_penalty": [1.0], "min_tokens": [0]}.items() <= named.items()
    greedy = _tensors(artifact, temperature=0)
    assert (greedy["runtime_top_k"], greedy["runtime_top_p"]) == ([1], [1.0])


def test_gateway_sends_openai_defaults_to_a_model_without_model_defaults(tmp_path: Path) -> None:
    emit_repository(tmp_path / "model_repository")
    said = _tensors(tmp_path)
    assert (said["temperature"], said["runtime_top_k"], said["runtime_top_p"]) == ([1.0], [0], [1.0])
    assert not {"repetition_penalty", "min_tokens"} & said.keys()
