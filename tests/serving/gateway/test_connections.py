# SPDX-License-Identifier: Apache-2.0
"""Connection limits: idle and slow connections are closed, and their number is limited."""

from __future__ import annotations

import logging
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import uvicorn

from tests.serving.gateway.running import wait_until
from trtspec.serving.gateway.__main__ import server_config
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.connections import ConnectionLimits, LimitedConnection, max_connections
from trtspec.serving.gateway.process_pool import listen

HEAD_S = 0.4
READ_S = 0.5
LARGE = b"x" * (8 << 20)  # more than the buffers of a connection take
WAIT_S = 20.0  # longer than any test, shorter than uvicorn's keep-alive timeout
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
CONFIG = GatewayConfig("127.0.0.1:1", 0, "m", "tensorrt_llm", "", 100, 100)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Respond after the whole request body has arrived."""
    while (await receive()).get("more_body"):
        pass
    body = LARGE if scope["path"] == "/large" else b"ok"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def served(config: uvicorn.Config) -> Iterator[Callable[[], socket.socket]]:
    """Run a server in a thread and yield a function that connects to it; the connections are closed at the end."""
    server, listener = uvicorn.Server(config), listen("127.0.0.1", 0)[0]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    address, clients = listener.getsockname(), []

    def connect() -> socket.socket:
        clients.append(socket.create_connection(address, timeout=WAIT_S))
        return clients[-1]

    thread.start()
    try:
        wait_until(lambda: server.started)
        yield connect
    finally:
        for client in clients:
            client.close()
        server.should_exit = True
        thread.join(WAIT_S)


def config_of(most: int = 100, head_s: float = HEAD_S, keep_s: int = 75, read_s: float = WAIT_S) -> uvicorn.Config:
    protocol: Any = partial(LimitedConnection, ConnectionLimits(most, head_s, read_s))
    return uvicorn.Config(
        app, http=protocol, lifespan="off", log_config=None, timeout_keep_alive=keep_s, timeout_graceful_shutdown=1
    )


def is_ended(client: socket.socket) -> bool:
    """Return whether the server closed a connection before the socket timeout."""
    try:
        return client.recv(1000) == b""
    except ConnectionResetError:
        return True


def answer(client: socket.socket) -> bytes:
    client.sendall(REQUEST)
    found = b""
    while not found.endswith(b"ok"):
        more = client.recv(1000)
        assert more, "the server closed the connection"
        found += more
    return found


@pytest.mark.parametrize("begun", [b"", b"GET / HT", REQUEST[:-2]])
def test_connection_with_incomplete_head_is_closed(begun: bytes) -> None:
    with served(config_of()) as connect:
        client = connect()
        client.sendall(begun)
        assert is_ended(client)


def test_slowly_sent_head_is_limited_by_a_total_timeout() -> None:
    with served(config_of()) as connect:
        client = connect()
        client.settimeout(HEAD_S / 8)
        client.sendall(REQUEST[:-2])
        for sent in range(1000):
            try:
                client.sendall(b"X: 1\r\n")
                assert client.recv(1000) == b""
                break
            except TimeoutError:
                assert sent < 100, "the connection is still open"
            except ConnectionError:
                break


def test_connection_with_incomplete_second_head_is_closed() -> None:
    with served(config_of()) as connect:
        client = connect()
        answer(client)
        client.sendall(REQUEST[:9])
        assert is_ended(client)


def test_connection_stays_open_between_requests_and_during_a_body() -> None:
    with served(config_of()) as connect:
        client, other = connect(), connect()
        client.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\na")
        answer(other)
        assert is_ended(connect()), "the head timeout has passed"
        answer(other)
        client.sendall(b"bc")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("count", [1, 3])
def test_connection_with_unread_responses_is_closed_unless_its_client_reads(count: int) -> None:
    with served(config_of(read_s=READ_S)) as connect:
        silent, reading = connect(), connect()
        for client in (silent, reading):
            client.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n" * count)
        received = 0
        while received < count * len(LARGE):
            part = reading.recv(len(LARGE) // 10)
            assert part
            received += len(part)
            time.sleep(READ_S / 50 / count)
        time.sleep(2 * READ_S)  # all that the reader got is more than the buffers of the silent client take
        silent.settimeout(WAIT_S)
        assert is_dropped(silent)
        answer(reading)


def is_dropped(client: socket.socket) -> bool:
    """Read all that has arrived; return whether the connection ends then."""
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def test_connection_limit_closes_new_connections_until_one_is_released(caplog: pytest.LogCaptureFixture) -> None:
    config = config_of(most=3, head_s=WAIT_S)
    with caplog.at_level(logging.WARNING, "trtspec.serving.gateway.connections"), served(config) as connect:
        kept = [connect() for _ in range(3)]
        for client in kept:
            answer(client)
        assert all(is_ended(connect()) for _ in range(5))
        assert caplog.messages == ["more than 3 connections are open; closing new ones"]
        kept[0].close()
        wait_until(lambda: _is_taken(connect()))
        answer(kept[1])


def _is_taken(client: socket.socket) -> bool:
    try:
        return answer(client).startswith(b"HTTP/1.1 200")
    except (AssertionError, ConnectionError):
        return False


def test_connection_limit_is_half_of_the_open_file_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((1024, 512), (1, 1), (1 << 20, 16384), (resource.RLIM_INFINITY, 16384)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert max_connections() == most


def test_gateway_server_config_applies_the_connection_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.serving.gateway.__main__.ConnectionLimits", partial(ConnectionLimits, head_s=HEAD_S))
    config = server_config(app, CONFIG)
    with served(config) as connect:
        assert is_ended(connect())
    assert config.timeout_keep_alive == 75
