# SPDX-License-Identifier: Apache-2.0
"""Artifacts in a bucket of an S3 service: s3://BUCKET[/PREFIX][:TAG][@sha256:DIGEST].

    PREFIX/blobs/sha256/HEX    a file, or an image manifest, under the SHA-256 of its bytes
    PREFIX/tags/TAG            the descriptor of the tag's image manifest, in JSON
    PREFIX/referrers/HEX/HEX   the descriptor of a referrer's manifest, under the SHA-256 of its subject and its own

An object of S3 appears and changes at once, so a tag is always complete and pushes of different tags do not interfere.
botocore finds the service, its region and the credentials, and signs. `RegistryClient` sends the requests and limits
their time and the size of replies. ETags are not digests: two of them are only compared with each other.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import cache
from itertools import islice
from threading import Lock
from typing import Any

from pydantic import ValidationError

from trtspec.core.diagnostics import escape_unprintable
from trtspec.core.errors import TrtspecError
from trtspec.core.hashing import SEGMENT_BYTES
from trtspec.core.processes import return_free_memory
from trtspec.store.registries.blobs import BlobSource
from trtspec.store.registries.http_client import (
    PARTIAL,
    TRANSIENT,
    Attempts,
    Broken,
    RegistryClient,
    RegistryError,
    Reply,
    TokenRequest,
    read_explanation,
    read_from,
    retry_after_s,
    url_origin,
)
from trtspec.store.registries.modelpack import (
    IMAGE_MANIFEST,
    MAX_MANIFEST_BYTES,
    Descriptor,
    check_digest,
    dump,
    parse_image_manifest,
)
from trtspec.store.registries.referrers import MAX_REFERRERS, Referrer, describe_referrer, read_referrers
from trtspec.store.registries.repository import Opening, UnknownReference
from trtspec.store.registries.sessions import SESSION_DAYS, UploadSession, remove_old_sessions

EXAMPLE = "e.g. s3://bucket/models/llama:v1"
INSTALL = "pip install 'trtspec[s3]'"
CREDENTIALS_HINT = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
ACCESS_HINT = "check the bucket's name, and your access to it: list, get, put, and multipart uploads"
MAX_REPLY_BYTES = 4 << 20
MAX_TAG_BYTES = 4096
MAX_TAGS = 50_000
UNUSED_S = 86400.0  # younger blobs without a manifest may be part of a running push
MAX_PARTS = 10_000
PART_THREADS = 8
URL_S = 3600  # how long a signed address is valid; a part has `Patience.transfer_s`
OK, NOT_FOUND = 200, 404
_REGIONAL: dict[str, Any] = {"endpoints": {}}  # a service of botocore without a list of its addresses
# Codes of errors that may not occur again, although their status is final.
PASSING = {"BadDigest", "IncompleteBody", "InternalError", "OperationAborted", "RequestTimeout", "SlowDown"}
PASSING |= {"XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_ADDRESS = re.compile(
    r"//(?P<bucket>[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9])(?:/(?P<prefix>[A-Za-z0-9!_.*'()/=+-]{1,700}))?"
    rf"(?::(?P<tag>{_TAG}))?(?:@(?P<digest>sha256:[0-9a-f]{{64}}))?"
)


def parse_address(rest: str) -> tuple[str, str, str]:
    """Return the bucket, the prefix ("" or with a final slash) and the tag or digest; `latest` is the default tag."""
    match = _ADDRESS.fullmatch(rest)
    folders = (match["prefix"] or "").strip("/").split("/") if match else []
    if match is None or {".", ".."} & {*folders} or (len(folders) > 1 and "" in folders):
        raise TrtspecError(f"{'s3:' + rest[:200]!r} is not s3://BUCKET/PREFIX:TAG", hint=EXAMPLE)
    prefix = f"{'/'.join(folders)}/" if folders[0] else ""
    return match["bucket"], prefix, match["digest"] or match["tag"] or "latest"


class S3Repository:
    """The artifacts below one prefix of a bucket."""

    place = ""

    def __init__(self, rest: str, opening: Opening) -> None:
        bucket, self._prefix, self.reference = parse_address(rest)
        if opening.for_writing and ":" in self.reference:
            raise TrtspecError("an artifact is pushed to a tag, not to a digest", hint=EXAMPLE)
        self.label = f"s3://{bucket}/{self._prefix}".rstrip("/")
        self._known, self._stopped = opening.known, opening.stopped
        self.service = S3Service(self.label, bucket, opening)
        self._pool = ThreadPoolExecutor(PART_THREADS)
        if opening.for_writing:
            remove_old_sessions(time.time())

    def interrupt(self) -> None:
        self.service.client.interrupt()

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.service.client.close()

    def failed(self) -> Callable[[Exception], None]:
        attempts = self.service.attempts()

        def handle(error: Exception) -> None:
            attempts.failed(error if isinstance(error, Broken) else Broken(str(error)))

        return handle

    def manifest(self, reference: str = "") -> bytes:
        """Return an image manifest; raises DigestMismatch if the object has other bytes than its name promises."""
        reference = reference or self.reference
        digest = reference if ":" in reference else self._tagged(reference).digest
        data = self.service.read(self._blob_key(digest), MAX_MANIFEST_BYTES)
        if data is None:
            raise UnknownReference(f"{self.label} has no manifest of {reference}", hint=f"trtspec list {self.label}")
        check_digest(self.label, "the manifest", data, digest)
        return data

    def _tagged(self, tag: str) -> Descriptor:
        data = self.service.read(f"{self._prefix}tags/{tag}", MAX_TAG_BYTES)
        if data is None:
            raise UnknownReference(f"{self.label} has no {tag}", hint=f"trtspec list {self.label} shows its tags")
        try:
            return Descriptor.model_validate_json(data)
        except ValidationError:
            raise RegistryError(f"the tag {tag} is not the descriptor of a manifest", where=self.label) from None

    def publish(self, manifest: bytes, tag: str = "") -> None:
        self.upload_bytes(manifest)
        image = parse_image_manifest(self.label, manifest)
        for blob in (image.config, *image.layers):
            if not self.has_blob(blob.digest, blob.size):
                raise RegistryError(f"the blob {blob.digest} was removed", where=self.label, hint="try again")
        digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
        descriptor = dump({"mediaType": IMAGE_MANIFEST, "digest": digest, "size": len(manifest)})
        self._put(f"{self._prefix}tags/{tag or self.reference}", descriptor)
        self.abort_uploads(f"{self._prefix}blobs/sha256/", before=time.time() - SESSION_DAYS * 86400)

    def attach(self, manifest: bytes, subject: str) -> None:
        self.upload_bytes(manifest)
        entry = describe_referrer(manifest)
        self._put(f"{self._referrers(subject)}{entry['digest'].removeprefix('sha256:')}", dump(entry))

    def referrers(self, digest: str) -> list[Referrer]:
        keys = (key for key, _ in self._list(self._referrers(digest)))
        found = [self.service.read(key, MAX_TAG_BYTES) for key in islice(keys, MAX_REFERRERS)]
        return read_referrers(_parse_entry(data) for data in found if data is not None)

    def remove(self, tags: Sequence[str]) -> None:
        """Remove tags, and blobs that no manifest needs and that are older than UNUSED_S seconds."""
        for tag in tags:
            self.service.call("delete_object", Key=f"{self._prefix}tags/{tag}")
        used, old = self._used_blobs(), time.time() - UNUSED_S
        for key, modified in self._list(f"{self._prefix}blobs/sha256/"):
            if key.rpartition("/")[2] not in used and modified < old:
                self.service.call("delete_object", Key=key)

    def _used_blobs(self) -> set[str]:
        """Return the names of the blobs of all tags and their referrers; referrers without a subject are removed."""
        digests = {self._tagged(tag).digest for tag in self._tags()}
        for key, _ in self._list(f"{self._prefix}referrers/"):
            subject, _, referrer = key.removeprefix(f"{self._prefix}referrers/").partition("/")
            if f"sha256:{subject}" in digests:
                digests.add(f"sha256:{referrer}")
            else:
                self.service.call("delete_object", Key=key)
        used = {digest.removeprefix("sha256:") for digest in digests}
        for digest in digests:
            image = parse_image_manifest(self.label, self.manifest(digest))
            used |= {image.config.hex, *(layer.hex for layer in image.layers)}
        return used

    def tags(self) -> list[str]:
        found = self._tags()
        if not found and self._prefix and next(self._list(self._prefix), None) is None:
            hint = "check the address; the first push creates the prefix"
            raise UnknownReference("the bucket does not have an object below this prefix", where=self.label, hint=hint)
        return found

    def _tags(self) -> list[str]:
        prefix = f"{self._prefix}tags/"
        names = (key.removeprefix(prefix) for key, _ in islice(self._list(prefix), MAX_TAGS))
        return sorted(name for name in names if re.fullmatch(_TAG, name))

    def _list(self, prefix: str) -> Iterator[tuple[str, float]]:
        """Yield the keys of objects and the times of their last changes, in seconds since the epoch."""
        token = ""
        while True:
            more = {"ContinuationToken": token} if token else {}
            page = self.service.call("list_objects_v2", Prefix=prefix, **more)
            for each in page.get("Contents", []):
                yield str(each["Key"]), each["LastModified"].timestamp()
            if not page.get("IsTruncated") or token == (token := str(page.get("NextContinuationToken", ""))):
                return

    def _referrers(self, digest: str) -> str:
        return f"{self._prefix}referrers/{digest.removeprefix('sha256:')}/"

    def has_blob(self, digest: str, nbytes: int) -> bool:
        try:
            return int(self.service.call("head_object", Key=self._blob_key(digest))["ContentLength"]) == nbytes
        except Absent:
            return False

    def pieces(self, blob: Descriptor, offset: int) -> Iterator[memoryview]:
        yield from self.service.pieces(self._blob_key(blob.digest), offset)

    def take_blob(self, digest: str, nbytes: int, places: list[str]) -> bool:
        return False

    def upload_bytes(self, data: bytes) -> None:
        self._put(self._blob_key(f"sha256:{hashlib.sha256(data).hexdigest()}"), data)

    def upload(self, source: BlobSource) -> str:
        """Upload a file, continuing the interrupted upload of the same content from this machine.

        An object's name has to be known first, so a file whose SHA-256 is unknown here is read twice. Its BLAKE3
        segments are compared in both readings, and the service compares the SHA-256 of each part.
        """
        if (sha256 := self._known.sha256(source.record.digest)) is None:
            sha256 = source.sha256(is_counted=False)
            self._known.learn([(source.record.digest, sha256)])  # at once: a killed push does not read it again
        key = self._blob_key(f"sha256:{sha256}")
        if source.record.size <= SEGMENT_BYTES:
            self._put_file(source, key, sha256)
            return sha256
        session = UploadSession(self.label, source.record.digest)
        try:
            _MultipartUpload(self, source, key, session).run()
        finally:
            session.close()
        return sha256

    def _put_file(self, source: BlobSource, key: str, sha256: str) -> None:
        size = source.record.size
        self.service.send(
            "put_object", {"Key": key}, bytes.fromhex(sha256), lambda: source.segment_pieces(0, size), size
        )
        source.count(size)

    def _put(self, key: str, data: bytes) -> None:
        self.service.send("put_object", {"Key": key}, hashlib.sha256(data).digest(), lambda: [data], len(data))

    def in_threads(self, work: Callable[[Any], None], items: Sequence[Any]) -> None:
        """Call a function for all items in several threads; the first failure ends the whole transfer."""
        futures = [self._pool.submit(work, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            self._stopped.set()
            self.interrupt()
            wait(futures)
            raise

    def _blob_key(self, digest: str) -> str:
        return f"{self._prefix}blobs/sha256/{digest.removeprefix('sha256:')}"

    def abort_uploads(self, prefix: str, *, before: float = math.inf) -> None:
        """Abort uploads that began before a time, in seconds since the epoch; their parts take space unlisted."""
        with suppress(TrtspecError):
            found = self.service.call("list_multipart_uploads", Prefix=prefix)
            for each in found.get("Uploads", []):
                if each["Initiated"].timestamp() < before:
                    self.service.call("abort_multipart_upload", Key=each["Key"], UploadId=each["UploadId"])


class _MultipartUpload:
    """The upload of a large file in parts of whole segments, several at once, with a state that survives a crash.

    The state has the upload's id and the ETag and SHA-256 of each part that the service has confirmed. Once the object
    exists, other uploads of it are aborted: a process that was killed before it kept an id, and other pushers, which
    then find the object.
    """

    def __init__(self, repository: S3Repository, source: BlobSource, key: str, session: UploadSession) -> None:
        self._repository, self._source, self._key, self._session = repository, source, key, session
        size = source.record.size
        self._part_bytes = SEGMENT_BYTES * -(-size // (SEGMENT_BYTES * MAX_PARTS))
        begins = range(0, size, self._part_bytes)
        self._parts = {1 + number: (begin, min(begin + self._part_bytes, size)) for number, begin in enumerate(begins)}
        self._sent: dict[int, tuple[str, str]] = {}  # ETag and SHA-256 in base64, by part
        self._id, self._has_checksums, self._is_ended = "", False, False
        self._lock = Lock()

    def run(self) -> None:
        self._continue()
        if not self._id:
            self._start()
        for number in self._sent:
            self._source.count(self._length(number))
        self._repository.in_threads(self._send, [number for number in self._parts if number not in self._sent])
        self._complete()
        self._session.forget()

    def _length(self, number: int) -> int:
        begin, end = self._parts[number]
        return end - begin

    def _start(self) -> None:
        reply = self._repository.service.call("create_multipart_upload", Key=self._key, ChecksumAlgorithm="SHA256")
        self._id, self._has_checksums = str(reply["UploadId"]), "ChecksumAlgorithm" in reply
        self._keep()

    def _keep(self) -> None:
        parts = {str(number): list(each) for number, each in self._sent.items()}
        state = {"id": self._id, "key": self._key, "checksums": self._has_checksums, "parts": parts}
        self._session.keep(state)

    def _continue(self) -> None:
        """Continue the upload of the state, with the parts that are still the ones that were confirmed."""
        state = self._session.state
        if state.get("key") != self._key:
            return
        try:
            present = self._list(str(state["id"]))
        except Absent:
            return
        self._id, self._has_checksums = str(state["id"]), bool(state["checksums"])
        kept = {int(number): (str(etag), str(sha256)) for number, (etag, sha256) in dict(state["parts"]).items()}
        for number, each in present.items():
            if each.get("Size") == self._length(number) and self._is_same(number, each, kept.get(number)):
                self._sent[number] = (
                    str(each["ETag"]),
                    self._sha256(number) if number not in kept else kept[number][1],
                )

    def _is_same(self, number: int, listed: Mapping[str, Any], kept: tuple[str, str] | None) -> bool:
        """Return whether a listed part is the one that was confirmed, or has the checksum of the file's part."""
        if kept is not None:
            return listed.get("ETag") == kept[0] and listed.get("ChecksumSHA256", kept[1]) == kept[1]
        return "ChecksumSHA256" in listed and listed["ChecksumSHA256"] == self._sha256(number)

    def _list(self, upload_id: str) -> dict[int, Mapping[str, Any]]:
        found: dict[int, Mapping[str, Any]] = {}
        marker = 0
        while True:
            page = self._repository.service.call(
                "list_parts", Key=self._key, UploadId=upload_id, **({"PartNumberMarker": marker} if marker else {})
            )
            found |= {each["PartNumber"]: each for each in page.get("Parts", []) if each["PartNumber"] in self._parts}
            if not page.get("IsTruncated") or marker == (marker := int(page.get("NextPartNumberMarker") or 0)):
                return found

    def _sha256(self, number: int) -> str:
        digest = hashlib.sha256()
        for piece in self._source.segment_pieces(*self._parts[number]):
            digest.update(piece)
        return base64.b64encode(digest.digest()).decode()

    def _send(self, number: int) -> None:
        if self._is_ended:
            return
        sha256 = self._sha256(number)
        begin, end = self._parts[number]
        arguments = {"Key": self._key, "UploadId": self._id, "PartNumber": number}
        try:
            reply = self._repository.service.send(
                "upload_part",
                arguments,
                base64.b64decode(sha256),
                lambda: self._source.segment_pieces(begin, end),
                end - begin,
            )
        except Absent:
            self._is_ended = True
            return
        if not (etag := reply.headers.get("etag", "")):
            raise RegistryError("the service confirmed a part without an ETag", where=self._repository.label)
        with self._lock:
            self._sent[number] = (etag, sha256)
            self._keep()
        self._source.count(end - begin)

    def _complete(self) -> None:
        parts = [
            {"PartNumber": number, "ETag": etag, **({"ChecksumSHA256": sha256} if self._has_checksums else {})}
            for number, (etag, sha256) in sorted(self._sent.items())
        ]
        arguments = {"Key": self._key, "UploadId": self._id, "MultipartUpload": {"Parts": parts}}
        size = self._source.record.size
        if not self._is_ended:
            with suppress(Absent):  # another pusher, or an earlier request whose reply was lost, completed it
                self._repository.service.call("complete_multipart_upload", **arguments)
        digest = f"sha256:{self._key.rpartition('/')[2]}"
        if not self._repository.has_blob(digest, size):
            self._session.forget()
            raise RegistryError(
                "the service ended an upload, but lacks the object", where=self._repository.label, hint="push again"
            )
        self._repository.abort_uploads(self._key)


