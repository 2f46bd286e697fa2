# SPDX-License-Identifier: Apache-2.0
"""Connections over TLS and through proxies."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.store.registries.conftest import QUICK
from tests.store.registries.double import Handler, Registry
from trtspec.store.registries import http_client
from trtspec.store.registries.authorization import Authorization
from trtspec.store.registries.http_client import RegistryClient, RegistryError, new_connection


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


def test_slow_headers_end_at_the_deadline(tmp_path: Path) -> None:
    """A server that sends one byte of a header at a time is ended by the deadline of the exchange."""
    import socket
    import time
    from dataclasses import replace

    with socket.create_server(("127.0.0.1", 0)) as server:

        def drip() -> None:
            while True:
                try:
                    accepted, _ = server.accept()
                    for _ in range(1000):
                        accepted.sendall(b"H")
                        time.sleep(0.05)
                except OSError:
                    return

        threading.Thread(target=drip, daemon=True).start()
        patience, started = replace(QUICK, exchange_s=0.5, attempts=2), time.monotonic()
        slow = RegistryClient(
            f"http://127.0.0.1:{server.getsockname()[1]}",
            Authorization("x", "", lambda: None),
            patience,
            threading.Event(),
        )
        with pytest.raises(RegistryError, match="gave up after 2 attempts"):
            slow.exchange("GET", "/v2/")
        assert time.monotonic() - started < 20
        server.shutdown(socket.SHUT_RDWR)
