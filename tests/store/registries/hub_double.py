# SPDX-License-Identifier: Apache-2.0
"""A strict double of the hub's HTTP API for commits and reads, on 127.0.0.1; the real hub cannot run here.

Large files are sent to LFS and redirected to another host, as on the hub. Requests that no client should send are
recorded in `problems`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

TOKEN = "hf_test"
REPOSITORY = "team/model"
LARGE = 100_000
Tree = dict[str, bytes]


@dataclass
class HubDouble:
    """One repository: commits by id, heads by branch, and contents of LFS by SHA-256."""

    url: str = ""
    commits: dict[str, Tree] = field(default_factory=lambda: {"0" * 40: {"README.md": b"# before\n"}})
    branches: dict[str, str] = field(default_factory=lambda: {"main": "0" * 40})
    lfs: dict[str, bytes] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    fails: dict[str, int] = field(default_factory=dict)  # pattern of "METHOD PATH": status of the next one
    lock: threading.Lock = field(default_factory=threading.Lock)

    def resolve(self, revision: str) -> str | None:
        return self.branches.get(revision) or (revision if revision in self.commits else None)

    def commit(self, lines: list[dict[str, object]], branch: str) -> str | None:
        """Apply a commit and return its id, or None if the branch has changed."""
        header, changes = lines[0]["value"], lines[1:]
        assert isinstance(header, dict)
        parent = self.branches[branch]
        if header.get("parentCommit", parent) != parent:
            return None
        tree = dict(self.commits[parent])
        for change in changes:
            kind, value = change["key"], change["value"]
            assert isinstance(value, dict)
            if kind == "file":
                tree[value["path"]] = base64.b64decode(value["content"])
            elif kind == "lfsFile":
                if value["oid"] not in self.lfs:
                    self.problems.append(f"{value['path']} was committed before it was sent")
                tree[value["path"]] = self.lfs[value["oid"]]
            elif kind == "deletedFile":
                del tree[value["path"]]
            else:
                self.problems.append(f"unknown change {kind}")
        oid = hashlib.sha1(json.dumps([parent, lines]).encode(), usedforsecurity=False).hexdigest()
        self.commits[oid], self.branches[branch] = tree, oid
        return oid


def describe(path: str, data: bytes) -> dict[str, object]:
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    found: dict[str, object] = {"type": "file", "path": path, "size": len(data), "oid": blob}
    if len(data) >= LARGE:
        found["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return found


class Handler(BaseHTTPRequestHandler):
    """Handles one request."""

    protocol_version = "HTTP/1.1"
    hub: HubDouble

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        path = urlsplit(self.path).path
        with self.hub.lock:
            self.hub.seen.append(f"{self.command} {path}")
            for pattern, status in list(self.hub.fails.items()):
                if re.search(pattern, f"{self.command} {path}"):
                    del self.hub.fails[pattern]
                    return self._send(status, b"")
            return self._route(path, body)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815

    def _store(self, kind: str, digest: str, body: bytes) -> None:
        """Send or receive a large file at the other host."""
        if self.headers.get("Authorization"):
            self.hub.problems.append("the token was sent to another host")
        if kind == "cdn":
            return self._send_range(self.hub.lfs[digest])
        if hashlib.sha256(body).hexdigest() != digest:
            return self._send(400, b"")
        self.hub.lfs[digest] = body
        return self._send(200, b"")

    def _route(self, path: str, body: bytes) -> None:
        if match := re.fullmatch(r"/(cdn|lfs)/([0-9a-f]{64})", path):
            return self._store(match[1], match[2], body)
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self._send(401, b"", {"X-Error-Code": "RepoNotFound"})
        if match := re.fullmatch(rf"/{REPOSITORY}/resolve/([^/]+)/(.+)", path):
            return self._resolve(match[1], unquote(match[2]))
        if path == f"/{REPOSITORY}.git/info/lfs/objects/batch":
            return self._json({"objects": [self._lfs_action(each) for each in json.loads(body)["objects"]]})
        if match := re.fullmatch(rf"/api/models/{REPOSITORY}/([a-z-]+)(?:/([^/]+))?", path):
            return self._api(match[1], unquote(match[2] or ""), body)
        is_validation = path == "/api/validate-yaml"
        return self._json({"warnings": []}) if is_validation else self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _lfs_action(self, wanted: dict[str, object]) -> dict[str, object]:
        oid = str(wanted["oid"])
        upload = {"upload": {"href": f"{self._other_host()}/lfs/{oid}"}}
        return {**wanted, **({} if oid in self.hub.lfs else {"actions": upload})}

    def _other_host(self) -> str:
        return self.hub.url.replace("127.0.0.1", "localhost")

    def _resolve(self, revision: str, path: str) -> None:
        commit = self.hub.resolve(revision)
        data = self.hub.commits[commit].get(path) if commit else None
        if data is None:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        if len(data) >= LARGE:
            return self._send(302, b"", {"Location": f"{self._other_host()}/cdn/{hashlib.sha256(data).hexdigest()}"})
        return self._send_range(data)

    def _api(self, what: str, revision: str, body: bytes) -> None:
        hub = self.hub
        if what == "refs":
            heads = hub.branches.items()
            refs = [{"name": name, "ref": f"refs/heads/{name}", "targetCommit": oid} for name, oid in heads]
            return self._json({"branches": refs, "converts": [], "tags": []})
        if what == "branch":
            return self._branch(revision, body)
        if (commit := hub.resolve(revision)) is None:
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        if what == "commit":
            oid = hub.commit([json.loads(line) for line in body.splitlines() if line], revision)
            document = {"commitUrl": f"{hub.url}/{REPOSITORY}/commit/{oid}", "commitOid": oid}
            return self._json(document) if oid else self._send(412, b"")
        return self._json(self._describe(what, commit, body))

    def _describe(self, what: str, commit: str, body: bytes) -> object:
        """Return the document of a request that only reads; raises KeyError for another one."""
        tree = self.hub.commits[commit]
        documents = {
            "revision": lambda: {"id": REPOSITORY, "sha": commit, "siblings": []},
            "tree": lambda: [describe(path, data) for path, data in sorted(tree.items())],
            "paths-info": lambda: [
                describe(path, tree[path])
                for path in parse_qs(body.decode()).get("paths") or json.loads(body)["paths"]
                if path in tree
            ],
            "preupload": lambda: {"files": [self._mode(each, tree) for each in json.loads(body)["files"]]},
        }
        return documents[what]()

    def _mode(self, wanted: dict[str, object], tree: Tree) -> dict[str, object]:
        path, size = str(wanted["path"]), int(str(wanted["size"]))
        oid = describe(path, tree[path])["oid"] if path in tree else None
        return {"path": path, "uploadMode": "lfs" if size >= LARGE else "regular", "shouldIgnore": False, "oid": oid}

    def _branch(self, name: str, body: bytes) -> None:
        if self.command == "DELETE":
            self.hub.branches.pop(name)
        elif name in self.hub.branches:
            return self._send(409, b"")
        else:
            self.hub.branches[name] = str(self.hub.resolve(json.loads(body)["startingPoint"]))
        return self._send(200, b"{}")

    def _json(self, document: object) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def _send_range(self, data: bytes) -> None:
        if wanted := self.headers.get("Range"):
            first = int(wanted.removeprefix("bytes=").partition("-")[0])
            headers = {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
            return self._send(206, data[first:], headers)
        return self._send(200, data)

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def running_hub() -> Iterator[HubDouble]:
    """Run a hub with one repository."""
    hub = HubDouble()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OneHub", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def connected_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubDouble]:
    """Run a hub that huggingface_hub uses; no client may have sent a wrong request at the end."""
    from huggingface_hub import constants

    with running_hub() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running
        assert running.problems == []
