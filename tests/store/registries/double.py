# SPDX-License-Identifier: Apache-2.0
"""A strict OCI registry on 127.0.0.1 with faults: it truncates, stalls, lies, forgets, and answers 401, 429 and 500."""

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
from typing import Any
from urllib.parse import parse_qs, urlsplit

BLOB = re.compile(r"/v2/(?P<name>.+)/blobs/(?P<digest>sha256:[0-9a-f]{64})")
UPLOAD = re.compile(r"/v2/(?P<name>.+)/blobs/uploads/(?P<id>[0-9]*)")
MANIFEST = re.compile(r"/v2/(?P<name>.+)/manifests/(?P<reference>[^/]+)")
REFERRERS = re.compile(r"/v2/(?P<name>.+)/referrers/(?P<digest>sha256:[0-9a-f]{64})")
TAGS = re.compile(r"/v2/(?P<name>.+)/tags/list")
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class Seen:
    """A request: method, path, and headers with names in lower case."""

    method: str
    path: str
    headers: dict[str, str]


@dataclass
class Fault:
    """A deviation for the next `times` requests whose "METHOD PATH" matches the pattern.

    `status` is the status of an immediate reply with `headers`. `cut` is the number of body bytes after which the
    connection is closed, of a request's or a reply's body, and `stall` the number after which a reply stops. `flip` is
    the position of a flipped bit in a reply's body, and `extra` are bytes that follow it.
    """

    pattern: str
    times: int = 1
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    cut: int = -1
    stall: int = -1
    flip: int = -1
    extra: bytes = b""
    no_range: bool = False


@dataclass
class Registry:
    """The content of a registry; `user` and `password` are required if they are set, with `scheme` Basic or Bearer."""

    blobs: dict[tuple[str, str], bytes] = field(default_factory=dict)  # by repository and digest
    manifests: dict[tuple[str, str], bytes] = field(default_factory=dict)  # by repository and tag or digest
    uploads: dict[str, bytearray] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    user: str = ""
    password: str = ""
    scheme: str = "Basic"
    token: str = "token-1"
    lists_referrers: bool = False
    redirect: str = ""  # origin that blobs are redirected to
    received: int = 0
    sent: int = 0
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    def requests(self, pattern: str) -> list[Seen]:
        return [each for each in self.seen if re.search(pattern, f"{each.method} {each.path}")]

    def fault(self, method: str, path: str) -> Fault | None:
        with self.lock:
            for each in self.faults:
                if each.times > 0 and re.search(each.pattern, f"{method} {path}"):
                    each.times -= 1
                    return each
        return None


