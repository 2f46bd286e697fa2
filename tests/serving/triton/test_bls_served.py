# SPDX-License-Identifier: Apache-2.0
"""tensorrt_llm_bls on a real tritonserver.

Its two models are the torch engine with the quickstart pair, with the tensors of TensorRT-LLM's models. The text is
compared with transformers.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import convert, greedy, make_llama, reference_model
from tests.serving.triton.artifact import VOCAB, make_tokenizer
from tests.serving.triton.serving import serving
from tests.serving.triton.streams import generate_stream
from tests.serving.triton.two_models import DRAFT, DRAFT_LEN, ENGINE, PLACES, SERVING, TARGET, engine, lines
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import DeployError
from trtspec.core.paths import model_repository_dir
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model

pytestmark = pytest.mark.triton

TOKENS = 40
DRAFTED, ACCEPTED = "draft_tokens", "accepted_draft_tokens"
SHORT = 60  # tokens of the longest text accepted by the model short_draft
ALONE: Parameters = {"draft_method": "none", "draft_len": 0, "tensorrt_llm_draft_model_name": ""}
BYTES_TOKENIZER = "../../byte-tokenizer"
PROMPTS = lines(16)


def emit_pair(out: Path, serving: ServingSettings = SERVING) -> None:
    """Write a repository with two engines, and with models that combine them in different ways."""
    draft, random = "../../checkpoints/draft", "../../checkpoints/bytes"
    for name, parameters in {
        "tensorrt_llm": engine("../../checkpoints/target"),
        "tensorrt_llm_draft": engine(draft),
        "short_draft": engine(draft, max_input_len=SHORT),
        "bytes": engine(random, BYTES_TOKENIZER, max_input_len=256, max_seq_len=256),
    }.items():
        emit_model(out, name, serving, parameters, source=model_repository_dir() / "tensorrt_llm")
    vocab = json.loads((TARGET / "config.json").read_text())["vocab_size"]
    same: Parameters = {"draft_len": DRAFT_LEN, "max_seq_len": ENGINE.max_seq_len, "vocab_size": vocab}
    lookup = {"draft_method": "ngram", "tensorrt_llm_draft_model_name": ""}
    for name, changes in {
        "tensorrt_llm_bls": {},
        "ensemble": {},
        "lookup_bls": lookup,
        "short_bls": {"tensorrt_llm_draft_model_name": "short_draft"},
        "gathering_bls": {"accumulate_tokens": "true"},
        "alone_bls": ALONE,
        "bytes_bls": {**ALONE, "tensorrt_llm_model_name": "bytes", "tokenizer_dir": BYTES_TOKENIZER},
    }.items():
        emit_model(out, name, serving, {**same, **changes}, source=model_repository_dir() / "tensorrt_llm_bls")


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    """Return an artifact of the pair without a repository."""
    root = tmp_path_factory.mktemp("pair")
    for role, source in (("target", TARGET), ("draft", DRAFT)):
        convert(source, root / "checkpoints" / role)
    (root / "tokenizer").symlink_to(TARGET)
    make_tokenizer(root / "byte-tokenizer")
    convert(make_llama(root / "bytes", seed=1, vocab_size=VOCAB), root / "checkpoints" / "bytes")
    return root


@pytest.fixture(scope="module")
def client(pair: Path) -> Iterator[Client]:
    emit_pair(pair / "models")
    with serving(pair, pair / "models") as served:
        yield replace(served.client, timeout_s=120)
        assert "internal error" not in served.log.read_text()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(TARGET)


@pytest.fixture(scope="module")
def expected(tokenizer: Tokenizer) -> dict[str, str]:
    """Return the text of each prompt according to transformers."""
    model = reference_model(TARGET)
    return {prompt: tokenizer.decode(greedy(model, tokenizer.encode(prompt), TOKENS)) for prompt in PROMPTS}


def streamed(client: Client, prompt: str, model: str = "ensemble", **request: Any) -> list[dict[str, Any]]:
    asked = {"text_input": prompt, "max_tokens": TOKENS, **request}
    return list(generate_stream(client, asked, model))


def text_of(events: Sequence[dict[str, Any]]) -> str:
    return "".join(event["text_output"] for event in events)


def ask_all(
    client: Client, model: str = "ensemble", prompts: Sequence[str] = PROMPTS, **request: Any
) -> list[dict[str, Any]]:
    """Return the responses to all prompts, sent concurrently."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        asked = [{"text_input": prompt, "max_tokens": TOKENS, **request} for prompt in prompts]
        return list(pool.map(lambda one: client.generate(one, model), asked))


def test_target_only_text_equals_transformers(client: Client, expected) -> None:
    answers = ask_all(client, "alone_bls")
    assert [answer["text_output"] for answer in answers] == list(expected.values())
    assert {answer[f"total_{DRAFTED}"] for answer in answers} == {0}
    events = streamed(client, PROMPTS[2], "alone_bls")
    assert text_of(events) == expected[PROMPTS[2]]
    assert len(events) > TOKENS / 2, "tokens must be streamed one by one"


