# SPDX-License-Identifier: Apache-2.0
"""An emitted repository with tiny random models on a real tritonserver, with every kind of request.

The tokenizer's tokens are single bytes and the models are random, so almost every token is part of a character.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from queue import Queue
from threading import Event
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest

from tests._support.deployed import deploy_local
from tests.serving.triton.artifact import ENGINE, SERVING, VOCAB, emit_repository, make_artifact, write_manifest
from tests.serving.triton.streams import generate_stream
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import DeployError
from trtspec.core.processes import wait_until
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.targets.local import stop
from trtspec.engine.engine import Engine
from trtspec.engine.generation.request import EngineRequest
from trtspec.engine.settings import EngineSettings
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.server import find_server
from trtspec.store.artifact import load_manifest

pytestmark = pytest.mark.triton

PROMPTS = [f"prompt {number}: é" for number in range(16)]
TOKENS = 48
CANONICAL = {"text_input": "What is machine learning?", "max_tokens": 20, "bad_words": "", "stop_words": ""}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory) -> Path:
    """Return an artifact that was moved after it was built."""
    root = make_artifact(tmp_path_factory.mktemp("made") / "artifact")
    return root.rename(tmp_path_factory.mktemp("moved") / "artifact")


@pytest.fixture(scope="module")
def record(artifact: Path, tmp_path_factory) -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_STATE", str(tmp_path_factory.mktemp("state")))
        try:
            find_server()
        except DeployError as error:
            pytest.skip(str(error))
        before = sorted(artifact.rglob("*"))
        yield deploy_local(artifact, DeployOptions(timeout_s=120)).record
        stop("tiny")
        assert sorted(artifact.rglob("*")) == before, "serving must not change the artifact"


@pytest.fixture(scope="module")
def client(record) -> Client:
    return Client(f"http://127.0.0.1:{record.http}", timeout_s=30)


@pytest.fixture(scope="module")
def tokenizer(artifact: Path) -> Tokenizer:
    return Tokenizer(artifact / "tokenizer")


@pytest.fixture(scope="module")
def expected(artifact: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the text of each prompt by the target alone in this process."""
    engine = Engine(artifact / "checkpoints/target", None, EngineSettings(max_seq_len=128, device="cpu"))
    asked = [EngineRequest(tuple(tokenizer.encode(prompt)), TOKENS, end_ids=tokenizer.end_ids) for prompt in PROMPTS]
    texts = [tokenizer.decode(result.ids) for result in engine.generate(asked)]
    engine.close()
    return dict(zip(PROMPTS, texts, strict=True))


def streamed(client: Client, prompt: str, **request: Any) -> str:
    events = list(generate_stream(client, {"text_input": prompt, "max_tokens": TOKENS, **request}))
    assert len(events) > 1
    return "".join(event["text_output"] for event in events)


@pytest.mark.every_python
def test_canonical_request_is_served_with_drafts(client: Client) -> None:
    answer = client.generate(CANONICAL)
    assert answer["num_input_tokens"] == len(CANONICAL["text_input"])
    assert 0 < answer["num_output_tokens"] <= 20
    assert answer["total_draft_tokens"] > 0


@pytest.mark.every_python
def test_whole_response_and_stream_equal_the_target(client: Client, expected: dict[str, str]) -> None:
    for prompt in PROMPTS[:4]:
        assert client.generate({"text_input": prompt, "max_tokens": TOKENS})["text_output"] == expected[prompt]
        assert streamed(client, prompt) == expected[prompt]


def test_concurrent_streams_equal_the_target(client: Client, expected: dict[str, str]) -> None:
    with ThreadPoolExecutor(16) as pool:
        for _ in range(3):
            assert list(pool.map(lambda prompt: streamed(client, prompt), PROMPTS)) == list(expected.values())


def test_client_sets_the_draft_length_without_changing_the_text(client: Client) -> None:
    alone = client.generate({**CANONICAL, "num_draft_tokens": 0})
    some = client.generate({**CANONICAL, "num_draft_tokens": 1})
    whole = client.generate(CANONICAL)
    assert alone["text_output"] == some["text_output"] == whole["text_output"]
    assert alone["total_draft_tokens"] == 0 < some["total_draft_tokens"] < whole["total_draft_tokens"]


def test_stop_word_ends_the_text_and_is_included(client: Client, expected: dict[str, str]) -> None:
    prompt = PROMPTS[0]
    word = next(char for char in expected[prompt][3:] if char.isascii() and char.isprintable())
    answer = client.generate({"text_input": prompt, "max_tokens": TOKENS, "stop_words": [word, "never this"]})
    assert answer["text_output"] == expected[prompt][: expected[prompt].index(word) + 1]


