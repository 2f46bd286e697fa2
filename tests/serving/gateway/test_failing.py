# SPDX-License-Identifier: Apache-2.0
"""Errors returned to a client when the Triton server or the client itself misbehaves.

A strict double of Triton's gRPC service produces states that a real server cannot be forced into.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import requests
from tritonclient.grpc import service_pb2

from tests.serving.gateway.running import WAIT_S, Fake, RunningGateway, fake_triton, serve_gateway, wait_until
from tests.serving.triton.answering import response
from tests.serving.triton.artifact import make_tokenizer
from trtspec.serving.gateway.config import GatewayConfig, GatewayLimits
from trtspec.serving.gateway.errors import ApiError
from trtspec.serving.gateway.triton import TritonClient
from trtspec.serving.triton.python_models.responses import parse_error_id

HEAD = "Host: localhost\r\nContent-Type: application/json\r\n"
LIMITS = GatewayLimits(
    max_body_bytes=30_000,
    max_texts=3,
    max_choices=2,
    timeout_s=2.0,
    stall_s=0.5,
    write_timeout_s=0.5,
    body_timeout_s=0.5,
)
MODEL_S = 15.0


@pytest.fixture(scope="module")
def fake() -> Iterator[Fake]:
    with fake_triton() as fake:
        yield fake


@pytest.fixture(scope="module")
def failing(fake: Fake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    tokenizer = make_tokenizer(tmp_path_factory.mktemp("bytes") / "tokenizer")
    config = GatewayConfig(
        fake.address, 0, "m", "tensorrt_llm", str(tokenizer), max_seq_len=200_000, max_input_len=4000, limits=LIMITS
    )
    with serve_gateway(config) as entry:
        yield entry


@pytest.fixture(autouse=True)
def calm(fake: Fake) -> None:
    fake.serve, fake.status, fake.ready, fake.waits, fake.closes_early = says("ab"), None, True, False, False
    fake.lingers = False
    fake.ended.clear()
    fake.made.clear()


def says(*texts: str) -> Any:
    """Respond with these texts, one per response, encoded by a tokenizer of single bytes."""
    ids = [[byte - 32 for byte in text.encode()] for text in texts]  # the first token is '!', id 1

    def serve(model: str, inputs: dict[str, Any]) -> list[Any]:
        return [response(output_ids=[[row]], sequence_length=[[len(row)]]) for row in ids]

    return serve


def error_of(answer: requests.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


def events(answer: requests.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        (grpc.StatusCode.UNAVAILABLE, 503, "overloaded"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, 503, "overloaded"),
        (grpc.StatusCode.INVALID_ARGUMENT, 400, "refused_by_model"),
        (grpc.StatusCode.DEADLINE_EXCEEDED, 504, "timeout"),
        (grpc.StatusCode.INTERNAL, 500, "model_failed"),
        (grpc.StatusCode.CANCELLED, 503, "broken"),
    ],
)
def test_grpc_status_maps_to_http_status(
    code: grpc.StatusCode, status: int, told: str, fake: Fake, failing: RunningGateway
) -> None:
    fake.serve, fake.closes_early, fake.status = says(), True, (code, "said in /srv/models/x.py by it")
    answer = failing.post()
    assert (answer.status_code, error_of(answer)["code"]) == (status, told)
    assert "/srv" not in answer.text
    assert ("said in" in answer.text) == (status == 400), (
        "what the model refuses is for the client, the rest for the log"
    )
    assert ("retry-after" in answer.headers) == (status == 503)


@pytest.mark.slow
def test_logit_bias_is_sized_to_the_vocabulary_or_rejected_if_unsupported(fake: Fake, failing: RunningGateway) -> None:
    refused = error_of(failing.post(logit_bias={"1": 2}))
    assert (refused["param"], refused["code"]) == ("logit_bias", "unsupported_parameter")
    config = replace(failing.config, vocab_size=200, port=0)
    with fake.taking("embedding_bias"), serve_gateway(config) as entry:
        assert entry.post(logit_bias={"1": 2, "3": -4.5}).status_code == 200
        [bias] = fake.made[-1].inputs["embedding_bias"]
        assert (bias.shape, bias[1], bias[3], np.count_nonzero(bias)) == ((200,), 2.0, -4.5, 2)
        fake.serve = lambda *_: [response(error="embedding_bias is not supported by an engine")]
        refused = error_of(entry.post(logit_bias={"1": 2}))
        assert (refused["param"], refused["message"]) == ("logit_bias", "logit_bias is not supported by an engine")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("top_k is -1, expected 0 or more", 400, "refused_by_model"),
        ("Stub process 'tensorrt_llm_0_0' is not healthy.", 500, "model_failed"),
        ("tensorrt_llm is not ready", 503, "overloaded"),
        ("the request was cancelled", 503, "broken"),
    ],
)
def test_error_message_determines_the_http_status(
    words: str, status: int, told: str, fake: Fake, failing: RunningGateway
) -> None:
    fake.serve = lambda *_: [response(error=words)]
    answer = failing.post()
    assert (answer.status_code, error_of(answer)["code"]) == (status, told)


@pytest.mark.parametrize("words", ["Stub process 'tensorrt_llm_0_0' is not healthy.", f"internal error {'0a' * 6}: so"])
def test_model_internal_error_is_reported_by_log_id_only(
    words: str, fake: Fake, failing: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    fake.serve = lambda *_: [response(error=words)]
    message = error_of(failing.post())["message"]
    told = parse_error_id(message)
    assert told
    assert words not in message
    if parse_error_id(words):
        assert (told, "the server's log" in message, caplog.messages) == ("0a" * 6, True, [])
    else:
        assert caplog.messages == [f"internal error {told}: the model failed: {words}"]


def test_gateway_exception_is_reported_by_log_id_only(
    failing: RunningGateway, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("of /srv/x")

    monkeypatch.setattr("trtspec.serving.gateway.completions.check_model", fails)
    monkeypatch.setattr("trtspec.serving.gateway.app.describe", fails)
    for ask in (failing.post, lambda: failing.get("/openapi.json")):
        answer = ask()
        error = error_of(answer)
        assert (answer.status_code, error["code"], "Zero" in error["message"]) == (500, "internal_error", False)
        assert f"internal error {parse_error_id(error['message'])}: " in caplog.messages[-1]
        assert "ZeroDivisionError: of /srv/x" in caplog.messages[-1]


@pytest.mark.slow
def test_completed_stream_is_not_cancelled(fake: Fake, failing: RunningGateway) -> None:
    """The server might keep a cancelled stream, and the model behind it would never be unloaded."""
    fake.lingers = True
    assert failing.post().status_code == 200
    assert fake.ended == [True]


def test_full_queue_is_reported_as_overload(fake: Fake, failing: RunningGateway) -> None:
    fake.serve = lambda *_: [response(error="Exceeds maximum queue size")]
    answer = failing.post(stream=True)
    assert (answer.status_code, error_of(answer)["type"]) == (503, "server_error")
    assert failing.metric('trtspec_openai_rejected_total{reason="overloaded"}') >= 1


@pytest.mark.parametrize("stream", [False, True])
def test_interrupted_generation_is_an_error(stream: bool, fake: Fake, failing: RunningGateway) -> None:
    fake.closes_early = True
    rejected = failing.metric('trtspec_openai_rejected_total{reason="broken"}')
    answer = failing.post(stream=stream)
    if stream:
        assert answer.status_code == 200
        first, last = events(answer)
        assert first["choices"][0]["text"]
        assert last["error"]["code"] == "broken"
        assert failing.metric('trtspec_openai_broken_streams_total{reason="broken"}') >= 1
        assert failing.metric('trtspec_openai_rejected_total{reason="broken"}') == rejected
    else:
        assert (answer.status_code, error_of(answer)["code"]) == (503, "broken")


def test_stream_over_http_1_0_has_no_chunks(fake: Fake, failing: RunningGateway) -> None:
    fake.serve = says("ab", "cd")
    body = json.dumps({"model": "m", "prompt": "x", "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.0\r\n{HEAD}Content-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", failing.config.port), timeout=10) as client:
        client.sendall(head.encode() + body)
        received = b""
        while part := client.recv(1 << 16):
            received += part
    head, _, text = received.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200")
    assert "transfer-encoding" not in head
    assert f"content-length: {len(text)}" in head
    *lines, last = [line.removeprefix("data: ") for line in text.removesuffix("\n\n").split("\n\n")]
    assert ("".join(json.loads(line)["choices"][0]["text"] for line in lines), last) == ("abcd", "[DONE]")


@pytest.mark.slow
def test_stalled_model_ends_the_stream_with_an_error(fake: Fake, failing: RunningGateway) -> None:
    fake.waits = True
    told = events(failing.post(stream=True))[-1]["error"]
    assert told["code"] == "stalled"
    wait_until(fake.made[-1].left.is_set)


@pytest.mark.slow
def test_unresponsive_model_gives_504(fake: Fake, failing: RunningGateway) -> None:
    fake.serve, fake.waits = says(), True
    answer = failing.post()
    assert (answer.status_code, error_of(answer)["code"]) == (504, "timeout")


@pytest.mark.parametrize("stream", [False, True])
def test_client_disconnect_cancels_the_request_within_a_second(
    stream: bool, fake: Fake, failing: RunningGateway
) -> None:
    fake.waits = True
    body = json.dumps({"model": "m", "prompt": "x", "stream": stream}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\n{HEAD}Content-Length: {len(body)}"
    with socket.create_connection(("127.0.0.1", failing.config.port), timeout=10) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        wait_until(lambda: bool(fake.made))
    wait_until(fake.made[-1].left.is_set, 1.0)
    wait_until(lambda: failing.metric("trtspec_openai_texts_in_flight") == 0)


@pytest.mark.slow
def test_client_that_does_not_read_has_its_request_cancelled(fake: Fake, failing: RunningGateway) -> None:
    fake.serve, fake.waits = says(*["x" * 500] * 1500), True
    body = json.dumps({"model": "m", "prompt": "x", "stream": True, "max_tokens": 100_000}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\n{HEAD}Content-Length: {len(body)}"
    # On a busy machine, the other limits could end the request before the client's buffer is full.
    limits = replace(LIMITS, stall_s=WAIT_S, timeout_s=WAIT_S)
    with serve_gateway(replace(failing.config, port=0, limits=limits)) as entry, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", entry.config.port))
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        wait_until(lambda: bool(fake.made))
        wait_until(fake.made[-1].left.is_set)
        wait_until(lambda: entry.metric('trtspec_openai_broken_streams_total{reason="slow_client"}') == 1)


def test_concurrent_generations_are_limited(fake: Fake, failing: RunningGateway) -> None:
    fake.waits = True
    asked = {"model": "m", "prompt": "x", "stream": True}
    open_ones = [requests.post(f"{failing.url}/v1/completions", json=asked, stream=True, timeout=20) for _ in range(3)]
    refused = failing.post()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "the limit is 3" in error_of(refused)["message"]
    for each in open_ones:
        each.close()


@pytest.mark.slow
def test_health_reflects_the_readiness_of_the_server(fake: Fake, failing: RunningGateway) -> None:
    wait_until(lambda: failing.get("/health").status_code == 200)
    fake.ready = False
    wait_until(lambda: failing.get("/health").status_code == 503)
    assert error_of(failing.get("/health"))["message"] == "the model is not ready"


@pytest.mark.slow
def test_unreachable_server_gives_503_for_health_and_requests_promptly(failing: RunningGateway, tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        config = GatewayConfig(address, 0, "m", "tensorrt_llm", failing.config.tokenizer, 100, 50)
        with serve_gateway(config, keys=["k"]) as entry:
            began = time.monotonic()
            assert entry.get("/health").status_code == 503
            assert entry.post().status_code == 401
            answer = requests.post(
                f"{entry.url}/v1/completions",
                json={"model": "m", "prompt": "x"},
                headers={"Authorization": "Bearer k"},
                timeout=10,
            )
            assert (answer.status_code, error_of(answer)["code"]) == (503, "overloaded")
            told = "the model is unavailable; retry in a moment"
            assert (error_of(answer)["message"], answer.headers["retry-after"]) == (told, "1")
            assert time.monotonic() - began < 5
            assert entry.get("/v1/models").status_code == 401


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content-Type": "text/plain"}, b"{}", 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"{}", 415),
        ({"Content-Type": "application/json", "Origin": "http://evil.example"}, b"{}", 403),
        ({"Content-Type": "application/json", "Origin": "http://["}, b"{}", 403),
        ({"Content-Type": "application/json"}, b"{", 400),
        ({"Content-Type": "application/json"}, b"[]", 400),
        ({"Content-Type": "application/json"}, b'{"model": "m", "prompt": "x", "temperature": NaN}', 400),
        ({"Content-Type": "application/json"}, b"\xff\xfe", 400),
        ({"Content-Type": "application/json"}, b"[" * 15_000, 400),
        ({"Content-Type": "application/json"}, b" " * 30_001, 413),
    ],
)
def test_malformed_request_is_rejected(
    headers: dict[str, str], body: bytes, status: int, failing: RunningGateway
) -> None:
    answer = requests.post(f"{failing.url}/v1/completions", data=body, headers=headers, timeout=10)
    assert answer.status_code == status, answer.text
    error_of(answer)


@pytest.mark.slow
def test_oversized_or_slow_body_is_rejected(failing: RunningGateway) -> None:
    chunks = (b" " * 1000 for _ in range(40))
    url, headers = f"{failing.url}/v1/completions", {"Content-Type": "application/json"}
    assert requests.post(url, data=chunks, headers=headers, timeout=10).status_code == 413
    head = f"POST /v1/completions HTTP/1.1\r\n{HEAD}Content-Length: 9\r\n\r\n{{".encode()
    with socket.create_connection(("127.0.0.1", failing.config.port), timeout=5) as client:
        client.sendall(head)
        assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_invalid_or_oversized_prompt_is_rejected_before_the_model_is_called(
    fake: Fake, failing: RunningGateway
) -> None:
    over = failing.post(prompt="x" * 20_100)  # at most five bytes per token
    assert (over.status_code, error_of(over)["code"]) == (400, "context_length_exceeded")
    assert "20,100 bytes" in error_of(over)["message"]
    long = failing.post(prompt="x" * 4001)
    assert "the prompt has 4001" in error_of(long)["message"]
    for prompt in ("", [], [[]], ["a", 1], [10**9], [True], {"a": 1}, None, "\ud800"):
        answer = failing.post(prompt=prompt)
        assert (answer.status_code, error_of(answer)["param"]) == (400, "prompt"), prompt
    many = failing.post(prompt=["a", "b"], n=2)
    assert "the limit is 2" in error_of(many)["message"]
    assert fake.made == []


def test_unsupported_parameter_is_rejected_before_the_model_is_called(fake: Fake, failing: RunningGateway) -> None:
    assert error_of(failing.post(presence_penalty=0.5))["param"] == "presence_penalty"
    assert error_of(failing.post(logprobs=1))["param"] == "logprobs"
    assert fake.made == []


def test_request_parameters_map_to_model_inputs(fake: Fake, failing: RunningGateway) -> None:
    failing.post(prompt=[5, 6], temperature=0.5, top_p=0.9, top_k=7, seed=-1, max_tokens=9, stop="b")
    failing.post(temperature=0)
    failing.post(top_p=0, ignore_eos=True, num_draft_tokens=0)
    sampled, greedy, free = (
        {name: array.reshape(-1).tolist() for name, array in request.inputs.items()} for request in fake.made
    )
    assert (sampled["input_ids"], sampled["input_lengths"], sampled["request_output_len"]) == ([5, 6], [2], [9])
    assert (sampled["runtime_top_k"], sampled["seed"], sampled["streaming"]) == ([7], [2**63 - 1], [False])
    assert (greedy["temperature"], greedy["runtime_top_k"], greedy["runtime_top_p"]) == ([1.0], [1], [1.0])
    assert (free["runtime_top_k"], free["end_id"], free["num_draft_tokens"]) == ([1], [-1], [0])
    assert greedy["seed"] != free["seed"]  # requests without a seed get different ones
    assert "stop_words_list" in sampled
    assert "stop_words_list" not in greedy


@pytest.mark.slow
def test_logprobs_are_returned_if_the_model_provides_them(fake: Fake, failing: RunningGateway) -> None:
    fake.outputs = ["output_ids", "sequence_length", "output_log_probs"]
    told = np.array([[[-0.5, -2.0]]], np.float32)
    fake.serve = lambda *_: [response(output_ids=[[[66, 67]]], sequence_length=[[2]], output_log_probs=told)]
    with serve_gateway(replace(failing.config, port=0)) as entry:
        whole = entry.post(logprobs=0).json()["choices"][0]["logprobs"]
        assert whole["token_logprobs"] == [-0.5, -2.0]
        assert whole["text_offset"] == [0, 1]
        streamed = events(entry.post(logprobs=0, stream=True))
        assert streamed[0]["choices"][0]["logprobs"]["token_logprobs"] == [-0.5, -2.0]
        assert error_of(entry.post(logprobs=2))["param"] == "top_logprobs"
    fake.outputs = ["output_ids", "sequence_length"]


@pytest.mark.slow
def test_open_streams_get_an_error_at_gateway_shutdown(
    fake: Fake, failing: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    fake.waits = True
    slow = GatewayLimits(stall_s=30.0)
    config = GatewayConfig(fake.address, 0, "m", "tensorrt_llm", failing.config.tokenizer, 200, 100, limits=slow)
    with serve_gateway(config) as entry:
        answers: list[requests.Response] = []
        asking = threading.Thread(target=lambda: answers.append(entry.post(stream=True)))
        asking.start()
        wait_until(lambda: bool(fake.made))
        entry.server.should_exit = True
        asking.join(MODEL_S)
    last = answers[0].text.split("\n\n")[-2]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "shutting_down", "[DONE] must not follow"
    assert not [record.message for record in caplog.records if record.exc_info]


def test_readiness_is_asked_again_after_a_stream_broke_off() -> None:
    """A cached answer from before the break must not be used: resumes would go to the dead server."""

    async def break_off() -> tuple[bool, bool]:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            client = TritonClient(f"127.0.0.1:{closed.getsockname()[1]}", "m", 2.0)
            client._ready, client._asked_at = True, time.monotonic()
            before = await client.is_ready()
            with pytest.raises(ApiError):
                async for _ in client.generate(service_pb2.ModelInferRequest(model_name="m")):
                    pass
            after = await client.is_ready()
            await client.close()
        return before, after

    assert asyncio.run(break_off()) == (True, False)
