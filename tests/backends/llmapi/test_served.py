# SPDX-License-Identifier: Apache-2.0
"""The LLM API's repository on a real tritonserver, a strict stand-in in the place of tensorrt_llm.

The stand-in answers from a table; what is tested is everything between a client and `LLM`: arguments, sampling,
streams, stop texts, counts, refusals and clients that leave. The tokenizer's tokens are single bytes.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest
import yaml

from tests.triton.artifact import make_tokenizer
from tests.triton.serving import DOUBLES, Served, serving
from trtspec.backends.llmapi.repository import MODEL_YAML, EmitLlmApiRepository
from trtspec.checkpoint.tokenizer import Tokenizer
from trtspec.errors import DeployError
from trtspec.triton.client import Client
from trtspec.triton.emission import ServingSettings

pytestmark = pytest.mark.triton

ANSWERS = {f"prompt {number}": f"answer {number}: é and more" for number in range(8)} | {
    "until": "one two three",
    "slow": "x" * 200,
}
COUNTS = {"drafted": 12, "accepted": 9}
SETTINGS = EmitLlmApiRepository(
    (), ServingSettings(max_batch_size=4), "", max_input_len=32, max_seq_len=256, gpu_ids=(1,)
)
TRTLLM = "1.3.0rc27"


def make_artifact(root: Path, settings: EmitLlmApiRepository, **arguments: Any) -> Tokenizer:
    """Lay out an artifact whose models are tables; texts come three tokens a step, and end with the end id."""
    tokenizer = Tokenizer(make_tokenizer(root / "tokenizer"))
    for role in ("target", "draft"):
        (root / "checkpoints" / role).mkdir(parents=True)
    table = {}
    for prompt, text in ANSWERS.items():
        ids = [*tokenizer.encode(text), tokenizer.end_ids[0]]
        steps = [ids[start : start + 3] for start in range(0, len(ids), 3)]
        key = " ".join(map(str, tokenizer.encode(prompt)))
        table[key] = {"steps": steps, **COUNTS, "pause_s": 0.05 if prompt == "slow" else 0.0}
    (root / "checkpoints" / "target" / "answers.json").write_text(json.dumps(table))
    emission = replace(settings, model_yaml=json.dumps(document(settings, **arguments)))
    emission.emit(root / "model_repository")
    # the stub looks for packages beside the model before it looks anywhere else that a test could choose
    package = root / "model_repository" / MODEL_YAML.parent / "tensorrt_llm"
    shutil.copytree(DOUBLES / "tensorrt_llm_api" / "tensorrt_llm", package)
    return tokenizer


def document(settings: EmitLlmApiRepository, **changes: Any) -> dict[str, Any]:
    speculation = {"decoding_type": "Eagle3", "max_draft_len": 3, "speculative_model": "../../checkpoints/draft"}
    return {
        "model": "../../checkpoints/target",
        "backend": "pytorch",
        "max_batch_size": settings.serving.max_batch_size,
        "max_input_len": settings.max_input_len,
        "max_seq_len": settings.max_seq_len,
        "kv_cache_config": {"free_gpu_memory_fraction": 0.9, "enable_block_reuse": True},
        "speculative_config": speculation,
        "triton_config": {"max_batch_size": settings.serving.max_batch_size, "decoupled": settings.serving.streaming},
        **changes,
    }


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("llmapi") / "artifact"
    make_artifact(root, SETTINGS)
    return root


@pytest.fixture(scope="module")
def served(artifact: Path) -> Iterator[Served]:
    with serving(artifact.parent, artifact / "model_repository", environment={"TRTLLM_DOUBLE": TRTLLM}) as server:
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
    assert events[-1]["num_output_tokens"] == len(ANSWERS["prompt 2"].encode())
    assert events[-1]["total_accepted_draft_tokens"] == 9


def test_many_clients_at_once_each_get_their_own(client: Client) -> None:
    prompts = [f"prompt {number % 8}" for number in range(32)]
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda prompt: client.generate({"text_input": prompt, "max_tokens": 64}), prompts))
    assert [text["text_output"] for text in texts] == [ANSWERS[prompt] for prompt in prompts]


def test_a_length_ends_an_answer_within_a_step(client: Client) -> None:
    answer = client.generate({"text_input": "prompt 3", "max_tokens": 7})
    assert answer["text_output"] == "answer "
    assert answer["num_output_tokens"] == 7


def test_a_stop_text_ends_an_answer_wherever_its_tokens_lie(client: Client, artifact: Path) -> None:
    before = len(asked(artifact))
    answer = client.generate({"text_input": "until", "max_tokens": 64, "stop_words": ["two"]})
    assert answer["text_output"] == "one two"
    assert [event["event"] for event in asked(artifact)[before:]] == ["asked", "aborted"]


def test_the_prompt_comes_back_where_it_is_asked_for(client: Client) -> None:
    request = {"text_input": "until", "max_tokens": 3, "exclude_input_in_output": False}
    assert client.generate(request)["text_output"] == "untilone"


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, {"temperature": None, "top_k": None, "top_p": None, "seed": None, "end_id": 0, "ignore_eos": False}),
        ({"temperature": 0.0, "top_k": 5}, {"temperature": None, "top_k": None}),
        ({"temperature": 0.5, "seed": 7}, {"temperature": 0.5, "top_k": None, "top_p": 1.0, "seed": 7}),
        ({"top_k": 40}, {"temperature": 1.0, "top_k": 40, "top_p": 1.0}),
        ({"top_p": 0.5}, {"temperature": 1.0, "top_k": None, "top_p": 0.5}),
        ({"end_id": -1}, {"end_id": None, "ignore_eos": True}),
        ({"end_id": 9}, {"end_id": 9, "ignore_eos": False}),
    ],
)
def test_a_request_reaches_llm_in_its_own_words(request_, expected, client: Client, artifact: Path) -> None:
    client.generate({"text_input": "until", "max_tokens": 5, **request_})
    noted = asked(artifact)[-1]
    assert {key: noted[key] for key in expected} == expected
    assert (noted["max_tokens"], noted["detokenize"], noted["return_perf_metrics"]) == (5, False, True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repetition_penalty": 1.2}, "repetition_penalty 1.2 is not supported by the LLM API"),
        ({"bad_words": ["x"]}, "bad_words is not supported by the LLM API"),
        ({"return_generation_logits": True}, "return_generation_logits is not supported by the LLM API"),
        ({"num_draft_tokens": 0}, "num_draft_tokens is not supported by the LLM API: model.yaml decides"),
        ({"temperature": -1.0}, "temperature is -1.0, expected 0 or more"),
        ({"max_tokens": 1000}, "prompt and max_tokens are 1005 tokens together, at most 256 fit"),
        ({"text_input": "x" * 33}, "the prompt has 33 tokens, at most 32 are taken"),
        ({"text_input": "unknown"}, "internal error, the server's log has more: RequestError: no answer is known"),
    ],
)
def test_a_bad_request_is_told_so_and_the_next_is_served(change, message: str, client: Client) -> None:
    request = {"text_input": "until", "max_tokens": 20}
    with pytest.raises(DeployError, match=message):
        client.generate({**request, **change})
    with pytest.raises(DeployError, match=message):
        list(client.generate_stream({**request, **change}))
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


def test_an_older_version_without_streams_refuses_sampling_and_shuts_down(tmp_path: Path) -> None:
    """Version 1.0 takes its own spelling alone, and takes the most probable tokens whatever is asked."""
    root = tmp_path / "artifact"
    serving_settings = ServingSettings(max_batch_size=2, streaming=False)
    settings = EmitLlmApiRepository((), serving_settings, "", max_input_len=32, max_seq_len=64, greedy_only=True)
    speculation = {"decoding_type": "Eagle", "max_draft_len": 3, "speculative_model_dir": "../../checkpoints/draft"}
    make_artifact(root, settings, speculative_config=speculation)
    with serving(tmp_path, root / "model_repository", environment={"TRTLLM_DOUBLE": "1.0.0"}) as server:
        ask = [{"text_input": f"prompt {number}", "max_tokens": 64 - 8} for number in range(8)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(server.client.generate, ask))
        assert [answer["text_output"] for answer in answers] == [ANSWERS[each["text_input"]] for each in ask]
        with pytest.raises(DeployError, match="does not sample from the target's own distribution"):
            server.client.generate({**ask[0], "temperature": 0.7})
        with pytest.raises(DeployError, match="stream is not served by this repository"):
            server.client.generate({**ask[0], "stream": True})
        assert server.client.generate({**ask[0], "top_k": 1})["text_output"] == ANSWERS["prompt 0"]
    assert asked(root)[-1] == {"event": "shutdown"}


def test_arguments_that_llm_does_not_take_keep_the_model_from_loading(tmp_path: Path) -> None:
    root = tmp_path / "artifact"
    make_artifact(root, SETTINGS)
    path = root / "model_repository" / MODEL_YAML
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "max_sequence_len": 64}))
    with (
        pytest.raises(AssertionError, match=r"max_sequence_len\\n  Extra inputs are not permitted"),
        serving(tmp_path, root / "model_repository", environment={"TRTLLM_DOUBLE": TRTLLM}),
    ):
        pass