def test_prompt_is_returned_on_request(client: Client, expected: dict[str, str]) -> None:
    for text in (
        client.generate({"text_input": PROMPTS[1], "max_tokens": TOKENS, "exclude_input_in_output": False})[
            "text_output"
        ],
        streamed(client, PROMPTS[1], exclude_input_in_output=False),
    ):
        assert text == PROMPTS[1] + expected[PROMPTS[1]]


def test_sampled_text_is_reproducible_by_seed(client: Client) -> None:
    request = {**CANONICAL, "temperature": 1.5, "top_p": 1.0}
    texts = [client.generate({**request, "seed": seed})["text_output"] for seed in (1, 1, 2)]
    assert texts[0] == texts[1] != texts[2]


NEUTRAL_REQUEST = {
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
    "pad_id": 0,
    "top_k": 1,
    "temperature": 1.0,
}


def test_neutral_client_fields_are_accepted_without_effect(client: Client) -> None:
    assert client.generate({**CANONICAL, **NEUTRAL_REQUEST})["text_output"] == client.generate(CANONICAL)["text_output"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0, expected more than 0 and at most 10000"),
        ({"num_top_logprobs": 21}, "num_top_logprobs is 21, expected 0 to 20"),
        ({"beam_width": 2}, "beam_width 2 is not supported by the torch engine"),
        ({"temperature": -1.0}, "temperature is -1.0, expected 0 or more"),
        ({"max_tokens": 1000}, "prompt and max_tokens are 1025 tokens together, at most 128 fit"),
        ({"text_input": "x" * 65}, "the prompt has 65 tokens, expected at most 64"),
        ({"text_input": ""}, "text_input is empty"),
    ],
)
def test_invalid_request_is_rejected_and_the_next_is_served(change, message: str, client: Client) -> None:
    with pytest.raises(DeployError, match=message):
        client.generate({**CANONICAL, **change})
    with pytest.raises(DeployError, match=message):
        list(generate_stream(client, {**CANONICAL, **change}))
    assert client.generate(CANONICAL)["num_output_tokens"]


def test_temperature_alone_is_greedy(client: Client) -> None:
    """As in TensorRT-LLM, whose clients always send 1.0."""
    assert (
        client.generate({**CANONICAL, "temperature": 1.5})["text_output"] == client.generate(CANONICAL)["text_output"]
    )


def test_bad_words_and_embedding_bias_change_the_text(client: Client) -> None:
    text = client.generate(CANONICAL)["text_output"]
    letter = next(char for char in text if char.isascii() and char.isalpha())
    assert letter not in client.generate({**CANONICAL, "bad_words": [letter]})["text_output"]
    preferred = {"embedding_bias_words": ["q"], "embedding_bias_weights": [500.0]}
    whole = client.generate({**CANONICAL, **preferred})
    assert whole["text_output"] == "q" * 20
    assert client.generate({**CANONICAL, **preferred, "num_draft_tokens": 0})["text_output"] == whole["text_output"]


def test_log_probabilities_are_consistent_in_whole_and_streamed_responses(client: Client) -> None:
    request = {**CANONICAL, "return_log_probs": True, "num_top_logprobs": 3}
    whole = client.generate(request)
    assert len(whole["output_log_probs"]) == 20
    assert whole["cum_log_probs"] == pytest.approx(sum(whole["output_log_probs"]), rel=1e-5)
    assert len(whole["top_logprobs"]) == len(whole["top_logprob_ids"]) == 3 * 20
    assert whole["top_logprobs"][::3] == whole["output_log_probs"], "the most probable token is the greedy one"
    pieces = list(generate_stream(client, request))
    assert [row for piece in pieces for row in _rows(piece.get("output_log_probs", []))] == whole["output_log_probs"]
    assert "output_log_probs" not in client.generate(CANONICAL)


def _rows(value: Any) -> list[float]:
    return value if isinstance(value, list) else [value]


WITHOUT_PROMPT = {"exclude_input_in_output": True}


