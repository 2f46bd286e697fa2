# SPDX-License-Identifier: Apache-2.0
"""Connections over TLS and through proxies."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.store.registries.conftest import QUICK
from tests.store.registries.double import Handler, Registry
from trtspec.store.registries import http_client
from trtspec.store.registries.authorization import Authorization
from trtspec.store.registries.http_client import (
    Broken,
    Patience,
    RegistryClient,
    RegistryError,
    new_connection,
    read_from,
)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate of localhost with its key, in one file, that signs itself."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    path = tmp_path / "localhost.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost"
    )
    subprocess.run(
        [*command.split(), "-keyout", str(path), "-out", str(tmp_path / "only.pem")],
        capture_output=True,
        timeout=60,
        check=True,
    )
    path.write_text(path.read_text() + (tmp_path / "only.pem").read_text())
    return path


@pytest.fixture
def origin(certificate: Path) -> Iterator[str]:
    """The address of a registry over TLS."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"registry": Registry()}))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"https://localhost:{server.server_port}"
    server.shutdown()
    thread.join(10)
    server.server_close()


def client(origin: str) -> RegistryClient:
    return RegistryClient(origin, Authorization("localhost", "", lambda: None), QUICK, threading.Event())


def test_certificate_is_verified(origin: str, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    http_client._tls_context.cache_clear()
    with pytest.raises(RegistryError, match="its certificate is not valid") as raised:
        client(origin).exchange("GET", "/v2/x/tags/list")
    assert "SSL_CERT_FILE" in str(raised.value.hint)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    http_client._tls_context.cache_clear()
    reply = client(origin).exchange("GET", "/v2/x/tags/list")
    assert (reply.status, reply.body) == (200, b'{"name": "x", "tags": []}')
    http_client._tls_context.cache_clear()


def test_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://user:p%40ss@proxy.example:8080")
    monkeypatch.setenv("NO_PROXY", "inside.example")
    connection = new_connection("https://registry.example.com", 5)
    assert (connection.host, connection.port) == ("proxy.example", 8080)
    assert connection._tunnel_host == "registry.example.com"
    assert connection._tunnel_headers["Proxy-Authorization"] == "Basic dXNlcjpwQHNz"
    for origin, host in (("https://inside.example", "inside.example"), ("https://127.0.0.1:5000", "127.0.0.1")):
        assert new_connection(origin, 5).host == host


@contextmanager
def dripping(head: bytes, pieces: Iterable[bytes]) -> Iterator[str]:
    """Run a server that sends `head` to each client, and then one piece every 50 ms; provide its address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            while True:
                try:
                    accepted, _ = server.accept()
                    accepted.sendall(head)
                    for piece in pieces:
                        accepted.sendall(piece)
                        time.sleep(0.05)
                except OSError:
                    return

        threading.Thread(target=drip, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def patient(origin: str, patience: Patience) -> RegistryClient:
    return RegistryClient(origin, Authorization("x", "", lambda: None), patience, threading.Event())


def test_slow_headers_end_at_the_deadline() -> None:
    """A server that sends one byte of a header at a time is ended by the deadline of the exchange."""
    with dripping(b"", [b"H"] * 1000) as origin:
        started = time.monotonic()
        with pytest.raises(RegistryError, match="gave up after 2 attempts"):
            patient(origin, replace(QUICK, exchange_s=0.5, attempts=2)).exchange("GET", "/v2/")
        assert time.monotonic() - started < 20


def test_slow_body_ends_at_the_deadline() -> None:
    """A server that sends one byte of a file at a time is ended by the deadline of the transfer."""
    with dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n", [b"x"] * 1000) as origin:
        started = time.monotonic()
        with pytest.raises(Broken, match="less than 64 MiB arrived"):
            received(patient(origin, replace(QUICK, transfer_s=0.5)))
        assert time.monotonic() - started < 20


def received(client: RegistryClient) -> bytes:
    with client.stream("/blob", {}) as (response, pieces):
        return b"".join(map(bytes, read_from(response, pieces, 0)))


def test_chunked_body_arrives_whole() -> None:
    chunks = [b"4\r\nabcd\r\n", b"3\r\nef", b"g\r\n0\r\n\r\n"]
    with dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", chunks) as origin:
        assert received(patient(origin, QUICK)) == b"abcdefg"
