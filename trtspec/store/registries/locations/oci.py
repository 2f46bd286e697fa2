# SPDX-License-Identifier: Apache-2.0
"""Repositories of OCI registries: oci://HOST[:PORT]/NAME[:TAG][@sha256:DIGEST].

Source of the protocol: opencontainers/distribution-spec:spec.md@v1.1.1. Distribution 2.8 deviates in that it ignores
Content-Range and appends each chunk, so an upload's offset is read from the registry before it is continued.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from urllib.parse import quote, urljoin, urlsplit

from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.core.hashing import SEGMENT_BYTES
from trtspec.core.http_hosts import is_loopback
from trtspec.core.image_references import DIGEST, ImageReference, parse_image
from trtspec.store.registries.authorization import Authorization
from trtspec.store.registries.blobs import BlobSource
from trtspec.store.registries.credentials import DOCKER_HUB, find_credentials
from trtspec.store.registries.http_client import (
    PARTIAL,
    TRANSIENT,
    Broken,
    RegistryClient,
    RegistryError,
    Reply,
    read_explanation,
    read_from,
    reason,
    require_safe,
    resolve,
    retry_after_s,
    shown,
)
from trtspec.store.registries.modelpack import IMAGE_MANIFEST, MAX_MANIFEST_BYTES, Descriptor
from trtspec.store.registries.referrers import (
    INDEX_TYPE,
    MAX_REFERRERS,
    Referrer,
    add_to_index,
    fallback_tag,
    is_fallback_tag,
    parse_index,
)
from trtspec.store.registries.repository import DIGEST_HINT, Opening, UnknownReference
from trtspec.store.registries.sessions import UploadSession, remove_old_sessions

CHUNK_BYTES = SEGMENT_BYTES  # what is sent again if a registry drops an interrupted chunk
MAX_CHUNK_BYTES = 4 << 30  # of a registry that requires larger chunks
MAX_TAGS, TAGS_PER_PAGE, MAX_TAGS_BYTES = 50_000, 1000, 1 << 20
EXAMPLE = "e.g. oci://registry.example.com/team/model:v1"
DOCKER_HUB_API = "registry-1.docker.io"
MAX_STARTS = 3  # of an upload whose bytes the registry rejects at the end
OK, CREATED, ACCEPTED, NO_CONTENT, NOT_FOUND = 200, 201, 202, 204, 404
UNAVAILABLE_RANGE, METHOD_NOT_ALLOWED = 416, 405
REFUSES_DELETION = {400, METHOD_NOT_ALLOWED, 415, 501}
# The upload is unknown or has other bytes. Distribution 2.8 sometimes replies so if several clients upload one blob.
FORGOTTEN = {400, NOT_FOUND}


def parse_address(rest: str) -> tuple[str, str, ImageReference]:
    """Return the host, the repository's name and the reference of //HOST/NAME:TAG; `latest` is the default tag."""
    text = rest.removeprefix("//")
    host, slash, name = text.partition("/")
    is_tagged = ":" in name.partition("@")[0] or "@" in name
    try:
        if not rest.startswith("//") or not slash or not _is_host(host) or urlsplit(rest).port == 0:
            raise ValueError  # as `port` itself does above 65535
        reference = parse_image(text if is_tagged else f"{text}:latest")
    except ValueError:
        raise TrtspecError(f"{'oci:' + rest[:200]!r} is not oci://HOST/NAME:TAG", hint=EXAMPLE) from None
    return host, reference.name.removeprefix(f"{host}/"), reference


def _is_host(text: str) -> bool:
    """Return whether a text is a host by docker's rule: it has a dot or a port, or is localhost."""
    return "." in text or ":" in text or text == "localhost"