class Handler(BaseHTTPRequestHandler):
    """Handles the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    registry: Registry

    def log_message(self, *_: object) -> None:
        """Suppress the log."""

    def handle_any(self) -> None:
        own, path = self.registry, urlsplit(self.path).path
        own.seen.append(Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
        self.fault = own.fault(self.command, self.path) or Fault("")
        if self.fault.status:
            self.close_connection = self.command in ("PATCH", "PUT")  # their body is not read
            return self.reply(self.fault.status, self.fault.headers)
        if path == "/token":
            return self.give_token()
        if not self.is_authorized():
            return None
        for pattern, handle in (
            *((UPLOAD, self.upload), (BLOB, self.blob), (MANIFEST, self.manifest)),
            *((REFERRERS, self.referrers), (TAGS, self.tags)),
        ):
            if match := pattern.fullmatch(path):
                return handle(**match.groupdict())
        return self.reply(404)

    def is_authorized(self) -> bool:
        own, sent = self.registry, self.headers.get("Authorization", "")
        basic = f"Basic {base64.b64encode(f'{own.user}:{own.password}'.encode()).decode()}"
        if not own.user or sent == (basic if own.scheme == "Basic" else f"Bearer {own.token}"):
            return True
        challenge = 'Basic realm="test"'
        if own.scheme == "Bearer":
            challenge = f'Bearer realm="{own.url}/token",service="test",scope="repository:x:pull"'
        self.close_connection = self.command in ("PATCH", "PUT")
        self.reply(401, {"WWW-Authenticate": challenge})
        return False

    def give_token(self) -> None:
        own = self.registry
        basic = f"Basic {base64.b64encode(f'{own.user}:{own.password}'.encode()).decode()}"
        if self.command == "POST":
            form = parse_qs(self.body().decode())
            is_valid = form.get("refresh_token") == [own.password]
        else:
            is_valid = self.headers.get("Authorization") == basic
        self.reply(200 if is_valid else 401, body=json.dumps({"token": own.token}).encode() if is_valid else b"")

    def body(self) -> bytes:
        count = int(self.headers.get("Content-Length", 0))
        if 0 <= self.fault.cut < count:
            count, self.close_connection = self.fault.cut, True
        data = self.rfile.read(count)
        self.registry.received += len(data)
        return data

    def blob(self, name: str, digest: str) -> None:
        own = self.registry
        if (name, digest) not in own.blobs:
            return self.reply(404)
        if own.redirect and self.command == "GET":
            return self.reply(307, {"Location": f"{own.redirect}/v2/{name}/blobs/{digest}?signature=secret"})
        data, start = own.blobs[name, digest], 0
        wanted = re.fullmatch(r"bytes=([0-9]+)-", self.headers.get("Range", ""))
        headers = {"Docker-Content-Digest": digest}
        if wanted and not self.fault.no_range:
            start = int(wanted[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        return self.reply(206 if start else 200, headers, data[start:])

    def upload(self, name: str, id: str) -> None:
        own, query = self.registry, parse_qs(urlsplit(self.path).query)
        if self.command == "POST":
            self.start_upload(name, query)
        elif id not in own.uploads:
            self.close_connection = True
            self.reply(404)
        elif self.command == "GET":
            self.reply(204, self.upload_headers(name, id))
        elif self.command == "DELETE":
            del own.uploads[id]
            self.reply(204)
        else:
            self.take(name, id, query)

    def take(self, name: str, id: str, query: dict[str, list[str]]) -> None:
        """Append the body of PATCH or PUT to an upload; PUT completes it."""
        own, held = self.registry, self.registry.uploads[id]
        begin = int(self.headers.get("Content-Range", str(len(held))).partition("-")[0])
        if begin != len(held):
            self.close_connection = True
            return self.reply(416, self.upload_headers(name, id))
        held += self.body()
        if self.fault.cut >= 0:
            return self.connection.close()
        if self.command == "PATCH":
            return self.reply(202, self.upload_headers(name, id))
        digest = query["digest"][0]
        if f"sha256:{hashlib.sha256(held).hexdigest()}" != digest:
            return self.reply(400, body=b'{"errors":[{"code":"DIGEST_INVALID","message":"\\u001b[31mno"}]}')
        own.blobs[name, digest] = bytes(own.uploads.pop(id))
        return self.reply(201, {"Docker-Content-Digest": digest})

    def start_upload(self, name: str, query: dict[str, list[str]]) -> None:
        own = self.registry
        self.body()
        if "mount" in query and (source := (query["from"][0], query["mount"][0])) in own.blobs:
            own.blobs[name, source[1]] = own.blobs[source]
            return self.reply(201)
        with own.lock:
            id = str(len(own.seen))
            own.uploads[id] = bytearray()
        return self.reply(202, self.upload_headers(name, id))

    def upload_headers(self, name: str, id: str) -> dict[str, str]:
        count = len(self.registry.uploads[id])
        return {"Location": f"/v2/{name}/blobs/uploads/{id}?_state=secret", "Range": f"0-{max(0, count - 1)}"}

    def manifest(self, name: str, reference: str) -> None:
        own = self.registry
        if self.command == "PUT":
            data = self.body()
            document = json.loads(data)
            blobs = [document["config"], *document["layers"]] if document["mediaType"] == MANIFEST_TYPE else []
            if any((name, each["digest"]) not in own.blobs for each in blobs):
                return self.reply(404, body=b'{"errors":[{"code":"MANIFEST_BLOB_UNKNOWN","message":"unknown blob"}]}')
            digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
            own.manifests[name, reference] = own.manifests[name, digest] = data
            subject = {"OCI-Subject": document["subject"]["digest"]} if "subject" in document else {}
            return self.reply(201, {"Docker-Content-Digest": digest, **(subject if own.lists_referrers else {})})
        if (name, reference) not in own.manifests:
            return self.reply(404)
        data = own.manifests[name, reference]
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        return self.reply(200, {"Content-Type": MANIFEST_TYPE, "Docker-Content-Digest": digest}, data)

    def referrers(self, name: str, digest: str) -> None:
        if not self.registry.lists_referrers:
            return self.reply(404)
        found = []
        for (where, reference), data in self.registry.manifests.items():
            document = json.loads(data)
            if where == name and ":" in reference and document.get("subject", {}).get("digest") == digest:
                entry = {key: document[key] for key in ("mediaType", "artifactType", "annotations")}
                found.append({**entry, "digest": reference, "size": len(data)})
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": found}
        return self.reply(200, body=json.dumps(index).encode())

    def tags(self, name: str) -> None:
        found = sorted(tag for where, tag in self.registry.manifests if where == name and ":" not in tag)
        self.reply(200, body=json.dumps({"name": name, "tags": found}).encode())

    def reply(self, status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        if self.fault.flip >= 0 and body:
            changed = bytearray(body)
            changed[self.fault.flip // 8 % len(body)] ^= 1 << self.fault.flip % 8
            body = bytes(changed)
        body += self.fault.extra
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD" or status == 204:
            return
        short = [each for each in (self.fault.cut, self.fault.stall) if 0 <= each < len(body)]
        end = min(short, default=len(body))
        self.wfile.write(body[:end])
        self.registry.sent += end
        if short and self.fault.stall >= 0:
            self.registry.released.wait(30)
        if short:
            self.close_connection = True


for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
    setattr(Handler, f"do_{method}", Handler.handle_any)


@contextmanager
def running_registry(**settings: Any) -> Iterator[Registry]:
    """Run a registry on a free port."""
    registry = Registry(**settings)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"registry": registry}))
    server.daemon_threads = True
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        registry.released.set()
        server.shutdown()
        thread.join(10)
        server.server_close()
