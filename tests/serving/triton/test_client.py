# SPDX-License-Identifier: Apache-2.0
"""The client against servers with valid, invalid, late or endless responses."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from trtspec.core.errors import DeployError, StepTimeout
from trtspec.core.ports import LOOPBACK
from trtspec.serving.triton import client as client_module
from trtspec.serving.triton.client import Client

EVENT_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def serving(answer: Callable[[socket.socket], None], timeout_s: float = 5.0) -> Iterator[tuple[Client, list[bytes]]]:
    """Respond to every connection with `answer`; yield a client and the received requests."""
    received: list[bytes] = []
    listener = socket.create_server((LOOPBACK, 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                received.append(read_request(connection))
                with suppress(OSError):  # the client may disconnect early
                    answer(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield Client(f"http://{LOOPBACK}:{listener.getsockname()[1]}", timeout_s), received
    finally:
        listener.close()


def read_request(connection: socket.socket) -> bytes:
    content = b""
    while b"\r\n\r\n" not in content:
        content += connection.recv(65536)
    head, _, body = content.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0)
    while len(body) < length:
        body += connection.recv(65536)
    return head.split(b"\r\n")[0] + b"\n" + body


def whole(status: str, body: bytes) -> Callable[[socket.socket], None]:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    return lambda connection: connection.sendall(head + body)


def chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


def test_generate_sends_json_and_returns_the_response() -> None:
    with serving(whole("200 OK", b'{"text_output": "hi"}')) as (client, received):
        assert client.generate({"text_input": "a", "max_tokens": 1}) == {"text_output": "hi"}
    line, body = received[0].split(b"\n")
    assert line == b"POST /v2/models/ensemble/generate HTTP/1.1"
    assert json.loads(body) == {"text_input": "a", "max_tokens": 1}


def test_server_error_message_is_forwarded() -> None:
    with (
        serving(whole("400 Bad Request", b'{"error": "beam_width 2 is not supported"}')) as (client, _),
        pytest.raises(DeployError, match="the server answered 400: beam_width 2 is not supported"),
    ):
        client.generate({})
    with (
        serving(whole("500 Oops", b"<html>")) as (client, _),
        pytest.raises(DeployError, match="the server answered 500: <html>"),
    ):
        client.statistics()


@pytest.mark.parametrize("body", [b"not json", b"[1]", b"[" * 100_000])
def test_response_that_is_not_a_json_object_is_an_error(body: bytes) -> None:
    with serving(whole("200 OK", body)) as (client, _), pytest.raises(DeployError, match="is not a JSON object"):
        client.generate({})


@pytest.mark.slow
def test_silent_or_slow_server_times_out() -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(EVENT_STREAM)
        for _ in range(500):  # ten seconds, after which the error would be another
            connection.sendall(chunk(b"."))
            time.sleep(0.02)

    for answer in (lambda connection: connection.recv(1), drip):
        with (
            serving(answer, timeout_s=0.3) as (client, _),
            pytest.raises(StepTimeout, match=r"no answer within 0.3 s"),
        ):
            client.generate({})


def test_endless_response_is_an_error_at_the_size_limit(monkeypatch) -> None:
    def flood(connection: socket.socket) -> None:
        connection.sendall(EVENT_STREAM)
        while True:
            connection.sendall(chunk(b"x" * 65536))

    monkeypatch.setattr(client_module, "MAX_ANSWER_BYTES", 1 << 20)
    with serving(flood) as (client, _), pytest.raises(DeployError, match="the response exceeds 1,048,576 bytes"):
        client.generate({})


def test_unreachable_server_error_has_its_address() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
    client = Client(f"http://{LOOPBACK}:{port}", timeout_s=1)
    assert not client.is_ready()
    with pytest.raises(DeployError, match="the server cannot be reached") as caught:
        client.generate({})
    assert caught.value.where == f"http://127.0.0.1:{port}"


def test_dropped_connection_is_an_error() -> None:
    with serving(lambda connection: None) as (client, _), pytest.raises(DeployError, match="cannot be reached"):
        client.generate({})


@pytest.mark.parametrize(("status", "ready"), [("200 OK", True), ("400 Bad Request", False)])
def test_readiness_follows_the_http_status(status: str, ready: bool) -> None:
    with serving(whole(status, b"")) as (client, received):
        assert client.is_ready() is ready
        assert client.is_ready("m") is ready
    assert received == [b"GET /v2/health/ready HTTP/1.1\n", b"GET /v2/models/m/ready HTTP/1.1\n"]
