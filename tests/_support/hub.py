# SPDX-License-Identifier: Apache-2.0
"""A fake hub on 127.0.0.1 that supports the requests of downloading clients, and a client environment for it."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

LARGE = 1 << 20
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ROUTE = re.compile(r"/(?:api/models/(?P<listed>[^/]+/[^/]+)/tree/|(?P<model>[^/]+/[^/]+)/resolve/)(?P<rest>[^?]+)")
INFO = re.compile(r"/api/models/(?P<model>[^/?]+/[^/?]+)(/revision/[^/?]+)?(\?.*)?")


@dataclass
class Asked:
    """A request: method, target, and the relevant headers."""

    method: str
    what: str
    token: str | None
    range: str | None


@dataclass
class Hub:
    """A hub of models in directories ROOT/OWNER/NAME, each with one commit; attributes inject faults."""

    root: Path
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    token: str | None = None  # required for reading
    refusals: dict[str, tuple[int, str]] = field(default_factory=dict)  # what: status, X-Error-Code
    cuts: dict[str, int] = field(default_factory=dict)  # file: bytes after which the connection breaks, once
    stops: dict[str, int] = field(default_factory=dict)  # file: bytes after which the transfer stalls
    sizes: dict[str, int] = field(default_factory=dict)  # file: reported size
    ranges: bool = True  # whether range requests are supported
    sent: int = 0  # bytes of files
    released: threading.Event = field(default_factory=threading.Event)

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the client's complete environment: no proxy, no login, no variables of the tests."""
        home = self.root / "home"
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HOME": str(home), "OMP_NUM_THREADS": "1", **variables}

    def got(self, name: str) -> list[Asked]:
        """Return the downloads of a file."""
        return [each for each in self.asked if each.method == "GET" and each.what == name]

    @property
    def cache(self) -> Path:
        """Return the client's hub cache."""
        return self.root / "home" / "hub"


class Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # as real servers; otherwise each body waits 40 ms for the ACK of its headers
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Suppress the log."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        route, info = ROUTE.match(self.path), INFO.fullmatch(self.path)
        if route:
            model, (commit, _, name) = route["listed"] or route["model"], route["rest"].partition("/")
        elif info:
            model, commit, name = info["model"], COMMIT, "info"
        else:
            return self._refuse(404, "")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or None
        self.hub.asked.append(Asked(self.command, name or "tree", token, self.headers.get("Range")))
        root = self.hub.root / model
        if refusal := self.hub.refusals.get(name or "tree"):
            return self._refuse(*refusal)
        if not root.is_dir() or self.hub.token not in (None, token):
            return self._refuse(404 if token else 401, "RepoNotFound")
        if commit != COMMIT:
            return self._refuse(404, "RevisionNotFound")
        if route is None:
            return self._tell(root)
        return self._list(root) if route["listed"] else self._send_file(root / name)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, {"X-Error-Code": code} if code else {}, b"")

    def _tell(self, root: Path) -> None:
        names = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
        siblings = [
            {"rfilename": name, "size": (root / name).stat().st_size, "blobId": _etag(root / name)} for name in names
        ]
        document = {"id": f"{root.parent.name}/{root.name}", "sha": COMMIT, "siblings": siblings}
        self._send(200, {"Content-Type": "application/json"}, json.dumps(document).encode(), "info")

    def _list(self, root: Path) -> None:
        files = [
            {
                "type": "file",
                "path": str(path.relative_to(root)),
                "size": self.hub.sizes.get(path.name, path.stat().st_size),
                "oid": _etag(path),
            }
            for path in sorted(root.rglob("*"))
            if path.is_file()
        ]
        self._send(200, {"Content-Type": "application/json"}, json.dumps(files).encode())

    def _send_file(self, path: Path) -> None:
        if not path.is_file():
            return self._refuse(404, "EntryNotFound")
        start, total = 0, path.stat().st_size
        end = total
        if wanted := self.hub.ranges and self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(total, int(last) + 1 if last else total)
        with path.open("rb") as file:
            file.seek(start)
            content = file.read(end - start)
        headers = {"ETag": f'"{_etag(path)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if wanted:
            headers["Content-Range"] = f"bytes {start}-{start + len(content) - 1}/{total}"
        self.hub.sent += len(content)
        return self._send(206 if wanted else 200, headers, content, path.name)

    def _send(self, status: int, headers: dict[str, str], content: bytes, name: str = "") -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if (end := self.hub.cuts.pop(name, None)) is not None:
            content, self.close_connection = content[:end], True
        if (end := self.hub.stops.get(name)) is not None:
            self.wfile.write(content[:end])
            self.hub.released.wait(30)
            content, self.close_connection = b"", True
        self.wfile.write(content)


def _etag(path: Path) -> str:
    """Return a digest of a file's size and the beginning of its contents."""
    with path.open("rb") as file:
        begin = file.read(LARGE)
    return hashlib.sha1(begin + str(path.stat().st_size).encode(), usedforsecurity=False).hexdigest()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that disconnected."""


@contextmanager
def serving(root: Path) -> Iterator[Hub]:
    """Serve the models below `root` while the block runs."""
    hub = Hub(root)
    with _Server(("127.0.0.1", 0), type("OneHub", (Handler,), {"hub": hub})) as server:
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield hub
        hub.released.set()
        server.shutdown()
        thread.join(30)


@contextmanager
def asked_in_process(hub: Hub) -> Iterator[None]:
    """Let the client of this process access a hub, although tests are otherwise offline."""
    from huggingface_hub import constants

    template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    changed = {"ENDPOINT": hub.url, "HUGGINGFACE_CO_URL_TEMPLATE": template, "HF_HUB_OFFLINE": False}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in changed.items():
            patch.setattr(constants, name, value)
        yield
