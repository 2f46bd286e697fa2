# SPDX-License-Identifier: Apache-2.0
"""SGLang's repository on a real tritonserver, a strict stand-in in the place of sglang.

The stand-in answers from a table; what is tested is everything between a client and `Engine`: arguments, sampling,
streams, stop texts, counts, refusals and clients that leave. The tokenizer's tokens are single bytes.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

from tests.triton.artifact import make_tokenizer
from tests.triton.serving import DOUBLES, Served, serving
from trtspec.backends.sglang.repository import ENGINE_JSON, EmitSglangRepository
from trtspec.checkpoint.tokenizer import Tokenizer
from trtspec.errors import DeployError
from trtspec.triton.client import Client
from trtspec.triton.emission import ServingSettings

pytestmark = pytest.mark.triton

ANSWERS = {f"prompt {number}": f"answer {number}: é and more" for number in range(8)} | {
    "until": "one two three",
    "slow": "x" * 200,
}
ARGUMENTS = {
    "model_path": "../../checkpoints/target", "skip_tokenizer_init": True, "dtype": "bfloat16", "tp_size": 1,
    "max_running_requests": 4, "context_length": 256, "mem_fraction_static": 0.9, "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "../../checkpoints/draft", "speculative_num_steps": 3, "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4, "speculative_adaptive": True,
    "speculative_adaptive_config": "./1/adaptive.json",
}  # fmt: skip
ADAPTIVE = {"1": {"candidate_steps": [3]}, "3": {"candidate_steps": [0]}}


def make_artifact(root: Path, arguments: dict[str, Any], *, streaming: bool = True) -> None:
    """Lay out an artifact whose models are tables; texts come three tokens a step, and end with the end id."""
    tokenizer = Tokenizer(make_tokenizer(root / "tokenizer"))
    for role in ("target", "draft"):
        (root / "checkpoints" / role).mkdir(parents=True)
    table = {}
    for prompt, text in ANSWERS.items():
        ids = [*tokenizer.encode(text), tokenizer.end_ids[0]]
        steps = [ids[start : start + 3] for start in range(0, len(ids), 3)]
        key, pause_s = " ".join(map(str, tokenizer.encode(prompt))), 0.05 if prompt == "slow" else 0.001
        table[key] = {"steps": steps, "drafted": 12, "accepted": 9, "pause_s": pause_s}
    (root / "checkpoints" / "target" / "answers.json").write_text(json.dumps(table))
    settings = ServingSettings(max_batch_size=4, streaming=streaming)
    documents = (json.dumps(arguments), json.dumps(ADAPTIVE))
    EmitSglangRepository((), settings, *documents, max_input_len=32, max_seq_len=256, gpu_ids=(1,)).emit(
        root / "model_repository"
    )
    # the stub looks for packages beside the model before it looks anywhere else that a test could choose
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


def asked(artifact: Path) -> list[dict[str, Any]]:
    """Return what the stand-in noted of its requests."""
    return [json.loads(line) for line in (artifact / "checkpoints/target/requests.jsonl").read_text().splitlines()]


def test_an_answer_is_the_engines_text_with_its_counts(client: Client) -> None:
    answer = client.generate({"text_input": "prompt 1", "max_tokens": 64})
    assert answer["text_output"] == ANSWERS["prompt 1"]
    assert answer["num_input_tokens"] == len("prompt 1")
    assert answer["num_output_tokens"] == answer["sequence_length"] == len(ANSWERS["prompt 1"].encode())
    assert (answer["total_draft_tokens"], answer["total_accepted_draft_tokens"]) == (12, 9)
    assert answer["acceptance_rate"] == 0.75


def test_a_stream_comes_in_whole_characters_and_adds_up(client: Client) -> None:
    events = list(client.generate_stream({"text_input": "prompt 2", "max_tokens": 64}))
    assert len(events) > 4
    assert "".join(event["text_output"] for event in events) == ANSWERS["prompt 2"]
    assert events[-1]["total_accepted_draft_tokens"] == 9


def test_many_clients_at_once_each_get_their_own(client: Client) -> None:
    prompts = [f"prompt {number % 8}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda prompt: client.generate({"text_input": prompt, "max_tokens": 64}), prompts))
    assert [text["text_output"] for text in texts] == [ANSWERS[prompt] for prompt in prompts]


def test_a_length_ends_an_answer_within_a_step(client: Client) -> None:
    answer = client.generate({"text_input": "prompt 3", "max_tokens": 7})
    assert (answer["text_output"], answer["total_draft_tokens"]) == ("answer ", 12)


def test_a_stop_text_ends_an_answer_wherever_its_tokens_lie_and_counts_come_with_its_end(
    client: Client, artifact: Path
) -> None:
    before = len(asked(artifact))
    answer = client.generate({"text_input": "until", "max_tokens": 64, "stop_words": ["two"]})
    assert (answer["text_output"], answer["total_draft_tokens"]) == ("one two", 12)
    assert [event["event"] for event in asked(artifact)[before:]] == ["asked", "aborted"]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, {"temperature": 0.0, "stop_token_ids": [0]}),
        ({"temperature": 0.5, "seed": 7}, {"temperature": 0.5, "top_k": -1, "top_p": 1.0, "sampling_seed": 7}),
        ({"temperature": 0.5, "seed": 2**63 + 5}, {"sampling_seed": 5}),
        ({"top_k": 40}, {"temperature": 1.0, "top_k": 40}),
        ({"end_id": -1}, {"ignore_eos": True}),
        ({"end_id": 9}, {"ignore_eos": True}),
    ],
)
def test_a_request_reaches_the_engine_in_its_own_words(request_, expected, client: Client, artifact: Path) -> None:
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
        ({"num_draft_tokens": 0}, "num_draft_tokens is not supported by SGLang: engine.json decides"),
        ({"max_tokens": 1000}, "prompt and max_tokens are 1005 tokens together, at most 256 fit"),
        ({"text_input": "unknown"}, "internal error, the server's log has more: ValueError: no answer is known"),
    ],
)
def test_a_bad_request_is_told_so_and_the_next_is_served(change, message: str, client: Client) -> None:
    request = {"text_input": "until", "max_tokens": 20}
    with pytest.raises(DeployError, match=message):
        client.generate({**request, **change})
    assert client.generate(request)["text_output"] == ANSWERS["until"]


def test_a_client_that_leaves_ends_its_request(served: Served, client: Client, artifact: Path) -> None:
    """Over gRPC and at the engine: this server passes cancellations on from nowhere else."""
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    before = len(asked(artifact))
    prompt = Tokenizer(artifact / "tokenizer").encode("slow")
    tensors = {
        "input_ids": np.array([prompt], np.int32),
        "input_lengths": np.array([[len(prompt)]], np.int32),
        "request_output_len": np.array([[200]], np.int32),
        "streaming": np.array([[True]]),
    }
    inputs = []
    for name, array in tensors.items():
        inputs.append(grpc.InferInput(name, array.shape, "BOOL" if array.dtype == bool else "INT32"))
        inputs[-1].set_data_from_numpy(array)
    answers: Queue[Any] = Queue()
    with grpc.InferenceServerClient(f"127.0.0.1:{served.grpc}") as connection:
        connection.start_stream(lambda result, error: answers.put(error or result))
        connection.async_stream_infer("tensorrt_llm", inputs)
        answers.get(timeout=10)
        connection.stop_stream(cancel_requests=True)
    deadline = time.monotonic() + 10
    while len(asked(artifact)) < before + 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert [event["event"] for event in asked(artifact)[before:]] == ["asked", "aborted"]
    assert client.generate({"text_input": "until", "max_tokens": 20})["text_output"] == ANSWERS["until"]


def test_without_streams_one_response_is_sent_and_the_engine_is_shut_down(tmp_path: Path) -> None:
    root = tmp_path / "artifact"
    alone = {key: value for key, value in ARGUMENTS.items() if not key.startswith("speculative")}
    make_artifact(root, alone, streaming=False)
    with serving(tmp_path, root / "model_repository") as server:
        answer = server.client.generate({"text_input": "prompt 1", "max_tokens": 64})
        assert (answer["text_output"], answer["total_draft_tokens"]) == (ANSWERS["prompt 1"], 0)
        with pytest.raises(DeployError, match="stream is not served by this repository"):
            server.client.generate({"text_input": "prompt 1", "max_tokens": 64, "stream": True})
    assert asked(root)[-1] == {"event": "shutdown"}


def test_arguments_that_the_engine_does_not_take_keep_the_model_from_loading(tmp_path: Path) -> None:
    root = tmp_path / "artifact"
    make_artifact(root, ARGUMENTS | {"max_sequence_len": 64})
    with (
        pytest.raises(AssertionError, match="Unexpected keyword argument 'max_sequence_len'"),
        serving(tmp_path, root / "model_repository"),
    ):
        pass
