# SPDX-License-Identifier: Apache-2.0
"""A proxy on 127.0.0.1 in front of a real server that injects the faults of double.py."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.store.registries.double import Fault

HOP = {"connection", "transfer-encoding", "keep-alive"}


class FaultyProxy:
    """Forwards requests to `origin`; `faults` apply to the next requests that match, and `seen` are "METHOD PATH"."""

    def __init__(self, origin: str) -> None:
        self.origin, self.url = origin, ""
        self.faults: list[Fault] = []
        self.seen: list[str] = []
        self.released = threading.Event()
        self._lock = threading.Lock()

    def take(self, request: str) -> Fault | None:
        with self._lock:
            self.seen.append(request)
            for fault in self.faults:
                if fault.times > 0 and re.search(fault.pattern, request):
                    fault.times -= 1
                    return fault
        return None


@contextmanager
def running_proxy(origin: str) -> Iterator[FaultyProxy]:
    """Run a proxy; its faults can be changed while it runs."""
    proxy = FaultyProxy(origin)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def _forward(self) -> None:
            fault = proxy.take(f"{self.command} {self.path}")
            length = int(self.headers.get("Content-Length") or 0)
            if fault and fault.status:
                self.rfile.read(length)
                self._reply(fault.status, fault.headers, fault.extra)
                return
            if fault and fault.cut >= 0 and length:  # of the request's body
                self.rfile.read(min(fault.cut, length))
                self.close_connection = True
                self.connection.close()
                return
            upstream = HTTPConnection(urlsplit(proxy.origin).netloc, timeout=30)
            body = self._pieces(length) if length else None
            upstream.request(self.command, self.path, body, dict(self.headers))
            reply = upstream.getresponse()
            headers = {name: value for name, value in reply.getheaders() if name.lower() not in HOP}
            self._reply(reply.status, headers, reply.read(), fault)
            upstream.close()

        def _pieces(self, length: int) -> Iterator[bytes]:
            while length and (piece := self.rfile.read1(min(length, 1 << 16))):
                length -= len(piece)
                yield piece

        def _reply(self, status: int, headers: dict[str, str], body: bytes, fault: Fault | None = None) -> None:
            self.send_response_only(status)
            is_head = self.command == "HEAD"
            length = headers.get("Content-Length", headers.get("content-length", "0")) if is_head else str(len(body))
            rest = {name: value for name, value in headers.items() if name.lower() != "content-length"}
            for name, value in {**rest, "Content-Length": length}.items():
                self.send_header(name, value)
            self.end_headers()
            if fault and fault.flip >= 0:
                body = bytearray(body)
                body[fault.flip] ^= 1
            for limit in (fault.cut, fault.stall) if fault else ():
                if 0 <= limit < len(body):
                    self.wfile.write(body[:limit])
                    self.wfile.flush()
                    if limit == fault.stall:
                        proxy.released.wait(30)
                    self.close_connection = True
                    return
            if not is_head:
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignore clients that disconnected."""

    server = Server(("127.0.0.1", 0), Handler)
    proxy.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.released.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
