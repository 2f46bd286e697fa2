# SPDX-License-Identifier: Apache-2.0
"""HTTP server with responses defined by a test for each path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Answer = Callable[[str], tuple[int, bytes]]
Posted = Callable[[str, bytes], tuple[int, bytes]]


@contextmanager
def serving(answer: Answer, posted: Posted = lambda path, body: (405, b"")) -> Iterator[str]:
    """Serve responses on a local port; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(*answer(self.path))

        def do_POST(self) -> None:
            self.reply(*posted(self.path, self.rfile.read(int(self.headers["Content-Length"]))))

        def reply(self, status: int, body: bytes) -> None:
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
