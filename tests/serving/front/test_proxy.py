# SPDX-License-Identifier: Apache-2.0
"""The proxy as a process, with a fake server at its Unix sockets."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trtspec.core.http import UNIX, UnixConnection, http_status
from trtspec.core.ports import free_ports
from trtspec.core.processes import wait_until
from trtspec.serving.front import PORT_IN_USE, PROXY_SOCKET, proxy_command
from trtspec.serving.triton.names import DISCONNECTS, SOCKETS

WAIT_S = 30.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
BODY = b'{"text_input": "x"}'


@dataclass
class Server:
    """A fake server at the HTTP socket; it reads one request per connection and responds with `answer`."""

    place: Path
    ports: dict[str, int]
    process: subprocess.Popen[bytes]
    requests: list[bytes] = field(default_factory=list)
    left: threading.Event = field(default_factory=threading.Event)  # set when the proxy closes a connection
    answer: Callable[[socket.socket], None] = lambda connection: connection.sendall(OK)

    def listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX)
        path = self.place / SOCKETS["http"]
        path.unlink(missing_ok=True)
        listening.bind(str(path))
        listening.listen(100)
        threading.Thread(target=self._accept, args=(listening,), daemon=True).start()
        return listening

    def _accept(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(listening.accept()[0],), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        data = b""
        with suppress(OSError), connection:
            while not is_whole(data):
                data += connection.recv(1 << 16)
            self.requests.append(data)
            self.answer(connection)
            if not connection.recv(1):
                self.left.set()

    def open(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.ports["http"]), timeout=WAIT_S)

    def ask(self, data: bytes) -> bytes:
        """Return everything received until the proxy closes the connection or is silent for a moment."""
        with closing(self.open()) as connection:
            with suppress(OSError):
                connection.sendall(data)
            return everything(connection)

    def counts(self) -> dict[str, int]:
        connection = UnixConnection(str(self.place / PROXY_SOCKET), 60)
        connection.request("GET", "/")
        counts: dict[str, int] = json.loads(connection.getresponse().read())
        return counts


def is_whole(data: bytes) -> bool:
    head, end, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"Content-Length: (\d+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def everything(connection: socket.socket) -> bytes:
    data = b""
    with suppress(OSError):
        while got := connection.recv(1 << 16):
            data += got
            if data.endswith((b"ok", b"}")):
                connection.settimeout(0.3)
    return data


def post(body: bytes = BODY, path: str = "/v2/models/ensemble/generate", headers: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    place = tmp_path / ("a directory whose name is long " * 4)  # longer than the limit of a socket address
    (place / DISCONNECTS).mkdir(parents=True)
    short = tmp_path / "s"
    short.symlink_to(place)
    http, metrics = free_ports(2)
    ports = {"http": http, "metrics": metrics}
    process = subprocess.Popen(proxy_command(place, "127.0.0.1", ports))
    served = Server(short, ports, process)
    try:
        assert wait_until(lambda: http_status(f"{UNIX}{place / PROXY_SOCKET}", 1.0), WAIT_S)
        with served.listen():
            yield served
        assert process.poll() is None, "the proxy must keep running"
    finally:
        process.kill()
        process.wait(WAIT_S)


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    with closing(server.open()) as connection:
        connection.sendall(post() + post(b'{"second": 1}'))  # the second request arrives before the first response
        assert wait_until(lambda: len(server.requests) == 2, WAIT_S)
        connection.settimeout(0.5)
        assert everything(connection) == OK + OK
    assert b'"second": 1' in server.requests[1]


def test_chunked_body_is_forwarded_with_a_content_length(server: Server) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in (BODY[:3], BODY[3:], b""))
    head = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert server.ask(head + chunks) == OK
    assert b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY) in server.requests[0]
    assert b"Transfer-Encoding" not in server.requests[0]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (post(headers="Content-Length: 3\r\n"), 400),
        (post(headers="Transfer-Encoding: chunked\r\n"), 400),
        (post().replace(b"\r\n", b"\n"), 400),
        (post(headers="Origin: http://evil.example\r\n"), 403),
        (post().replace(b"localhost", b"evil.example"), 421),
        (post(b"a=b&" * 1_000_000, headers="Content-Type: application/x-www-form-urlencoded\r\n"), 415),
        (post(b"[" * 1_000_000), 400),
        (b"POST /v2 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 900_000, 413),
        (b"POST /v2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n" + bytes(20_000_000), 413),
        (b"GET /v2 HTTP/1.1\r\n" + b"X: aaaaaaaaaaaaaaaaaaa\r\n" * 1_000_000, 431),
        (b"x" * 1_000_000, 431),
    ],
)
def test_rejected_request_gets_an_error_response_and_is_not_forwarded(server: Server, data: bytes, status: int) -> None:
    response = server.ask(data)
    assert response.startswith(b"HTTP/1.1 %d " % status), response[:200]
    assert response.count(b"HTTP/1.1 ") == 1
    assert "error" in json.loads(response.partition(b"\r\n\r\n")[2])
    assert server.requests == []
    assert server.ask(post()) == OK, "other clients must be served"


def test_unreachable_server_gives_503_until_it_returns(server: Server) -> None:
    (server.place / SOCKETS["http"]).unlink()
    response = server.ask(post())
    assert response.startswith(b"HTTP/1.1 503 ")
    assert b"Retry-After: 1\r\n" in response
    with server.listen():
        assert server.ask(post()) == OK


def test_server_crash_gives_503_or_a_truncated_response(server: Server) -> None:
    server.answer = lambda connection: connection.close()
    assert server.ask(post()).startswith(b"HTTP/1.1 503 ")
    server.answer = lambda connection: (connection.sendall(OK[:-1]), connection.close())
    assert server.ask(post()) == OK[:-1], "a partial response is not repaired; the client notices the missing end"


def test_stream_events_are_forwarded_immediately(server: Server) -> None:
    goes_on = threading.Event()

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        assert goes_on.wait(WAIT_S)
        connection.sendall(b"3\r\ntwo\r\n0\r\n\r\n")

    server.answer = answer
    with closing(server.open()) as connection:
        connection.sendall(post(path="/v2/models/ensemble/generate_stream"))
        data = b""
        while b"one" not in data:
            data += connection.recv(1 << 16)
        goes_on.set()
        while not data.endswith(b"0\r\n\r\n"):
            data += connection.recv(1 << 16)


def test_slow_reader_applies_backpressure_with_bounded_memory(server: Server) -> None:
    sent: list[int] = []
    size = 64 << 20

    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        for _ in range(size >> 16):
            connection.sendall(bytes(1 << 16))
            sent.append(1 << 16)

    server.answer = answer
    with closing(server.open()) as connection:
        connection.sendall(post())
        time.sleep(1.0)
        assert sum(sent) < 16 << 20, "data beyond the socket buffers must stay in the server"
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        assert int(re.search(r"VmRSS:\s+(\d+)", status)[1]) < 120_000  # type: ignore[index]
        got = 0
        while got < size:
            got += len(connection.recv(1 << 20))


def test_client_disconnect_closes_the_upstream_connection(server: Server) -> None:
    server.answer = lambda connection: None
    with closing(server.open()) as connection:
        connection.sendall(post(path="/v2/models/ensemble/generate_stream"))
        assert wait_until(lambda: bool(server.requests), WAIT_S)
    assert server.left.wait(WAIT_S)


def test_generate_client_disconnect_is_recorded_until_the_model_finishes(server: Server) -> None:
    ends = threading.Event()
    server.answer = lambda connection: (ends.wait(WAIT_S), connection.sendall(OK))
    with closing(server.open()) as connection:
        connection.sendall(post())
        assert wait_until(lambda: bool(server.requests), WAIT_S)
    token = re.search(rb'"trtspec_client":"([0-9a-f]{32})"', server.requests[0])
    assert token
    noted = server.place / DISCONNECTS / token[1].decode()
    assert wait_until(noted.exists, WAIT_S)
    ends.set()
    assert wait_until(lambda: not noted.exists(), WAIT_S)
    assert server.ask(post()) == OK


def test_incomplete_heads_do_not_block_other_clients(server: Server) -> None:
    """Open more connections than the proxy accepts, all with incomplete heads."""
    slow = []
    try:
        for _ in range(1100):
            slow.append(server.open())
            slow[-1].sendall(b"GET /v2 HTTP/1.1\r\n")
        assert server.ask(post()) == OK
        assert server.counts()["connections"] <= 1024
    finally:
        for each in slow:
            each.close()


def test_incomplete_head_times_out_with_408(server: Server) -> None:
    with closing(server.open()) as connection:
        begun = time.monotonic()
        connection.sendall(b"GET /v2 HTTP/1.1\r\n")
        assert everything(connection).startswith(b"HTTP/1.1 408 ")
        assert time.monotonic() - begun < 20


def test_concurrent_large_bodies_use_bounded_memory(server: Server) -> None:
    held = []
    try:
        for _ in range(20):
            held.append(server.open())
            held[-1].sendall(b"POST /v2 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16777216\r\n\r\n")
            with suppress(OSError):
                held[-1].sendall(bytes(16_777_215))
        assert server.counts()["held_bytes"] <= 260 << 20
        assert server.ask(post()).startswith((b"HTTP/1.1 503 ", OK))
    finally:
        for each in held:
            each.close()
    assert wait_until(lambda: server.counts()["held_bytes"] == 0, WAIT_S)
    assert server.ask(post()) == OK


def test_metrics_port_rejects_post_requests(server: Server) -> None:
    with closing(socket.create_connection(("127.0.0.1", server.ports["metrics"]), timeout=WAIT_S)) as connection:
        connection.sendall(post(path="/metrics"))
        assert everything(connection).startswith(b"HTTP/1.1 405 ")


def test_expect_continue_header_gets_100_continue(server: Server) -> None:
    with closing(server.open()) as connection:
        head, _, body = post(headers="Expect: 100-continue\r\n").partition(b"\r\n\r\n")
        connection.sendall(head + b"\r\n\r\n")
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert everything(connection) == OK
    assert b"Expect" not in server.requests[0]


def test_port_in_use_ends_the_proxy_with_a_dedicated_exit_status(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        ports = {"http": taken.getsockname()[1], "metrics": free_ports(1)[0]}
        done = subprocess.run(
            proxy_command(tmp_path, "127.0.0.1", ports), capture_output=True, text=True, timeout=WAIT_S, check=False
        )
    assert done.returncode == PORT_IN_USE
    assert f"cannot listen on http port {ports['http']} of 127.0.0.1: Address already in use" in done.stderr
