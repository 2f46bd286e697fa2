# SPDX-License-Identifier: Apache-2.0
"""vLLM's repositories on a real tritonserver, with a strict double of Triton's backend `vllm`.

The double answers from a table; the tests cover everything between client and the backend's tensors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.source_golden import VLLM_CASES, emit_vllm
from tests.serving.triton.artifact import make_tokenizer
from tests.serving.triton.serving import Served, serving
from tests.serving.triton.streams import generate_stream
from trtspec.backends.vllm.artifact import stage
from trtspec.core.errors import DeployError
from trtspec.serving.triton.client import Client

pytestmark = pytest.mark.triton

ANSWERS = {f"prompt {number}": ["answer ", f"{number}", ": é", " and", " more"] for number in range(8)}
CANONICAL = {"text_input": "prompt 1", "max_tokens": 20, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 0}
NEUTRAL = {
    "beam_width": 1,
    "length_penalty": 1.0,
    "repetition_penalty": 1.0,
    "min_tokens": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "return_log_probs": False,
    "return_context_logits": False,
    "return_generation_logits": False,
    "return_perf_metrics": True,
}


def make_artifact(root: Path, method: str) -> Path:
    """Write a method's artifact with table-driven models, and return its relocated repository."""
    make_tokenizer(root / "tokenizer")
    for role in ("target", "draft"):
        (root / "checkpoints" / role).mkdir(parents=True)
    (root / "checkpoints" / "target" / "answers.json").write_text(json.dumps(ANSWERS))
    emit_vllm(method, root / "model_repository")
    stage(root / "model_repository", root / "served", str(root))
    return root / "served"


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    root = tmp_path_factory.mktemp("vllm")
    with serving(root, make_artifact(root / "artifact", "ngram"), backend="vllm") as server:
        yield server


@pytest.fixture
def client(served: Served) -> Client:
    return served.client


@pytest.mark.parametrize("method", [method for method in VLLM_CASES if method not in ("ngram", "eagle")])
def test_server_answers_from_the_repository_of_each_method(method: str, tmp_path: Path) -> None:
    """The repository of ngram is served below; eagle's names a target on the hub."""
    with serving(tmp_path, make_artifact(tmp_path / "artifact", method), backend="vllm") as server:
        assert server.client.generate(CANONICAL)["text_output"] == "answer 1: é and more"


def test_answer_is_the_text_without_the_prompt_and_with_counts(client: Client) -> None:
    answer = client.generate(CANONICAL)
    assert answer["text_output"] == "answer 1: é and more"
    assert (answer["num_input_tokens"], answer["num_output_tokens"]) == (len("prompt 1"), 5)


def test_neutral_request_fields_are_accepted(client: Client) -> None:
    assert client.generate({**CANONICAL, **NEUTRAL})["text_output"] == "answer 1: é and more"


def test_stream_pieces_add_up_to_the_answer(client: Client) -> None:
    events = list(generate_stream(client, CANONICAL))
    assert [event["text_output"] for event in events] == ANSWERS["prompt 1"]
    assert sum(event["num_output_tokens"] for event in events) == 5


def test_concurrent_clients_each_get_their_own_answer(client: Client) -> None:
    ask = [{"text_input": f"prompt {number % 8}", "max_tokens": 20} for number in range(32)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(client.generate, ask))
    assert [answer["text_output"] for answer in answers] == ["".join(ANSWERS[each["text_input"]]) for each in ask]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"max_tokens": 2}, "answer 1"),
        ({"max_tokens": 2, "length_penalty": 0.8, "random_seed": 3, "accumulate_tokens": True}, "answer 1"),
        ({"stop_words": ["é", "and"]}, "answer 1: "),
        ({"exclude_input_in_output": False}, "prompt 1answer 1: é and more"),
        ({"num_draft_tokens": 8}, "answer 1: é and more"),
        ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a.*"}, "answer 1: é and more"),
    ],
)
def test_request_fields_change_the_answer(change: dict[str, Any], text: str, client: Client) -> None:
    assert client.generate({**CANONICAL, **change})["text_output"] == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens 0 is not supported by vLLM, whose draft length 8 is the same"),
        ({"num_draft_tokens": -1}, "num_draft_tokens is -1, expected 0 or more"),
        ({"guided_decoding_guide": "{}"}, "guided_decoding_guide requires guided_decoding_guide_type"),
        (
            {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": "{"},
            "Invalid JSON grammar specification",
        ),
        ({"frequency_penalty": 0.5}, "frequency_penalty 0.5 is not supported by vLLM"),
        ({"bad_words": ["x"]}, "bad_words is not supported by vLLM"),
        ({"text_input": "unknown"}, "Error generating stream: 'unknown'"),
        ({"text_input": ""}, "text_input is empty"),
        ({"tempreature": 1.0}, "did you mean temperature?"),
        ({"seed": 1, "random_seed": 2}, "seed is 1 and random_seed is 2"),
        ({"min_length": 3}, "min_length 3 is not supported by vLLM"),
    ],
)
def test_unsupported_request_returns_an_error_and_the_next_is_served(change, message: str, client: Client) -> None:
    with pytest.raises(DeployError, match=message):
        client.generate({**CANONICAL, **change})
    with pytest.raises(DeployError, match=message):
        list(generate_stream(client, {**CANONICAL, **change}))
    assert client.generate(CANONICAL)["num_output_tokens"] == 5


def test_tensors_with_a_leading_dimension_are_accepted(served: Served) -> None:
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    tensors = {"text_input": np.array([[b"prompt 3"]], object), "max_tokens": np.array([[20]], np.int32)}
    inputs = []
    for name, array in tensors.items():
        inputs.append(grpc.InferInput(name, array.shape, "BYTES" if array.dtype == object else "INT32"))
        inputs[-1].set_data_from_numpy(array)
    answers: list[Any] = []
    with grpc.InferenceServerClient(f"127.0.0.1:{served.grpc}") as connection:
        connection.start_stream(lambda result, error: answers.append(error or result))
        connection.async_stream_infer("ensemble", inputs)
        connection.stop_stream()
    assert answers[0].as_numpy("text_output").tolist() == ["answer 3: é and more".encode()]