def test_draft_tokens_in_the_request_are_verified(client: Client, tokenizer: Tokenizer) -> None:
    """A right and a wrong draft both give the text without a draft, up to one token after the accepted ones."""
    prompt = tokenizer.encode(PROMPTS[0])
    engine = {
        "input_ids": prompt,
        "input_lengths": len(prompt),
        "request_output_len": 4,
        "num_draft_tokens": 0,
    } | WITHOUT_PROMPT
    alone = client.generate(engine, model="tensorrt_llm")
    wrong = [*alone["output_ids"][:2], (alone["output_ids"][2] + 1) % VOCAB]
    for draft, accepted in ((alone["output_ids"][:3], 3), (wrong, 2)):
        answer = client.generate({**engine, "draft_input_ids": draft}, model="tensorrt_llm")
        assert answer["output_ids"] == alone["output_ids"][: accepted + 1]
        assert (answer["total_draft_tokens"], answer["total_accepted_draft_tokens"]) == (3, accepted)
    with pytest.raises(DeployError, match=f"the draft has a token id outside 0..{VOCAB - 1}"):
        client.generate({**engine, "draft_input_ids": [VOCAB]}, model="tensorrt_llm")


def test_grpc_engine_stream_sends_new_ids_and_ends_with_a_data_response(record, tokenizer, expected) -> None:
    grpc = pytest.importorskip("tritonclient.grpc", reason="tritonclient[grpc] is not installed")
    answers: Queue[Any] = Queue()
    prompt = tokenizer.encode(PROMPTS[2])
    tensors = {
        "input_ids": np.array([prompt], np.int32),
        "input_lengths": np.array([[len(prompt)]], np.int32),
        "request_output_len": np.array([[TOKENS]], np.int32),
        "streaming": np.array([[True]]),
    }
    inputs = []
    for name, array in tensors.items():
        inputs.append(grpc.InferInput(name, array.shape, "BOOL" if array.dtype == bool else "INT32"))
        inputs[-1].set_data_from_numpy(array)
    with grpc.InferenceServerClient(record.endpoints["grpc"]) as connection:
        connection.start_stream(lambda result, error: answers.put(error or result))
        connection.async_stream_infer("tensorrt_llm", inputs, enable_empty_final_response=True)
        ids: list[int] = []
        final = False
        while not final:
            result = answers.get(timeout=20)
            final = result.get_response().parameters["triton_final_response"].bool_param
            length = result.as_numpy("sequence_length").item()
            ids += result.as_numpy("output_ids")[0, 0, :length].tolist()
        connection.stop_stream(cancel_requests=True)
    assert tokenizer.decode(ids) == expected[PROMPTS[2]]
    assert result.as_numpy("num_output_tokens").item() == len(ids)


@pytest.mark.every_python
def test_disconnected_client_frees_its_slot(record, client: Client) -> None:
    """More clients disconnect than there are slots, and the next request is served normally."""
    for _ in range(SERVING.max_batch_size + 4):
        connection = HTTPConnection("127.0.0.1", record.http, timeout=5)
        body = '{"text_input": "a", "max_tokens": 120, "stream": true, "end_id": -1}'
        connection.request("POST", "/v2/models/ensemble/generate_stream", body)
        connection.getresponse().read1(1)
        connection.close()
    start = time.monotonic()
    assert client.generate(CANONICAL)["num_output_tokens"]
    assert time.monotonic() - start < 10


def test_legacy_field_names_are_accepted_and_misspelled_ones_rejected(record, client: Client) -> None:
    from tritonclient import grpc

    asked = {"text_input": "a", "max_tokens": 12, "temperature": 1.0, "top_p": 0.99, "end_id": -1}
    texts = [client.generate({**asked, name: 5})["text_output"] for name in ("seed", "random_seed")]
    assert texts[0] == texts[1] != client.generate({**asked, "random_seed": 6})["text_output"]
    for model, sent, said in (
        ("ensemble", {"tempreature": 1.0}, "did you mean temperature?"),
        ("ensemble", {"seed": 1, "random_seed": 2}, "seed is 1 and random_seed is 2"),
        ("ensemble", {"min_length": -2}, "min_length is -2, expected 0 or more"),
        ("ensemble", {"top_k": -2}, "top_k is -2, expected"),
        ("ensemble", {"max_tokens": 0}, "max_tokens is 0, expected"),
    ):
        with pytest.raises(DeployError, match=re.escape(said)):
            client.generate({**asked, **sent}, model)
    assert client.generate({**asked, "length_penalty": 0.8, "beam_width": 1})["text_output"]
    bench = {**asked, "accumulate_tokens": True, "min_length": 12, "end_id": 1_048_576}
    assert client.generate(bench)["num_output_tokens"] == 12

    def infer(**tensors: np.ndarray) -> Any:
        inputs = []
        kinds = {"O": "BYTES", "i": "INT32", "u": "UINT64", "f": "FP32"}
        for name, array in tensors.items():
            inputs.append(grpc.InferInput(name, array.shape, kinds[array.dtype.kind]))
            inputs[-1].set_data_from_numpy(array)
        answers: Queue[Any] = Queue()
        with grpc.InferenceServerClient(record.endpoints["grpc"]) as connection:
            connection.start_stream(lambda result, error: answers.put(error or result))
            connection.async_stream_infer("ensemble", inputs)
            found = answers.get(timeout=20)
            connection.stop_stream()
        return found

    same = {
        "text_input": np.array([[b"a"]], object),
        "max_tokens": np.array([[12]], np.int32),
        "temperature": np.array([[1.0]], np.float32),
        "top_p": np.array([[0.99]], np.float32),
        "end_id": np.array([[-1]], np.int32),
    }
    found = infer(**same, random_seed=np.array([[5]], np.uint64))
    assert found.as_numpy("text_output").item().decode() == texts[0]
    found = infer(**same, seed=np.array([[4]], np.uint64), random_seed=np.array([[5]], np.uint64))
    assert "seed is 4 and random_seed is 5" in str(found)