def test_stream_of_byte_tokens_concatenates_to_whole_characters(client: Client, pair: Path) -> None:
    """The target is random and its tokens are bytes, few of which are whole characters."""
    tokenizer, prompt = Tokenizer(pair / "byte-tokenizer"), "né ✓"
    ids = greedy(reference_model(pair / "bytes"), tokenizer.encode(prompt), TOKENS)
    request = {"text_input": prompt, "max_tokens": TOKENS, "end_id": -1, "exclude_input_in_output": False}
    events = list(generate_stream(client, request, "bytes_bls"))
    assert text_of(events) == tokenizer.decode([*tokenizer.encode(prompt), *ids])
    assert len(events) > 5
    assert client.generate(request, "bytes_bls")["text_output"] == text_of(events)


def test_target_only_sampling_equals_the_engine_model(client: Client, tokenizer: Tokenizer) -> None:
    sampling = {"temperature": 1.3, "seed": 11, "exclude_input_in_output": True}
    prompt = tokenizer.encode(PROMPTS[4])
    engine = {"input_ids": prompt, "input_lengths": len(prompt), "request_output_len": TOKENS}
    own = client.generate({**engine, **sampling, "runtime_top_p": 0.95}, "tensorrt_llm")
    asked = {"text_input": PROMPTS[4], "max_tokens": TOKENS, **sampling, "top_p": 0.95}
    assert client.generate(asked, "alone_bls")["text_output"] == tokenizer.decode(own["output_ids"])


@pytest.mark.every_python
@pytest.mark.parametrize(("model", "least"), [("ensemble", 0.7), ("lookup_bls", 0.2)])
def test_concurrent_requests_equal_transformers(model: str, least: float, client: Client, expected) -> None:
    """With a requested draft length, unlike with one chosen by speed, the counts are the same on any machine."""
    answers = ask_all(client, model, num_draft_tokens=DRAFT_LEN)
    assert [answer["text_output"] for answer in answers] == list(expected.values())
    drafted, accepted = (sum(answer[f"total_{kind}"] for answer in answers) for kind in (DRAFTED, ACCEPTED))
    assert least < accepted / drafted < 1.0


def test_concurrent_streams_equal_transformers(client: Client, expected) -> None:
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        streams = list(pool.map(lambda prompt: streamed(client, prompt), PROMPTS))
    assert [text_of(events) for events in streams] == list(expected.values())
    for events in streams:
        whole = events[-1]
        assert sum(event["sequence_length"] for event in events) == whole["num_output_tokens"]
        assert len(events) <= 1 + whole["num_output_tokens"] - whole[f"total_{ACCEPTED}"], "one response per step"


@pytest.mark.parametrize("number", range(DRAFT_LEN + 2))
def test_client_sets_the_draft_length_without_changing_the_text(number: int, client: Client, expected) -> None:
    prompt = PROMPTS[2]
    events = streamed(client, prompt, num_draft_tokens=number)
    assert text_of(events) == expected[prompt]
    drafted, steps = events[-1][f"total_{DRAFTED}"], len(events)
    assert drafted <= min(number, DRAFT_LEN) * steps
    assert (drafted == 0) == (number == 0)
    if number == 0:
        assert steps > TOKENS / 2, "tokens must be streamed one by one while the target continues alone"


def test_acceptance_rate_is_accepted_over_drafted_tokens(client: Client, expected) -> None:
    answer = client.generate({"text_input": PROMPTS[0], "max_tokens": TOKENS})
    drafted, accepted = answer[f"total_{DRAFTED}"], answer[f"total_{ACCEPTED}"]
    assert 0 < accepted <= drafted
    assert answer["acceptance_rate"] == pytest.approx(accepted / drafted)
    assert answer["num_output_tokens"] == answer["sequence_length"] <= TOKENS


def test_stop_word_ends_the_text_and_is_included(client: Client, expected) -> None:
    prompt = PROMPTS[0]
    word = expected[prompt][20:23]
    want = expected[prompt][: expected[prompt].index(word) + len(word)]
    request = {"text_input": prompt, "max_tokens": TOKENS, "stop_words": [word, "never this"]}
    for drafts in (0, DRAFT_LEN):
        text = client.generate({**request, "num_draft_tokens": drafts})["text_output"]
        assert text.startswith(want)
        assert len(text) < len(want) + 8, "at most the token that completes the stop word"


def test_prompt_is_returned_on_request(client: Client, expected) -> None:
    prompt = PROMPTS[1]
    assert text_of(streamed(client, prompt, exclude_input_in_output=False)) == prompt + expected[prompt]


