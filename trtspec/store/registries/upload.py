# SPDX-License-Identifier: Apache-2.0
"""Uploads of files as blobs: each content once, and only if the repository lacks it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Lock

from trtspec.core.errors import DigestMismatch
from trtspec.core.files import read_bounded
from trtspec.core.hashing import PIECE_BYTES, bytes_segments, digest_and_sha256
from trtspec.store.file_records import FileRecord
from trtspec.store.registries.blobs import BlobIndex, BlobSource
from trtspec.store.registries.repository import Repository
from trtspec.store.registries.transfer import Meter, buffer_bytes, transfer_all

SMALL_BYTES = 1 << 20  # smaller files are sent in one request


class Uploads:
    """Uploads to one repository; `sent_bytes` counts the bytes that it did not have.

    A file is hashed first if the repository probably has it: if its size is in `sizes`, or if this machine pulled it.
    With `replace`, blobs that the repository has are sent again, because their bytes there may be damaged.
    """

    def __init__(self, repository: Repository, known: BlobIndex, meter: Meter, *, replace: bool = False) -> None:
        self._repository, self._known, self._meter, self._replace = repository, known, meter, replace
        self._lock, self._buffer_bytes = Lock(), PIECE_BYTES
        self.sizes: set[int] = set()
        self.sent_bytes = 0

    def needs_upload(self, record: FileRecord) -> bool:
        """Return whether the SHA-256 of a file that is not small is unknown."""
        return record.size > SMALL_BYTES and self._known.sha256(record.digest) is None

    def bring_all(self, files: Mapping[Path, FileRecord], stopped: Event) -> dict[str, str]:
        """Upload what the repository lacks; return the SHA-256 of each content by its BLAKE3 digest.

        Raises DigestMismatch if a file differs from its record.
        """
        distinct = {record.digest: (path, record) for path, record in files.items()}  # equal files are one blob
        largest_first = sorted(distinct.values(), key=lambda each: -each[1].size)
        self._buffer_bytes = buffer_bytes(record.size for _, record in largest_first)
        found = transfer_all(lambda each: self._bring(*each), largest_first, stopped, self._repository)
        sha256 = {record.digest: each for (_, record), each in zip(largest_first, found, strict=True)}
        self._known.learn(sha256.items(), self._repository.place)
        return sha256

    def _bring(self, path: Path, record: FileRecord) -> str:
        """Return the SHA-256 of a file's content, which the repository has afterwards."""
        if record.size <= SMALL_BYTES:
            return self._bring_small(path, record)
        sha256 = self._known.sha256(record.digest)
        if sha256 is None and (record.size in self.sizes or self._known.places(record.digest)):
            sha256 = checked_sha256(path, record, self._buffer_bytes)
            self._known.learn([(record.digest, sha256)])
        if sha256 is not None and self._is_present(record, sha256):
            self._meter(record.size)
            return sha256
        with BlobSource(path, record, self._meter, sha256 or "", self._buffer_bytes) as source:
            sha256 = self._repository.upload(source)
        self._count_sent(record.size)
        self._known.learn([(record.digest, sha256)], self._repository.place)
        return sha256

    def _is_present(self, record: FileRecord, sha256: str) -> bool:
        digest = f"sha256:{sha256}"
        places = self._known.places(record.digest)
        return not self._replace and (
            self._repository.has_blob(digest, record.size) or self._repository.take_blob(digest, record.size, places)
        )

    def _bring_small(self, path: Path, record: FileRecord) -> str:
        data = read_bounded(path, SMALL_BYTES, follow=False)
        if len(data) != record.size or bytes_segments(data) != record.segments:
            raise DigestMismatch("the file differs from its recorded digest; nothing was published", where=str(path))
        sha256 = hashlib.sha256(data).hexdigest()
        if self._replace or not self._repository.has_blob(f"sha256:{sha256}", record.size):
            self._repository.upload_bytes(data)
            self._count_sent(record.size)
        self._meter(record.size)
        return sha256

    def _count_sent(self, nbytes: int) -> None:
        with self._lock:
            self.sent_bytes += nbytes


def checked_sha256(path: Path, record: FileRecord, piece_bytes: int = PIECE_BYTES) -> str:
    """Return the SHA-256 of a file, in hex; raises DigestMismatch if the file differs from its record."""
    digest, sha256 = digest_and_sha256(path, piece_bytes=piece_bytes)
    if digest != record.digest:
        raise DigestMismatch("the file differs from its recorded digest; nothing was published", where=str(path))
    return sha256