class S3Service:
    """Requests about a bucket: built and signed by botocore, sent by RegistryClient, and repeated after failures."""

    def __init__(self, label: str, bucket: str, opening: Opening) -> None:
        self._label, self._bucket = label, bucket
        self._boto = _new_client(label)
        origin = url_origin(self._boto.meta.endpoint_url)
        self.client = RegistryClient(
            origin, _SignedByBoto(), opening.patience, opening.stopped, follows_redirects=False
        )
        self._boto.meta.events.register("before-send.s3", self._transport)

    def attempts(self) -> Attempts:
        return self.client.attempts(self._label)

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Return the result of an operation; raises Absent for an absent object or upload."""
        from botocore.exceptions import ClientError

        attempts = self.attempts()
        while True:
            try:
                with _explained(self._label):
                    result: dict[str, Any] = getattr(self._boto, operation)(Bucket=self._bucket, **arguments)
                return result
            except ClientError as error:
                failure = self._judge(operation, error.response)
            except Broken as error:
                failure = error
            attempts.failed(failure)

    def _judge(self, operation: str, response: Mapping[str, Any]) -> Broken:
        """Return the failure of an operation that may be repeated; raise the others."""
        code = str(response.get("Error", {}).get("Code", ""))
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if status in TRANSIENT or code in PASSING:
            return Broken(_reason(status, code))
        if code in ("404", "NoSuchKey", "NoSuchUpload"):
            raise Absent
        raise RegistryError(f"{operation} failed: {_reason(status, code)}", where=self._label, hint=ACCESS_HINT)

    def send(
        self,
        operation: str,
        arguments: Mapping[str, Any],
        sha256: bytes,
        body: Callable[[], Iterable[Any]],
        nbytes: int,
    ) -> Reply:
        """Send the bytes of an object or part, whose SHA-256 the service compares.

        Failures are repeated from the beginning. Raises Absent if the upload does not exist.
        """
        checksum, attempts = base64.b64encode(sha256).decode(), self.attempts()
        headers = {"x-amz-checksum-sha256": checksum, "Content-Type": "application/octet-stream"}
        while True:
            url = self._sign(operation, {**arguments, "ChecksumSHA256": checksum})
            try:
                reply = self.client.once("PUT", url, headers=headers, body=body, nbytes=nbytes)
                code = _error_code(reply.body)
                if reply.status in TRANSIENT or (reply.status != OK and code in PASSING):
                    raise Broken(_reason(reply.status, code), retry_after_s(reply.headers))
                if reply.headers.get("x-amz-checksum-sha256", checksum) != checksum:
                    raise Broken("the service received other bytes")
            except Broken as error:
                attempts.failed(error)
                continue
            if reply.status == NOT_FOUND and code == "NoSuchUpload":
                raise Absent
            if reply.status != OK:
                message = f"a file was not accepted: {_reason(reply.status, code)}"
                raise RegistryError(message, where=self._label, hint=ACCESS_HINT)
            return reply

    def pieces(self, key: str, offset: int) -> Iterator[memoryview]:
        """Yield the bytes of an object from `offset`; raises Broken for failures that may not occur again."""
        url = self._sign("get_object", {"Key": key})
        with self.client.stream(url, {"Range": f"bytes={offset}-"} if offset else {}) as (response, pieces):
            if response.status in TRANSIENT:
                found = {name.lower(): value for name, value in response.getheaders()}
                raise Broken(f"HTTP status {response.status}", retry_after_s(found))
            if response.status not in (OK, PARTIAL):
                code = _error_code(read_explanation(response))
                if response.status == NOT_FOUND and code != "NoSuchBucket":
                    raise Absent
                message = f"an object cannot be read: {_reason(response.status, code)}"
                raise RegistryError(message, where=self._label, hint=ACCESS_HINT)
            yield from read_from(response, pieces, offset)

    def read(self, key: str, max_bytes: int) -> bytes | None:
        """Return the bytes of a small object, or None if it is absent."""
        attempts = self.attempts()
        while True:
            data = bytearray()
            try:
                for piece in self.pieces(key, 0):
                    data += piece
                    if len(data) > max_bytes:
                        raise RegistryError(f"a document exceeds {max_bytes:,} bytes", where=self._label)
                return bytes(data)
            except Broken as error:
                attempts.failed(error)
            except Absent:
                return None

    def _sign(self, operation: str, arguments: Mapping[str, Any]) -> str:
        with _explained(self._label):
            return str(
                self._boto.generate_presigned_url(
                    operation, Params={"Bucket": self._bucket, **arguments}, ExpiresIn=URL_S
                )
            )

    def _transport(self, request: Any, **_: Any) -> Any:
        """Send a request of botocore; the event's result replaces botocore's own transport."""
        from botocore.awsrequest import AWSResponse

        headers = {
            name: value.decode() if isinstance(value, bytes) else str(value) for name, value in request.headers.items()
        }
        reply = self.client.once(
            request.method, request.url, headers=headers, body=request.body or b"", max_bytes=MAX_REPLY_BYTES
        )
        return AWSResponse(request.url, reply.status, dict(reply.headers), _Received(reply.body))


def _parse_entry(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a document, or {} if it is none."""
    with suppress(ValueError, RecursionError):
        if isinstance(entry := json.loads(data), dict):
            return entry
    return {}