def test_stream_accumulates_text_if_the_repository_enables_it(client: Client, expected) -> None:
    events = streamed(client, PROMPTS[3], "gathering_bls")
    assert events[-1]["text_output"] == expected[PROMPTS[3]]
    assert all(b["text_output"].startswith(a["text_output"]) for a, b in pairwise(events))
    assert len(events) > 2


@pytest.mark.every_python
@pytest.mark.parametrize("model", ["ensemble", "lookup_bls"])
@pytest.mark.parametrize("use_draft_logits", [True, False])
def test_sampled_text_is_reproducible_by_seed(model: str, use_draft_logits: bool, client: Client) -> None:
    request = {"text_input": PROMPTS[4], "max_tokens": TOKENS, "temperature": 1.3, "top_p": 0.95}
    texts = [
        client.generate({**request, "seed": seed, "use_draft_logits": use_draft_logits}, model)["text_output"]
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.every_python
def test_prompt_rejected_by_the_draft_model_gets_the_target_text(client: Client, expected) -> None:
    """The draft model of `short_bls` refuses longer texts, also those that grow too long, while others are served."""
    long = PROMPTS[0] * 4

    def ask(prompt: str) -> dict[str, Any]:
        return client.generate({"text_input": prompt, "max_tokens": 4, "num_draft_tokens": 2}, "short_bls")

    own = client.generate({"text_input": long, "max_tokens": 4}, "alone_bls")["text_output"]
    with ThreadPoolExecutor(8) as pool:
        refused = [pool.submit(ask, long) for _ in range(4)]
        good = [pool.submit(ask, "a = 1\n") for _ in range(4)]
        assert all(future.result()["total_draft_tokens"] for future in good)
        for future in refused:
            assert future.result()["total_draft_tokens"] == 0
            assert future.result()["text_output"] == own
    growing = {"max_tokens": 200, "end_id": -1}
    own = text_of(streamed(client, "a = 1\n", "alone_bls", **growing))
    assert text_of(streamed(client, "a = 1\n", "short_bls", **growing)) == own


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text_input": ""}, "text_input is empty"),
        ({"max_tokens": 1000}, "tokens together, at most 512 fit"),
        ({"max_tokens": 0}, "max_tokens is 0, expected at least 1"),
        ({"num_draft_tokens": -1}, "num_draft_tokens is -1, expected 0 or more"),
        ({"temperature": -1.0}, "temperature is -1.0, expected 0 or more"),
        ({"return_log_probs": True}, "return_log_probs 1 is not supported by tensorrt_llm_bls"),
        ({"beam_width": 2, "length_penalty": 2.0}, "beam_width 2 is not supported by tensorrt_llm_bls"),
        ({"tempreature": 1.0}, "did you mean temperature?"),
        ({"seed": 1, "random_seed": 2}, "seed is 1 and random_seed is 2"),
        ({"min_length": -2}, "min_length is -2, expected 0 or more"),
        ({"return_generation_logits": True}, "return_generation_logits is not supported by tensorrt_llm_bls"),
    ],
)
def test_invalid_request_is_rejected_with_the_reason(change: dict[str, Any], message: str, client: Client) -> None:
    request = {"text_input": "a", "max_tokens": 2, **change}
    with pytest.raises(DeployError, match=message):
        client.generate(request)
    with pytest.raises(DeployError, match=message):
        list(generate_stream(client, request))


@pytest.mark.every_python
def test_disconnected_clients_free_their_slots(client: Client) -> None:
    """More clients disconnect than there are slots, each from a request that would take a minute."""
    for _ in range(3 * PLACES):
        connection = HTTPConnection(client.where.removeprefix("http://"), timeout=30)
        asked = {"text_input": "a", "max_tokens": 500, "stream": True, "end_id": -1}
        connection.request("POST", "/v2/models/tensorrt_llm_bls/generate_stream", json.dumps(asked))
        connection.getresponse().read1(1)
        connection.close()
    start = time.monotonic()
    assert client.generate({"text_input": "a", "max_tokens": 2})["num_output_tokens"] == 2
    assert time.monotonic() - start < 10


def test_repository_without_streaming_returns_whole_responses(pair: Path, expected) -> None:
    emit_pair(pair / "whole", replace(SERVING, streaming=False))
    asked = {"ensemble", "tensorrt_llm_bls", "tensorrt_llm", "tensorrt_llm_draft"}
    for model in (pair / "whole").iterdir():
        if model.name not in asked:
            shutil.rmtree(model)  # each would load, including torch
    with serving(pair, pair / "whole") as served:
        client = replace(served.client, timeout_s=120)
        some = PROMPTS[: PLACES // 2]
        texts = [answer["text_output"] for answer in ask_all(client, prompts=some)]
        assert texts == [expected[prompt] for prompt in some]
        with pytest.raises(DeployError, match="stream is not supported by this repository"):
            client.generate({"text_input": "a", "max_tokens": 2, "stream": True})
        assert "internal error" not in served.log.read_text()
