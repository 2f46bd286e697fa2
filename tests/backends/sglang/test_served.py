# SPDX-License-Identifier: Apache-2.0
"""SGLang's repository on a real tritonserver, with a strict double of sglang.

Covers the specifics of this engine: arguments, sampling, rejected requests and the time of its counts.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.backends.answering import ANSWERS, AnswersFromATable, asked, make_checkpoints, openai_answer
from tests.serving.triton.fakes import make_pb_utils
from tests.serving.triton.serving import DOUBLES, Served, serving
from tests.serving.triton.streams import generate_stream
from trtspec.backends.common.steps import token_models
from trtspec.backends.sglang.artifact import ENGINE_JSON, MODELS
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import DeployError
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.repository_writer import ServingSettings

pytestmark = pytest.mark.triton

ARGUMENTS = {
    "model_path": "../../checkpoints/target", "skip_tokenizer_init": True, "enable_metrics": True,
    "dtype": "bfloat16", "tp_size": 1,
    "max_running_requests": 4, "context_length": 256, "mem_fraction_static": 0.9, "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "../../checkpoints/draft", "speculative_num_steps": 3, "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4, "speculative_adaptive": True,
    "speculative_adaptive_config": "./1/adaptive.json",
}  # fmt: skip
ADAPTIVE = {"1": {"candidate_steps": [3]}, "3": {"candidate_steps": [0]}}


def make_artifact(root: Path, arguments: dict[str, Any], **serving: Any) -> None:
    """Write an artifact with table-driven models."""
    make_checkpoints(root, pause_s=0.001)
    settings = ServingSettings(**{"max_batch_size": 4, **serving})
    documents = {ENGINE_JSON.name: json.dumps(arguments), "adaptive.json": json.dumps(ADAPTIVE)}
    facts = {"structured_output": not arguments["skip_tokenizer_init"], "draft_len": 3}
    step = token_models(MODELS, settings, documents, max_input_len=32, max_seq_len=256, gpu_ids=(1,), **facts)
    step.emit(root / "model_repository")
    # the stub searches the model's directory before any other path that a test can set
    shutil.copytree(DOUBLES / "sglang" / "sglang", root / "model_repository" / ENGINE_JSON.parent / "sglang")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sglang") / "artifact"
    make_artifact(root, ARGUMENTS)
    return root


@pytest.fixture(scope="module")
def served(artifact: Path) -> Iterator[Served]:
    with serving(artifact.parent, artifact / "model_repository") as server:
        yield server


@pytest.fixture
def client(served: Served) -> Client:
    return served.client


class TestServed(AnswersFromATable):
    STEPS, BY_POSITION = 4, 9

    def test_draft_counts_are_reported_for_answers_that_end_early(self, client: Client) -> None:
        answer = client.generate({"text_input": "until", "max_tokens": 64, "stop_words": ["two"]})
        assert (answer["text_output"], answer["total_draft_tokens"]) == ("one two", 12)
        assert client.generate({"text_input": "prompt 3", "max_tokens": 7})["total_draft_tokens"] == 12


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, {"temperature": 0.0, "stop_token_ids": [0]}),
        (
            {"temperature": 0.5, "top_p": 1.0, "seed": 7},
            {"temperature": 0.5, "top_k": -1, "top_p": 1.0, "sampling_seed": 7},
        ),
        ({"temperature": 0.5, "top_p": 1.0, "seed": 2**63 + 5}, {"sampling_seed": 5}),
        ({"top_k": 40}, {"temperature": 1.0, "top_k": 40}),
        ({"end_id": -1}, {"ignore_eos": True}),
        ({"end_id": 9}, {"ignore_eos": True}),
    ],
)
def test_request_is_converted_to_sglang_sampling_params(request_, expected, client: Client, artifact: Path) -> None:
    client.generate({"text_input": "until", "max_tokens": 5, **request_})
    noted = next(event for event in reversed(asked(artifact)) if event["event"] == "asked")
    assert {key: noted.get(key) for key in expected} == expected
    assert ("stop_token_ids" in noted) != ("ignore_eos" in noted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty 1.2 is not supported by SGLang"),
        ({"bad_words": ["x"]}, "bad_words is not supported by SGLang"),
        ({"return_generation_logits": True}, "return_generation_logits is not supported by SGLang"),
        ({"num_draft_tokens": 0}, "num_draft_tokens 0 is not supported by SGLang, whose draft length 3 is the same"),
        ({"guided_decoding_guide_type": "json"}, "structured output is not supported by this deployment of SGLang"),
        ({"max_tokens": 1000}, "prompt and max_tokens are 1005 tokens together, at most 256 fit"),
        ({"text_input": "unknown"}, "internal error [0-9a-f]{12}: see the server's log under this id"),
    ],
)
def test_failed_request_returns_an_error_and_the_next_is_served(change, message: str, client: Client) -> None:
    request = {"text_input": "until", "max_tokens": 20}
    with pytest.raises(DeployError, match=message):
        client.generate({**request, **change})
    assert client.generate(request)["text_output"] == ANSWERS["until"]


def test_openai_answer_has_the_draft_statistics_that_the_engine_reports(served: Served, artifact: Path) -> None:
    assert openai_answer(served, artifact)["metrics"]["speculative_decoding"] == {
        "mean_acceptance_length": 1 + 9 / 4,
        "draft_acceptance_rate": 0.75,
        "acceptance_histogram": [1, 0, 0, 3],
        "num_spec_steps": 4,
        "num_accepted_draft_tokens": 9,
        "num_draft_tokens": 12,
        "num_spec_tokens": 3,
    }
    refused = openai_answer(served, artifact, num_draft_tokens=1)["error"]
    assert refused["message"].startswith("num_draft_tokens 1 is not supported by SGLang")
    guided = openai_answer(served, artifact, response_format={"type": "json_object"})["error"]
    assert guided["message"].endswith("build its recipe with serving.structured_output: true")


def test_answer_by_ids_has_the_histogram_of_accepted_drafts(served: Served, artifact: Path) -> None:
    ids = Tokenizer(artifact / "tokenizer").encode("prompt 1")
    request = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": 60, "exclude_input_in_output": True}
    (answer,) = generate_stream(served.client, request | {"streaming": False}, "tensorrt_llm")
    # 9 of 12 tokens were accepted in 4 steps, 3 of which accepted all 3
    assert (answer["num_draft_steps"], answer["accepted_by_position"]) == (4, [3, 3, 3])


def test_guides_are_converted_to_sglang_sampling_params(tmp_path: Path) -> None:
    root = tmp_path / "artifact"
    make_artifact(root, ARGUMENTS | {"skip_tokenizer_init": False})
    request = {"text_input": "until", "max_tokens": 20}
    guides = {"json_schema": '{"type":"object"}', "regex": "a+", "ebnf": 'root ::= "a"'}
    with serving(tmp_path, root / "model_repository") as server:

        def sent(kind: str, guide: str = "") -> dict[str, Any]:
            tensors = {"guided_decoding_guide_type": kind} | ({"guided_decoding_guide": guide} if guide else {})
            assert server.client.generate(request | tensors)["text_output"] == ANSWERS["until"]
            return {name: value for name, value in asked(root)[-1].items() if name in guides}

        assert sent("json") == {"json_schema": "{}"}
        for theirs, ours in {"json_schema": "json_schema", "regex": "regex", "ebnf": "ebnf_grammar"}.items():
            assert sent(ours, guides[theirs]) == {theirs: guides[theirs]}
        wrong = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": "{"}
        with pytest.raises(DeployError, match="SGLang rejects the request: Failed to compile json grammar"):
            server.client.generate(request | wrong)


def test_repository_without_streaming_sends_one_response_and_shuts_down(tmp_path: Path) -> None:
    root = tmp_path / "artifact"
    alone = {key: value for key, value in ARGUMENTS.items() if not key.startswith("speculative")}
    make_artifact(root, alone, streaming=False)
    with serving(tmp_path, root / "model_repository", ends_itself=True) as server:
        answer = server.client.generate({"text_input": "prompt 1", "max_tokens": 64})
        assert (answer["text_output"], answer["total_draft_tokens"]) == (ANSWERS["prompt 1"], 0)
        with pytest.raises(DeployError, match="stream is not supported by this repository"):
            server.client.generate({"text_input": "prompt 1", "max_tokens": 64, "stream": True})
    assert asked(root)[-1] == {"event": "shutdown"}


def test_requests_beyond_the_queue_limit_are_rejected(tmp_path: Path) -> None:
    """By the model itself, because the engine accepts every request."""
    make_artifact(tmp_path / "artifact", ARGUMENTS, max_batch_size=1, max_queue_size=1)
    ids = Tokenizer(tmp_path / "artifact" / "tokenizer").encode("until")
    asked = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": 64}
    with serving(tmp_path, tmp_path / "artifact" / "model_repository") as served, ThreadPoolExecutor(16) as pool:

        def ask(_: int) -> str:
            try:
                return "served" if list(generate_stream(served.client, asked, "tensorrt_llm")) else ""
            except DeployError as error:
                return error.message

        told = [*pool.map(ask, range(64))]
    refused = [each for each in told if each != "served"]
    assert 0 < len(refused) < len(told)
    assert all("the queue is full: 1 requests wait (serving.max_queue_size)" in each for each in refused)


def test_unsupported_engine_argument_prevents_loading_the_model(tmp_path: Path) -> None:
    root = tmp_path / "artifact"
    make_artifact(root, ARGUMENTS | {"max_sequence_len": 64})
    with (
        pytest.raises(AssertionError, match="Unexpected keyword argument 'max_sequence_len'"),
        serving(tmp_path, root / "model_repository"),
    ):
        pass


def test_queue_of_sglang_is_read_from_its_load_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", make_pb_utils())
    model = importlib.import_module("trtspec.backends.sglang.served_model").TritonPythonModel()
    sys.modules.pop("trtspec.backends.sglang.served_model")  # imports the stub of this test
    loads = [SimpleNamespace(num_waiting_reqs=2), SimpleNamespace(num_waiting_reqs=3)]
    manager = SimpleNamespace(load_snapshot_reader=SimpleNamespace(read_all=lambda: loads))
    model.engine = SimpleNamespace(tokenizer_manager=manager)
    assert model.engine_queue() == 5
    loads.clear()  # no scheduler has reported yet
    assert model.engine_queue() is None
    model.engine = SimpleNamespace(tokenizer_manager=SimpleNamespace())  # an earlier version
    assert model.engine_queue() is None