class OciRepository:
    """One repository of a registry."""

    def __init__(self, rest: str, opening: Opening) -> None:
        host, name, reference = parse_address(rest)
        bare = host.rpartition(":")[0] if re.search(r":[0-9]+$", host) else host
        scheme = "http" if is_loopback(bare.strip("[]")) else "https"
        if opening.for_writing and reference.digest:
            raise TrtspecError("an artifact is pushed to a tag, not to a digest", hint=EXAMPLE)
        actions = "pull,push" if opening.for_writing else "pull"
        authorization = Authorization(host, f"repository:{name}:{actions}", lambda: find_credentials(host))
        origin = f"{scheme}://{DOCKER_HUB_API if host == DOCKER_HUB else host}"
        self._client = RegistryClient(origin, authorization, opening.patience, opening.stopped)
        self._host = host
        self.base = f"/v2/{name}"
        self.place = f"{host}/{name}"
        self.label = f"oci://{self.place}"
        self.reference = reference.digest or reference.tag
        if opening.for_writing:
            remove_old_sessions(time.time())

    def interrupt(self) -> None:
        self._client.interrupt()

    def close(self) -> None:
        self._client.close()

    def failed(self) -> Callable[[Exception], None]:
        attempts = self._client.attempts(f"oci://{self.place}")

        def handle(error: Exception) -> None:
            attempts.failed(error if isinstance(error, Broken) else Broken(str(error)))

        return handle

    def manifest(self, reference: str = "") -> bytes:
        """Return an image manifest; raises DigestMismatch if the digest in the address or the reply differs."""
        reference = reference or self.reference
        path = f"{self.base}/manifests/{reference}"
        reply = self._client.exchange("GET", path, headers={"Accept": IMAGE_MANIFEST}, max_bytes=MAX_MANIFEST_BYTES)
        if reply.status == NOT_FOUND:
            message, is_digest = f"oci://{self.place} has no {reference}", re.fullmatch(DIGEST, reference)
            hint = DIGEST_HINT if is_digest else f"trtspec list oci://{self.place} shows its tags"
            raise UnknownReference(message, hint=hint)
        if reply.status != OK:
            raise rejection(reply, "the manifest cannot be read")
        check_announced(reply, reference)
        return reply.body

    def publish(self, manifest: bytes, tag: str = "") -> None:
        self._store(tag or self.reference, manifest, IMAGE_MANIFEST)

    def _store(self, reference: str, manifest: bytes, media_type: str) -> Reply:
        path = f"{self.base}/manifests/{reference}"
        reply = self._client.exchange("PUT", path, headers={"Content-Type": media_type}, body=manifest)
        if reply.status != CREATED:
            raise rejection(reply, "the manifest was not accepted")
        found = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        if (stored := reply.headers.get("docker-content-digest", found)) != found:
            raise DigestMismatch(
                f"the registry stored the manifest as {stored[:80]}, sent {found}", where=shown(reply.url)
            )
        return reply

    def attach(self, manifest: bytes, subject: str) -> None:
        """Store a referrer; a registry that does not confirm its subject gets an index under the fallback tag."""
        digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        if self._store(digest, manifest, IMAGE_MANIFEST).headers.get("oci-subject") == subject:
            return
        add_to_index(
            self.label,
            manifest,
            lambda: self._index(f"manifests/{fallback_tag(subject)}"),
            lambda index: self._store_index(fallback_tag(subject), index),
        )

    def _store_index(self, tag: str, index: bytes) -> None:
        self._store(tag, index, INDEX_TYPE)

    def referrers(self, digest: str) -> list[Referrer]:
        path, found = f"referrers/{digest}", list[Referrer]()
        for _ in range(MAX_REFERRERS):  # pages, which may be empty
            reply = self._get_index(path) if path and len(found) < MAX_REFERRERS else None
            if reply is None:
                break
            found += parse_index(shown(reply.url), reply.body)
            path = self._following(reply).removeprefix(f"{self.base}/")
        if not found and (data := self._index(f"manifests/{fallback_tag(digest)}")) is not None:
            found = parse_index(self.label, data)
        return found[:MAX_REFERRERS]

    def _index(self, path: str) -> bytes | None:
        reply = self._get_index(path)
        return reply.body if reply else None

    def _get_index(self, path: str) -> Reply | None:
        """Return the reply with an image index, or None if it is missing or the registry does not list referrers."""
        headers = {"Accept": INDEX_TYPE}
        reply = self._client.exchange("GET", f"{self.base}/{path}", headers=headers, max_bytes=MAX_MANIFEST_BYTES)
        if reply.status in FORGOTTEN | {METHOD_NOT_ALLOWED}:
            return None
        if reply.status != OK:
            raise rejection(reply, "the list of referrers cannot be read")
        check_announced(reply)
        return reply

    def remove(self, tags: Sequence[str]) -> None:
        """Delete manifests by their digests, as registries require; the registry's own cleanup removes the blobs."""
        for tag in tags:
            try:
                digest = f"sha256:{hashlib.sha256(self.manifest(tag)).hexdigest()}"
            except UnknownReference:
                continue
            reply = self._client.exchange("DELETE", f"{self.base}/manifests/{digest}")
            if reply.status in REFUSES_DELETION:
                hint = "enable deletion in the registry (Distribution: storage.delete.enabled), or use its own tools"
                raise RegistryError(
                    f"the registry does not delete manifests: {reason(reply)}", where=self.label, hint=hint
                )
            if reply.status not in (OK, ACCEPTED, NO_CONTENT, NOT_FOUND):
                raise rejection(reply, "the manifest was not deleted")

    def tags(self) -> list[str]:
        path, found = f"{self.base}/tags/list?n={TAGS_PER_PAGE}", set[str]()
        while path and len(found) < MAX_TAGS:
            reply = self._client.exchange("GET", path, max_bytes=MAX_TAGS_BYTES)
            if reply.status == NOT_FOUND:
                hint = "check the name and your access to it; the first push creates a repository"
                raise UnknownReference(f"no such repository: {reason(reply)}", where=self.label, hint=hint)
            if reply.status != OK:
                raise rejection(reply, "the tags cannot be listed")
            page = _parse_tags(reply)
            if not page - found:
                break
            found |= page
            path = self._following(reply)
        return sorted(tag for tag in found if not is_fallback_tag(tag))[:MAX_TAGS]

    def _following(self, reply: Reply) -> str:
        """Return the path of the next page, or ""."""
        following = re.match(r'\s*<([^>]+)>;\s*rel="?next"?', reply.headers.get("link", ""))
        return self._same_origin(resolve(reply.url, following[1])) if following else ""

    def _same_origin(self, url: str) -> str:
        parts = urlsplit(url)
        return f"{parts.path}?{parts.query}" if parts.query else parts.path

    def has_blob(self, digest: str, nbytes: int) -> bool:
        reply = self._client.exchange("HEAD", f"{self.base}/blobs/{digest}")
        if reply.status not in (OK, NOT_FOUND):
            raise rejection(reply, "the registry does not report whether it has a file")
        return reply.status == OK and reply.headers.get("content-length", str(nbytes)) == str(nbytes)

    def pieces(self, blob: Descriptor, offset: int) -> Iterator[memoryview]:
        headers = {"Range": f"bytes={offset}-"} if offset else {}
        path = f"{self.base}/blobs/{blob.digest}"
        with self._client.stream(path, headers) as (response, pieces):
            if response.status in TRANSIENT:
                found = {name.lower(): value for name, value in response.getheaders()}
                raise Broken(f"HTTP status {response.status}", retry_after_s(found))
            if response.status == NOT_FOUND:
                raise UnknownReference(
                    f"a file is missing: {blob.digest}", where=shown(urljoin(self._client.origin, path))
                )
            if response.status not in (OK, PARTIAL):
                body = read_explanation(response)
                raise rejection(
                    Reply(urljoin(self._client.origin, path), response.status, {}, body), "a file is missing"
                )
            yield from read_from(response, pieces, offset)

    def take_blob(self, digest: str, nbytes: int, places: list[str]) -> bool:
        """Mount a blob from another repository of this registry; return False if the registry does not mount."""
        for place in places:
            host, _, name = place.partition("/")
            if host != self._host or place == self.place:
                continue
            path = f"{self.base}/blobs/uploads/?mount={quote(digest)}&from={quote(name, safe='')}"
            with suppress(TrtspecError):
                reply = self._client.exchange("POST", path, scope=f"repository:{name}:pull")
                if reply.status == CREATED:
                    return True
                if reply.status == ACCEPTED and "location" in reply.headers:  # a regular upload was started instead
                    self.cancel(self.upload_address(reply))
        return False

    def upload_bytes(self, data: bytes) -> None:
        digest, failed = f"sha256:{hashlib.sha256(data).hexdigest()}", self.failed()
        while not self.has_blob(digest, len(data)):
            try:
                address = with_digest(self.upload_address(self.start_upload()), digest)
                reply = self._client.once("PUT", address, body=data, headers=_OCTETS)
                if reply.status == CREATED:
                    return
                if reply.status not in TRANSIENT | FORGOTTEN:
                    raise rejection(reply, "the registry rejects a file")
                raise Broken(reason(reply), retry_after_s(reply.headers))
            except Broken as error:
                failed(error)

    def upload(self, source: BlobSource) -> str:
        """Upload a file in chunks, continuing the session of an interrupted upload of the same content."""
        session = UploadSession(self.place, source.record.digest)
        try:
            digest = _Upload(self, self._client, source, session).run()
        finally:
            session.close()
        return digest

    def start_upload(self) -> Reply:
        """Start an upload session; `upload_address` of the reply is the address of its parts."""
        reply = self._client.exchange("POST", f"{self.base}/blobs/uploads/")
        if reply.status != ACCEPTED:
            raise rejection(reply, "the registry does not accept an upload")
        return reply

    def upload_address(self, reply: Reply) -> str:
        if not (location := reply.headers.get("location", "")):
            raise RegistryError("the registry returned no upload address", where=shown(reply.url))
        url = resolve(reply.url, location)
        require_safe(url, self._client.origin)
        return url

    def cancel(self, url: str) -> None:
        with suppress(TrtspecError, Broken):
            self._client.once("DELETE", url)


