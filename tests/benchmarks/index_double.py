# SPDX-License-Identifier: Apache-2.0
"""A package index on 127.0.0.1 with range requests, and the ways in which such a server can fail."""

from __future__ import annotations

import hashlib
import io
import json
import re
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def make_wheel(members: dict[str, str], padding: int = 0) -> bytes:
    """Return a wheel with the members, and in front of them an incompressible one of `padding` bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        noise = b"".join(hashlib.sha256(number.to_bytes(8, "big")).digest() for number in range(padding // 32))
        archive.writestr("package/kernels.so", noise)
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


class IndexDouble(ThreadingHTTPServer):
    """The server; `files` are served below /files, and `fault` selects how ranges are answered.

    Faults: "whole" ignores Range, "stall" sends headers only, "trickle" sends a byte at a time, "truncate" ends early,
    "shifted" and "other-total" lie in Content-Range, "long" sends more than was requested, "html" is not PEP 691.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.yanked: set[str] = set()
        self.fault = ""
        self.redirect = ""
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def listing(self, package: str) -> dict[str, Any]:
        """Return the listing of a package with relative URLs."""
        names = [name for name in self.files if name.replace("_", "-").startswith(f"{package}-")]
        entries = []
        for name in names:
            data = self.files[name]
            entry = {"filename": name, "url": f"../../files/{name}", "size": len(data), "yanked": name in self.yanked}
            entries.append({**entry, "hashes": {"sha256": hashlib.sha256(data).hexdigest()}})
        return {"meta": {"api-version": "1.1"}, "name": package, "files": entries}


class Handler(BaseHTTPRequestHandler):
    server: IndexDouble

    def do_GET(self) -> None:
        self.server.requests.append((self.path, dict(self.headers)))
        if self.server.redirect and self.path.startswith("/files/"):
            self.answer(302, {"Location": self.server.redirect + self.path}, b"")
        elif self.path.startswith("/simple/") and self.server.fault == "html":
            self.answer(200, {}, b"<html></html>")
        elif self.path.startswith("/simple/"):
            self.answer(200, {}, json.dumps(self.server.listing(self.path.split("/")[2])).encode())
        elif data := self.server.files.get(self.path.removeprefix("/files/")):
            self.answer_range(data)
        else:
            self.answer(404, {}, b"")

    def answer_range(self, data: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        fault = self.server.fault
        if not asked or fault == "whole":
            self.answer(200, {}, data)
            return
        start, end = int(asked[1]), int(asked[2])
        body = data[start : end + 1] + (b"more" if fault == "long" else b"")
        shift, total = (1, len(data)) if fault == "shifted" else (0, len(data) + (fault == "other-total"))
        self.answer(206, {"Content-Range": f"bytes {start + shift}-{end + shift}/{total}"}, body)

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        fault = self.server.fault if status == 206 else ""
        if fault == "stall":
            self.server.stopping.wait(30)
        elif fault == "trickle":
            for byte in body:
                self.wfile.write(bytes([byte]))
                if self.server.stopping.wait(0.05):
                    return
        else:
            self.wfile.write(body[: len(body) // 2] if fault == "truncate" else body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[IndexDouble]:
    """Run an index for the duration of the context."""
    server = IndexDouble()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join(timeout=10)
