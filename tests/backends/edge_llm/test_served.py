# SPDX-License-Identifier: Apache-2.0
"""Edge-LLM's served model without a server, with a strict double of its Python API."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.serving.triton.artifact import make_tokenizer
from tests.serving.triton.fakes import FINAL, Request, load_model, make_pb_utils, model_args
from trtspec.backends.edge_llm.artifact import repository_step
from trtspec.backends.edge_llm.runtime import load
from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.config import load_config

DOUBLE = Path(__file__).parents[2] / "doubles" / "edge_llm"
ANSWERS = {"hello": ["one ", "two ", "three"], "broken": ["a", "ERROR"]}
LLM = {
    "model": "../../checkpoints/target",
    "max_input_len": 32,
    "max_batch_size": 4,
    "max_kv_cache_capacity": 64,
    "draft_top_k": 1,
    "draft_step": 3,
    "verify_tree_size": 4,
    "max_verify_tree_size": 4,
    "max_draft_tree_size": 3,
    "speculative_config": {"method": "eagle3", "num_speculative_tokens": 3, "model": "../../checkpoints/draft"},
    "enable_in_flight_batching": False,
}


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make_tokenizer(tmp_path / "tokenizer")
    for directory in ("checkpoints/target", "checkpoints/draft", "engines/target"):
        (tmp_path / directory).mkdir(parents=True)
    (tmp_path / "checkpoints/target/answers.json").write_text(json.dumps(ANSWERS))
    document = {"engines": "../../engines/target", "llm": LLM}
    repository_step(document, 4, streaming=True).emit(tmp_path / "model_repository")
    monkeypatch.syspath_prepend(DOUBLE)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] == "experimental"]:
        del sys.modules[name]


@pytest.fixture
def model(artifact: Path):
    model = load_model("edge_llm", make_pb_utils()).TritonPythonModel()
    model.initialize(model_args(artifact / "model_repository" / "edge_llm"))
    yield model
    model.finalize()


def texts(*values: str) -> np.ndarray:
    return np.array([[value.encode() for value in values]], object)


def answered(model: Any, **inputs: Any) -> Request:
    request = Request(**{"text_input": texts("hello"), "max_tokens": 9, **inputs})
    model.serve(request, model.metrics.text())
    return request


def sent(request: Request) -> list[dict[str, Any]]:
    assert [flags for _, flags in request.sender.sent] == [0] * (len(request.sender.sent) - 1) + [FINAL]
    assert all(response.error is None for response, _ in request.sender.sent), request.sender.sent[-1][0].error
    return [{name: array.item() for name, array in response.outputs.items()} for response, _ in request.sender.sent]


def test_answer_is_the_engines_text_with_counts(model: Any) -> None:
    assert sent(answered(model)) == [{"text_output": b"one two three", "num_input_tokens": 5, "num_output_tokens": 3}]
    params, request = model.llm.asked[0]
    assert (params.temperature, params.top_k, params.max_tokens, params.disable_spec_decode) == (0.0, 1, 9, False)
    assert request["messages"] == [{"role": "user", "content": "hello"}]
    assert not request["template"], "the text is not changed by a template"
    assert not request["prompt"]


def test_stream_pieces_have_cumulative_token_counts(model: Any) -> None:
    pieces = sent(answered(model, stream=True))
    assert [piece["text_output"] for piece in pieces] == [b"one ", b"two ", b"three"]
    assert [piece["num_output_tokens"] for piece in pieces] == [1, 2, 3]


def test_stop_text_ends_the_answer_and_closes_the_engine_request(model: Any) -> None:
    assert sent(answered(model, stop_words=texts("tw")))[-1]["text_output"] == b"one tw"
    assert model.llm.given[0].closed


def test_stop_text_spanning_two_pieces_ends_the_answer(model: Any) -> None:
    pieces = sent(answered(model, stop_words=texts("e two"), stream=True))
    assert b"".join(piece["text_output"] for piece in pieces) == b"one two"


def test_prompt_is_returned_on_request(model: Any) -> None:
    assert sent(answered(model, exclude_input_in_output=False))[0]["text_output"] == b"helloone two three"


@pytest.mark.parametrize(
    ("inputs", "changed"),
    [
        (
            {"temperature": 0.5, "top_p": 1.0, "seed": 7},
            {"temperature": 0.5, "top_k": 0, "seed": 7, "disable_spec_decode": True},
        ),
        ({"temperature": 0.5, "top_k": 1}, {"temperature": 0.0, "top_k": 1, "disable_spec_decode": False}),
        ({"num_draft_tokens": 0}, {"temperature": 0.0, "disable_spec_decode": True}),
        ({"num_draft_tokens": 3}, {"disable_spec_decode": False, "guided_decoding": None}),
        ({"guided_decoding_guide_type": texts("json")}, {"guided_decoding": ("json_object", "")}),
        (
            {"guided_decoding_guide_type": texts("ebnf_grammar"), "guided_decoding_guide": texts('root ::= "a"')},
            {"guided_decoding": ("ebnf", 'root ::= "a"'), "disable_spec_decode": False},
        ),
    ],
)
def test_request_is_converted_to_edge_llm_sampling_params(inputs, changed, model: Any) -> None:
    sent(answered(model, **inputs))
    given = asdict(model.llm.asked[0][0])
    assert {key: given[key] for key in changed} == changed


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ({"beam_width": 4}, "beam_width 4 is not supported by Edge-LLM"),
        ({"end_id": 5}, "end_id is not supported by Edge-LLM"),
        ({"num_draft_tokens": 2}, "num_draft_tokens 2 is not supported by Edge-LLM, whose draft length 3 is the same"),
        ({"guided_decoding_guide_type": texts("xml")}, "the guide type is 'xml', expected one of json, json_schema"),
        (
            {"guided_decoding_guide_type": texts("json_schema"), "guided_decoding_guide": texts("{")},
            "the json_schema guide is not supported: guided_decoding.json_schema is not valid JSON",
        ),
        ({"text_input": texts("")}, "text_input is empty"),
        ({"text_input": texts("broken")}, "Edge-LLM aborted the request"),
    ],
)
def test_unsupported_or_failed_request_returns_an_error(inputs, said: str, model: Any) -> None:
    [(response, flags)] = answered(model, **inputs).sender.sent
    assert flags == FINAL
    assert response.error.message.startswith(said)


def test_drafter_that_cannot_be_disabled_serves_greedy_requests_only(artifact: Path) -> None:
    root = artifact / "model_repository" / "edge_llm"
    path = root / "1" / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"always_drafts": True}))
    model = load_model("edge_llm", make_pb_utils()).TritonPythonModel()
    model.initialize(model_args(root))
    sent(answered(model, temperature=0.5, top_k=1))
    for inputs, what in (
        ({"temperature": 0.5, "top_p": 1.0}, "sampling"),
        ({"num_draft_tokens": 0}, "num_draft_tokens 0"),
    ):
        [(response, _)] = answered(model, **inputs).sender.sent
        assert response.error is not None
        assert response.error.message.startswith(f"{what} is not supported by Edge-LLM with this drafter")
    model.finalize()


def test_cancelled_request_closes_the_engine_request(model: Any) -> None:
    request = Request(text_input=texts("hello"), max_tokens=9)
    request.sender.cancelled = True
    model.serve(request, model.metrics.text())
    assert request.sender.sent[-1][0].error.code == "cancelled"
    assert model.llm.given[0].closed


def test_load_fails_if_edge_llm_uses_other_engines(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import experimental.server

    elsewhere = property(lambda llm: "/elsewhere", lambda llm, value: None)
    monkeypatch.setattr(experimental.server.LLM, "bundle_dir", elsewhere, raising=False)
    monkeypatch.setattr(experimental.server.Path, "is_dir", lambda path: True)
    with pytest.raises(TrtspecError, match="does not use the artifact's engines"):
        load(artifact / "model_repository" / "edge_llm", 1, artifact / "cache")


def test_ensemble_tensors_match_the_model(artifact: Path) -> None:
    ensemble, model = (
        load_config(artifact / "model_repository" / name / "config.pbtxt") for name in ("ensemble", "edge_llm")
    )
    [step] = ensemble.ensemble_scheduling.step
    assert {tensor.name for tensor in model.input} == {*step.input_map} == {tensor.name for tensor in ensemble.input}
    assert {tensor.name for tensor in model.output} == {*step.output_map} == {tensor.name for tensor in ensemble.output}
    assert model.parameters["concurrency"].string_value == "4"


def test_metrics_count_tokens_queue_times_and_finish_reasons(model: Any) -> None:
    """Texts, queue times and ends; Edge-LLM does not report drafts."""
    exported = sys.modules["triton_python_backend_utils"].exported
    answered(model)
    answered(model, stop_words=texts("two"))
    answered(model, max_tokens=2)
    answered(model, text_input=texts(""))
    model.metrics.close()
    told = {
        reason: sum(exported["trtspec_requests_total", reason]) for reason in ("end_id", "stop", "length", "refused")
    }
    assert told == dict.fromkeys(told, 1)
    assert sum(exported["trtspec_generated_tokens_total",]) == 3 + 2 + 2
    assert len(exported["trtspec_queue_seconds",]) == 3
    assert not [name for name, *_ in exported if "accepted" in name or "drafted" in name]