def test_server_metrics_have_the_method_label(record, artifact: Path, client: Client) -> None:
    method = load_manifest(artifact).recipe.speculation.method
    assert client.generate(CANONICAL)["num_output_tokens"]
    with urlopen(record.endpoints["metrics"], timeout=10) as answer:
        samples = [line for line in answer.read().decode().splitlines() if line.startswith("trtspec_")]
    assert samples
    assert all(f'method="{method}"' in line for line in samples), samples[:3]


def test_text_level_model_wakes_the_server_scheduler(client: Client) -> None:
    """A wake-up request delivers requests that arrived during `execute`, reaches no other model and causes no more."""

    def counted() -> tuple[int, int, int]:
        stats = {each["name"]: each for each in client.statistics()["model_stats"]}
        ensemble, engine = stats["ensemble"], stats["tensorrt_llm"]
        failed = int(ensemble["inference_stats"]["fail"]["count"])
        return ensemble["inference_count"] - engine["inference_count"], engine["inference_count"], failed

    nudges, texts, failed = counted()
    assert client.generate(CANONICAL)["num_output_tokens"]
    assert wait_until(lambda: counted()[0] > nudges, 10)
    time.sleep(0.2)
    now = counted()
    assert now[0] - nudges < 10 * (now[1] - texts)
    assert now[2] == failed


def test_overload_is_reported_as_a_full_queue(client: Client) -> None:
    """Both the ensemble and the engine model, which rejects requests itself, report overload.

    Triton reads the status of a response after it has freed it, so HTTP returns 400 for every response with an error.
    """
    prompt = {"input_ids": [5], "input_lengths": 1, "request_output_len": 120, "end_id": -1}
    asked = {"ensemble": {"text_input": "a", "max_tokens": 120, "end_id": -1}, "tensorrt_llm": prompt}
    full = f"the queue is full: {SERVING.max_queue_size} requests wait (serving.max_queue_size)"
    said = {
        "ensemble": "the server answered 503: [request id: <id_unknown>] Exceeds maximum queue size",
        "tensorrt_llm": f'the server answered 400: data: {{"error":"{full}"}}\n\n',
    }
    client = replace(client, timeout_s=120)
    with ThreadPoolExecutor(SERVING.max_queue_size + 6 * SERVING.max_batch_size) as pool:

        def ask(model: str, refused: Event) -> str:
            try:
                for _ in generate_stream(client, asked[model], model):
                    if refused.is_set():
                        break
                return "served"
            except DeployError as error:
                refused.set()
                return error.message

        for model in asked:
            refused = Event()
            told = {*pool.map(partial(ask, refused=refused), [model] * pool._max_workers)}
            assert told == {"served", said[model]}


def test_repository_without_streaming_returns_whole_responses(
    artifact: Path, expected, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path / "state"))
    copy = tmp_path / "artifact"
    for name in ("checkpoints", "tokenizer"):
        shutil.copytree(artifact / name, copy / name)
    engine = replace(ENGINE, method="none", draft_len=0)
    emit_repository(copy / "model_repository", replace(SERVING, streaming=False), engine, has_draft=False)
    write_manifest(copy, "tiny")
    record = deploy_local(copy, DeployOptions(timeout_s=120)).record
    client = Client(f"http://127.0.0.1:{record.http}", timeout_s=30)
    try:
        with ThreadPoolExecutor(4) as pool:
            ask = [{"text_input": prompt, "max_tokens": TOKENS} for prompt in PROMPTS]
            assert [answer["text_output"] for answer in pool.map(client.generate, ask)] == list(expected.values())
        with pytest.raises(DeployError, match="stream is not supported by this repository"):
            client.generate({**CANONICAL, "stream": True})
    finally:
        stop("tiny")
    assert "internal error" not in DeploymentJournal("tiny").log.read_text()