_OCTETS = {"Content-Type": "application/octet-stream"}


class _Upload:
    """The upload of one file: chunks in sequence, each from the offset that the registry confirms."""

    def __init__(
        self, repository: OciRepository, client: RegistryClient, source: BlobSource, session: UploadSession
    ) -> None:
        self._repository, self._client, self._source, self._session = repository, client, source, session
        self._size = source.record.size
        self._chunk_bytes = CHUNK_BYTES
        self._url = str(session.state.get("url", ""))

    def run(self) -> str:
        """Return the SHA-256 of the uploaded file, in hex."""
        failed, offset, starts = self._repository.failed(), -1, 0
        while True:
            try:
                if offset < 0:
                    offset = self._offset() if self._url else 0
                if not self._url:
                    self._open()
                if offset < self._size:
                    before, offset = offset, self._send_chunk(offset)
                    if offset > before:
                        failed = self._repository.failed()
                    continue
                return self._finish()
            except Broken as error:
                failed(error)
                offset = -1
            except _WrongContent as error:
                starts += 1
                if starts >= MAX_STARTS:
                    raise DigestMismatch(str(error), where=f"oci://{self._repository.place}") from None
                self._forget()
                offset = -1

    def _open(self) -> None:
        reply = self._repository.start_upload()
        least = reply.headers.get("oci-chunk-min-length", "")
        if least.isdecimal() and len(least) < 12:
            self._chunk_bytes = min(max(CHUNK_BYTES, int(least)), MAX_CHUNK_BYTES)
        self._keep(self._repository.upload_address(reply))

    def _keep(self, url: str) -> None:
        self._url = url
        self._session.keep({"url": url})

    def _forget(self) -> None:
        if self._url:
            self._repository.cancel(self._url)
        self._url = ""
        self._session.forget()

    def _offset(self) -> int:
        """Return the number of bytes that the registry has; start again if it has forgotten the upload."""
        reply = self._client.once("GET", self._url)
        if reply.status in TRANSIENT:
            raise Broken(f"HTTP status {reply.status}", retry_after_s(reply.headers))
        offset = _confirmed(reply)
        if reply.status != NO_CONTENT or offset is None or offset > self._size:
            self._forget()
            return 0
        self._keep(self._repository.upload_address(reply) if "location" in reply.headers else self._url)
        return offset

    def _send_chunk(self, offset: int) -> int:
        """Send a chunk; return the new offset, or -1 to read it from the registry."""
        end = min(offset + self._chunk_bytes, self._size)
        headers = {**_OCTETS, "Content-Range": f"{offset}-{end - 1}"}
        reply = self._client.once(
            "PATCH", self._url, headers=headers, body=lambda: self._source.pieces(offset, end), nbytes=end - offset
        )
        if reply.status in TRANSIENT:
            raise Broken(f"HTTP status {reply.status}", retry_after_s(reply.headers))
        if reply.status == UNAVAILABLE_RANGE:
            raise Broken("the registry has another part of the file")
        if reply.status == NOT_FOUND:
            self._forget()
            raise Broken("the registry has forgotten the upload")
        if reply.status not in (ACCEPTED, CREATED, NO_CONTENT):
            raise rejection(reply, "the registry rejects a part of a file")
        self._keep(self._repository.upload_address(reply) if "location" in reply.headers else self._url)
        if _confirmed(reply) not in (None, end):
            raise Broken("the registry has another part of the file")
        return end

    def _finish(self) -> str:
        sha256 = self._source.sha256()
        digest = f"sha256:{sha256}"
        reply = self._client.once("PUT", with_digest(self._url, digest), headers=_OCTETS)
        if reply.status in TRANSIENT:
            raise Broken(f"HTTP status {reply.status}", retry_after_s(reply.headers))
        if reply.status == CREATED or self._repository.has_blob(digest, self._size):
            self._session.forget()
            return sha256
        if reply.status in FORGOTTEN | {UNAVAILABLE_RANGE}:
            raise _WrongContent(f"the registry has other bytes than the file: {reason(reply)}")
        raise rejection(reply, "the registry rejects a file")


