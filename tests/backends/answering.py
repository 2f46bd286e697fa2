# SPDX-License-Identifier: Apache-2.0
"""Shared tests of models on asynchronous engines, with a real tritonserver and an engine double.

Doubles answer from a table; the tests cover everything between client and engine: streams, stop texts, counts and
cancelled requests. The tokenizer's tokens are single bytes.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import pytest

from tests.serving.gateway.running import serve_gateway
from tests.serving.triton.artifact import make_tokenizer
from tests.serving.triton.exposed import exported_metrics, metrics_added
from tests.serving.triton.serving import Served
from tests.serving.triton.streams import generate_stream
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.processes import wait_until
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.triton.client import Client

QUEUE_S = 0.25  # the queue time that the double reports for each request
ANSWERS = {f"prompt {number}": f"answer {number}: é and more" for number in range(8)} | {
    "until": "one two three",
    "slow": "x" * 200,
}


def make_checkpoints(root: Path, pause_s: float = 0.0) -> None:
    """Write a tokenizer and table-driven models; a step has three tokens, and texts end with the end id."""
    tokenizer = Tokenizer(make_tokenizer(root / "tokenizer"))
    for role in ("target", "draft"):
        (root / "checkpoints" / role).mkdir(parents=True)
    table = {}
    for prompt, text in ANSWERS.items():
        ids = [*tokenizer.encode(text), tokenizer.end_ids[0]]
        steps = [ids[start : start + 3] for start in range(0, len(ids), 3)]
        key, pause = " ".join(map(str, tokenizer.encode(prompt))), 0.05 if prompt == "slow" else pause_s
        table[key] = {"steps": steps, "drafted": 12, "accepted": 9, "pause_s": pause, "queue_s": QUEUE_S}
    (root / "checkpoints" / "target" / "answers.json").write_text(json.dumps(table))


def asked(artifact: Path) -> list[dict[str, Any]]:
    """Return the requests that the double recorded."""
    notes = artifact / "checkpoints" / "target" / "requests.jsonl"
    return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


def openai_answer(served: Served, artifact: Path, **body: Any) -> dict[str, Any]:
    """Return the response of a gateway in front of the server."""
    config = GatewayConfig(f"127.0.0.1:{served.grpc}", 0, "m", "tensorrt_llm", str(artifact / "tokenizer"), 256, 32)
    with serve_gateway(replace(config, draft_len=3)) as gateway:
        response = gateway.post(prompt="prompt 1", max_tokens=60, temperature=0, **body)
        document: dict[str, Any] = response.json()
        return document


class AnswersFromATable:
    """Subclassed by test modules with the fixtures `artifact`, `served` and `client`.

    `STEPS` is the number of decoder steps that the engine reports for the fourth prompt, or None.
    `BY_POSITION` is the number of accepted tokens over all positions, or None if the engine does not report positions.
    """

    STEPS: int | None = None
    BY_POSITION: int | None = None

    def test_answer_is_the_engines_text_with_counts(self, client: Client) -> None:
        answer = client.generate({"text_input": "prompt 1", "max_tokens": 64})
        assert answer["text_output"] == ANSWERS["prompt 1"]
        assert answer["num_input_tokens"] == len("prompt 1")
        assert answer["num_output_tokens"] == answer["sequence_length"] == len(ANSWERS["prompt 1"].encode())
        assert (answer["total_draft_tokens"], answer["total_accepted_draft_tokens"]) == (12, 9)
        assert answer["acceptance_rate"] == 0.75

    def test_stream_pieces_add_up_to_the_answer_and_its_counts(self, client: Client) -> None:
        events = list(generate_stream(client, {"text_input": "prompt 2", "max_tokens": 64}))
        assert len(events) > 1  # the double is faster than the server, so one may have the tokens of many steps
        assert "".join(event["text_output"] for event in events) == ANSWERS["prompt 2"]
        assert events[-1]["num_output_tokens"] == len(ANSWERS["prompt 2"].encode())
        assert events[-1]["total_accepted_draft_tokens"] == 9

    def test_concurrent_clients_each_get_their_own_answer(self, client: Client) -> None:
        prompts = [f"prompt {number % 8}" for number in range(32)]
        with ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(lambda prompt: client.generate({"text_input": prompt, "max_tokens": 64}), prompts))
        assert [text["text_output"] for text in texts] == [ANSWERS[prompt] for prompt in prompts]

    def test_max_tokens_ends_an_answer_within_a_step(self, client: Client) -> None:
        answer = client.generate({"text_input": "prompt 3", "max_tokens": 7})
        assert (answer["text_output"], answer["num_output_tokens"]) == ("answer ", 7)

    def test_stop_text_ends_the_answer_and_aborts_the_engine_request(self, client: Client, artifact: Path) -> None:
        before = len(asked(artifact))
        answer = client.generate({"text_input": "until", "max_tokens": 64, "stop_words": ["two"]})
        assert answer["text_output"] == "one two"
        assert [event["event"] for event in asked(artifact)[before:]] == ["asked", "aborted"]

    def test_prompt_is_returned_on_request(self, client: Client) -> None:
        request = {"text_input": "until", "max_tokens": 3, "exclude_input_in_output": False}
        assert client.generate(request)["text_output"] == "untilone"

    def test_cancelled_stream_aborts_the_engine_request(self, served: Served, client: Client, artifact: Path) -> None:
        """Over gRPC, the only protocol for which this server passes on cancellations, and at the engine."""
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
        wait_until(lambda: len(asked(artifact)) >= before + 2, 10)
        assert [event["event"] for event in asked(artifact)[before:]] == ["asked", "aborted"]
        assert client.generate({"text_input": "until", "max_tokens": 20})["text_output"] == ANSWERS["until"]

    def test_metrics_match_the_engines_counts(self, served: Served) -> None:
        request = {"text_input": "prompt 3", "max_tokens": 60}
        told_s, before = 1.1, None  # the metrics of earlier requests are reported twice a second
        while before != (before := exported_metrics(served, "tensorrt_llm")):
            time.sleep(told_s)
        news = metrics_added(served, "tensorrt_llm", lambda: served.client.generate(request))
        told = {"prompt": len("prompt 3"), "generated": len(ANSWERS["prompt 3"].encode()), "drafted": 12, "accepted": 9}
        assert {name: news[f"trtspec_{name}_tokens_total"] for name in told} == told
        assert not [name for name in news if "waiting" in name]
        assert news.get("trtspec_accepted_tokens_by_position_total") == self.BY_POSITION
        assert (news["trtspec_queue_seconds_count"], news["trtspec_queue_seconds_sum"]) == (1, QUEUE_S)
        assert news.get("trtspec_decode_steps_total") == self.STEPS
