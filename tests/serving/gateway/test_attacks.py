# SPDX-License-Identifier: Apache-2.0
"""Attacks on a gateway in its own process: memory stays bounded, and other requests are still served."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
import requests

from tests.serving.gateway.running import fake_triton, wait_until
from tests.serving.gateway.test_failing import says
from tests.serving.triton.artifact import make_tokenizer
from trtspec.serving.gateway.command import gateway_command, write_config
from trtspec.serving.gateway.config import GatewayConfig, GatewayLimits
from trtspec.serving.gateway.process_pool import listen

MB = 1 << 20
CLOSING = b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
PATHS = ("/v1/models", "/v1/models/m", "/health", "/metrics", "/version", "/openapi.json", "/nothing")
FLOOD_MB = 16


@dataclass(frozen=True)
class Gateway:
    """A gateway process."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def peak_mb(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024

    def forget_peak(self) -> float:
        """Reset the peak of the resident memory and return the current value."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")
        return self.rss_mb()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=20)

    def serves(self) -> bool:
        answer = requests.post(f"{self.url}/v1/completions", json={"model": "m", "prompt": "x"}, timeout=20)
        return answer.status_code == 200


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("gateway")
    tokenizer = make_tokenizer(root / "tokenizer")
    with fake_triton() as fake, listen("127.0.0.1", 0)[0] as free:
        fake.serve = says("ab")
        port = free.getsockname()[1]
        free.close()
        limits = GatewayLimits(max_body_bytes=4 * MB, body_timeout_s=5.0)
        config = GatewayConfig(
            fake.address, port, "m", "tensorrt_llm", str(tokenizer), max_seq_len=4100, max_input_len=4000, limits=limits
        )
        write_config(config, root / "config.json")
        process = subprocess.Popen(
            gateway_command(root / "config.json"),
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TRTSPEC_ALLOWED_HOSTS": "api.example.com"},
        )
        try:
            gateway = Gateway(port, process.pid)
            wait_until(lambda: _answers(gateway))
            assert gateway.serves()
            yield gateway
            assert process.poll() is None
        finally:
            process.kill()
            process.wait(10)


def _answers(gateway: Gateway) -> bool:
    with suppress(OSError):
        return requests.get(f"{gateway.url}/version", timeout=5).status_code == 200
    return False


def pour(client: socket.socket, part: bytes, megabytes: int = FLOOD_MB) -> int:
    """Send `part` repeatedly until the server closes the connection; return the number of bytes it accepted."""
    sent = 0
    with suppress(OSError):
        while sent < megabytes * MB:
            client.sendall(part)
            sent += len(part)
    return sent


def last_words(client: socket.socket) -> bytes:
    found = b""
    with suppress(OSError):
        while more := client.recv(65536):
            found += more
    return found


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "localhost.evil.example", "10.0.0.1"])
def test_dns_rebinding_request_is_rejected_with_421(path: str, host: str, gateway: Gateway) -> None:
    host = host.format(port=gateway.port)
    for headers in ({"Host": host}, {"Host": host, "Origin": f"http://{host}"}):
        answer = requests.get(gateway.url + path, headers=headers, timeout=20)
        assert (answer.status_code, answer.json()["error"]["code"]) == (421, "foreign_host")
        assert "TRTSPEC_ALLOWED_HOSTS" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", PATHS)
def test_cross_origin_request_is_rejected_with_403(path: str, gateway: Gateway) -> None:
    for origin in ("http://evil.example", "null", f"http://localhost:{gateway.port + 1}"):
        answer = requests.get(gateway.url + path, headers={"Origin": origin}, timeout=20)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_origin")
    own = requests.get(gateway.url + path, headers={"Origin": gateway.url}, timeout=20)
    assert own.status_code in (200, 404)


def test_completions_check_the_host_before_the_body(gateway: Gateway) -> None:
    for named, status in (({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403)):
        headers = {"Content-Type": "application/json", **named}
        assert requests.post(f"{gateway.url}/v1/completions", b"{", headers=headers, timeout=20).status_code == status
    for host in ("localhost", f"localhost:{gateway.port}", f"[::1]:{gateway.port}", "127.0.0.1", "api.example.com"):
        assert requests.get(f"{gateway.url}/version", headers={"Host": host}, timeout=20).status_code == 200


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: evil.example\r\n", b"Host: \r\n"])
def test_missing_duplicate_or_empty_host_header_is_rejected(hosts: bytes, gateway: Gateway) -> None:
    with gateway.connect() as client:
        client.sendall(b"GET /version HTTP/1.1\r\nConnection: close\r\n" + hosts + b"\r\n")
        assert last_words(client).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    ("start", "part"),
    [
        (HEAD, b"X: " + b"a" * 1000 + b"\r\n"),
        (HEAD, b"a:\r\n" * 250),
        (HEAD + b"X: ", b"a" * 1000),
        (b"GET /" + b"a" * 100, b"a" * 1000),
        (b"", b"a" * 1000),
        (b"", b"\r\n" * 500),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: " + b"a" * 1000 + b"\r\n"),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX: ", b"a" * 1000),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n2;x=", b"a" * 1000),
    ],
    ids=["headers", "short", "header", "path", "method", "lines", "trailers", "trailer", "extension"],
)
def test_head_and_trailer_floods_are_bounded_before_authentication(start: bytes, part: bytes, gateway: Gateway) -> None:
    before = gateway.forget_peak()

    def flood(_: int) -> int:
        with gateway.connect() as client:
            with suppress(OSError):
                client.sendall(start)
            return pour(client, part)

    with ThreadPoolExecutor(8) as pool:
        sent = [*pool.map(flood, range(8))]
    assert max(sent) < FLOOD_MB * MB, "each must be closed after the socket buffers are full"
    assert gateway.peak_mb() - before < 24, (before, gateway.peak_mb())
    assert gateway.serves()


@pytest.mark.parametrize("lines", [600, 100])
def test_oversized_head_is_rejected_with_431(lines: int, gateway: Gateway) -> None:
    with gateway.connect() as client:
        value = b"a" * (1000 if lines == 100 else 2)
        client.sendall(CLOSING + (b"X: " + value + b"\r\n") * lines + b"\r\n")
        words = last_words(client)
        assert words[:12] in (b"HTTP/1.1 431", b""), words[:100]
    with gateway.connect() as client:
        client.sendall(b"GET /version HTTP/1.1\r\nHost: localhost\r\n" + b"X: aaa\r\n" * 100 + b"\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 200")


def test_trailers_are_not_treated_as_headers(gateway: Gateway) -> None:
    body = json.dumps({"model": "m", "prompt": "x"}).encode()
    chunk = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
    trailer = b"Host: evil.example\r\nOrigin: http://evil.example\r\n\r\n"
    with gateway.connect() as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunk + trailer)
        assert last_words(client).startswith(b"HTTP/1.1 200")


def test_body_of_many_small_chunks_is_accepted(gateway: Gateway) -> None:
    body = json.dumps({"model": "m", "prompt": "x" * 3000}).encode()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    with gateway.connect() as client:
        client.sendall(HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks + b"0\r\n\r\n")
        assert last_words(client).startswith(b"HTTP/1.1 200")


def test_concurrent_incomplete_heads_use_bounded_memory(gateway: Gateway) -> None:
    before, clients = gateway.forget_peak(), []
    try:
        for _ in range(900):
            clients.append(gateway.connect())
            with suppress(OSError):
                clients[-1].sendall(b"GET / HTTP/1.1\r\nX: " + b"a" * 60_000)
        assert gateway.serves()
        assert gateway.peak_mb() - before < 32 + 16, "unlimited it would be 54 MB plus the connections"
    finally:
        for client in clients:
            client.close()


def test_concurrent_incomplete_bodies_use_bounded_memory(gateway: Gateway) -> None:
    before, clients = gateway.forget_peak(), []
    try:

        def begin(_: int) -> None:
            client = gateway.connect()
            clients.append(client)
            client.settimeout(1.0)
            with suppress(OSError):
                client.sendall(HEAD + b"Content-Length: 4194304\r\n\r\n" + b" " * (4 * MB - 1))

        with ThreadPoolExecutor(20) as pool:
            [*pool.map(begin, range(60))]
        assert gateway.serves(), "small requests must always be served"
        assert gateway.peak_mb() - before < 2 * 16 * 4 + 56, "without a bound it is 240 MB or twice that"
    finally:
        for client in clients:
            client.close()


BODIES = {
    "biases": {"logit_bias": {str(number): 1.0 for number in range(250_000)}},
    "names": {f"name_{number}": 1 for number in range(200_000)},
    "ids": {"prompt": [1] * 1_200_000},
    "lists": {"prompt": [[1]] * 700_000},
    "objects": {"messages": [{}] * 900_000},
    "commas": {"prompt": ",[{" * 1_200_000},
    "quotes": {"prompt": [""] * 900_000},
    "text": {"prompt": "x" * 3_800_000},
    "escapes": {"prompt": '"\\' * 900_000},
}


@pytest.mark.parametrize("kind", BODIES)
def test_large_bodies_do_not_block_other_requests(kind: str, gateway: Gateway) -> None:
    body = json.dumps({"model": "m", **BODIES[kind]}, separators=(",", ":")).encode()
    assert len(body) < 4 * MB
    done = threading.Event()
    waits: list[float] = []

    def look() -> None:
        with requests.Session() as session:
            while not done.is_set():
                began = time.monotonic()
                assert session.get(f"{gateway.url}/version", timeout=20).status_code == 200
                waits.append(time.monotonic() - began)
                time.sleep(0.01)

    def ask(_: int) -> int:
        headers = {"Content-Type": "application/json"}
        return requests.post(f"{gateway.url}/v1/completions", body, headers=headers, timeout=60).status_code

    with ThreadPoolExecutor(5) as pool:
        looking = pool.submit(look)
        try:
            statuses = [*pool.map(ask, range(4))]
        finally:
            done.set()
        looking.result()
    assert set(statuses) <= {400, 413}, statuses
    assert max(waits) < float(os.environ.get("TRTSPEC_TEST_WAIT_S", "1.0")), "below 0.1 s on an idle machine"
    print(kind, f"longest wait {max(waits):.3f} s")  # noqa: T201


@pytest.mark.parametrize("value", [True, 7, 1.5, "x" * 2000, [1] * 2000])
def test_logit_bias_of_wrong_type_is_a_client_error(value: object, gateway: Gateway) -> None:
    body = {"model": "m", "prompt": "x", "logit_bias": value}
    answer = requests.post(f"{gateway.url}/v1/completions", json=body, timeout=20)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "logit_bias")


def test_error_messages_format_values_as_json_not_python(gateway: Gateway) -> None:
    for body, said in (
        (
            {"tools": [{"type": "function", "strict": True}]},
            'tools [{"type": "function", "strict": true}] is not supported',
        ),
        ({"response_format": {"type": None}}, 'response_format is {"type": null}, expected an object'),
        ({"temperature": True}, "temperature is true, expected a number"),
        ({"stream": "é'\""}, 'stream is "\\u00e9\'\\"", expected a boolean'),
        ({"tempreature": 1}, 'Unrecognized request argument supplied: "tempreature"; did you mean temperature?'),
        ({"random_seed": 1}, 'Unrecognized request argument supplied: "random_seed"; did you mean seed?'),
        ({"min_length": 1}, "did you mean min_tokens?"),
        ({"model": "o'x"}, 'The model "o\'x" does not exist'),
    ):
        answer = requests.post(f"{gateway.url}/v1/completions", json={"model": "m", "prompt": "x", **body}, timeout=20)
        message = answer.json()["error"]["message"]
        assert said in message
        assert not re.search(r"True|False|None|\{'|\['", message)
    fine = {"model": "m", "prompt": "x", "length_penalty": 0.8}
    assert requests.post(f"{gateway.url}/v1/completions", json=fine, timeout=20).status_code == 200