class _WrongContent(Exception):
    """The registry received something else than the file; the upload starts again."""


def _confirmed(reply: Reply) -> int | None:
    """Return the number of bytes that a Range header confirms, or None without one.

    "0-0" means one byte, but Distribution sends it for none. A wrong guess is found when the upload is finished.
    """
    match = re.fullmatch(r"(?:bytes=)?0-([0-9]{1,19})", reply.headers.get("range", ""))
    if match is None:
        return None
    last = int(match[1])
    return last + 1 if last else 0


def with_digest(url: str, digest: str) -> str:
    """Return the address that completes an upload."""
    return f"{url}{'&' if urlsplit(url).query else '?'}digest={quote(digest)}"


def check_announced(reply: Reply, reference: str = "") -> None:
    """Raise DigestMismatch if a manifest's digest is not `reference`, unless that is a tag, or not the reply's own."""
    found = f"sha256:{hashlib.sha256(reply.body).hexdigest()}"
    announced = reply.headers.get("docker-content-digest", found)
    expected = reference if re.fullmatch(DIGEST, reference) else announced
    if re.fullmatch(DIGEST, expected) and found != expected:
        raise DigestMismatch(f"the manifest has the digest {found}, expected {expected}", where=shown(reply.url))


def _parse_tags(reply: Reply) -> set[str]:
    try:
        document = json.loads(reply.body)
        names = document["tags"] or []
        return {str(name) for name in names if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", str(name))}
    except (ValueError, RecursionError, KeyError, TypeError):
        raise RegistryError("the list of tags is not valid", where=shown(reply.url)) from None


def rejection(reply: Reply, what: str) -> RegistryError:
    """Return the error for a reply that rejects a request for good."""
    hint = "check the repository's name and your access to it" if reply.status in (401, 403, 404) else None
    return RegistryError(f"{what}: {reason(reply)}", where=shown(reply.url), hint=hint)


LOCATION = OciRepository