class Absent(UnknownReference):
    """An object or upload does not exist."""

    def __init__(self) -> None:
        super().__init__("an object is missing", hint="push the artifact again")


class _Received:
    """The body of a reply, as botocore reads it."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def stream(self) -> Iterator[bytes]:
        yield self._data


class _SignedByBoto:
    """No further authorization: botocore has signed the request."""

    def header(self, scope: str = "") -> str:
        return ""

    def answer(self, challenges: Sequence[str], sent: str, scope: str, request: TokenRequest) -> bool:
        return False

    def refused(self, where: str) -> TrtspecError:
        return RegistryError("access denied", where=where, hint=CREDENTIALS_HINT)


def _new_client(label: str) -> Any:
    """Return botocore's client for the service of the environment; raises TrtspecError without botocore."""
    try:
        import botocore.session
        from botocore.config import Config
    except ImportError:
        raise TrtspecError(
            "artifacts in buckets require botocore, which is not installed", where=label, hint=INSTALL
        ) from None
    config = Config(
        signature_version="s3v4",
        retries={"total_max_attempts": 1, "mode": "standard"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    with _explained(label):
        session = botocore.session.get_session()
        loader = session.get_component("data_loader")
        loader.file_loader = _ServiceFiles()
        region = session.get_config_variable("region") or "us-east-1"  # S3 itself redirects to the right one
        client = session.create_client("s3", region_name=region, config=config)
    return_free_memory()  # of the texts that were read: 2 MiB
    return client


class _ServiceFiles:
    """Reads botocore's descriptions of services to plain dictionaries; its own reader takes 3 MiB more for S3.

    Lists of a service's regional addresses are left out: 4 MiB for 300 services. Services without a global address,
    which S3 and STS have, have regular regional ones, and their rules for addresses are in other files.
    """

    def exists(self, path: str) -> bool:
        return any(os.path.isfile(path + ending) for ending in (".json", ".json.gz"))

    def load_file(self, path: str) -> Any:
        """Return the JSON document at a path without an ending, or None if there is none."""
        return _read_description(path)


@cache  # reading takes a third of a second, and a client of a process reads the same as another one
def _read_description(path: str) -> Any:
    hook = _without_regional_addresses if os.path.basename(path) == "endpoints" else None
    for ending, opened in ((".json", open), (".json.gz", gzip.open)):
        with suppress(FileNotFoundError), opened(path + ending, "rb") as file:
            return json.load(file, object_hook=hook)
    return None


def _without_regional_addresses(each: dict[str, Any]) -> dict[str, Any]:
    return _REGIONAL if "endpoints" in each and "partitionEndpoint" not in each else each


@contextmanager
def _explained(label: str) -> Iterator[None]:
    """Convert botocore's errors about the configuration to TrtspecError."""
    from botocore.exceptions import BotoCoreError

    try:
        yield
    except (BotoCoreError, ValueError) as error:
        message = escape_unprintable(str(error))[:300]
        raise TrtspecError(message, where=label, hint=CREDENTIALS_HINT) from None


def _error_code(body: bytes) -> str:
    match = re.search(rb"<Code>([A-Za-z0-9.]{1,80})</Code>", body)
    return match[1].decode() if match else ""


def _reason(status: int, code: str) -> str:
    text = f"HTTP status {status}"
    return text if code in ("", str(status)) else f"{text}, {escape_unprintable(code[:80])}"


LOCATION = S3Repository
