# SPDX-License-Identifier: Apache-2.0
"""Downloads of blobs to files, verified segment by segment, and of documents to memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.core.hashing import BackgroundDigest, read_chunks
from trtspec.store.artifact import MAX_BYTES
from trtspec.store.file_records import FileRecord
from trtspec.store.registries.http_client import Broken
from trtspec.store.registries.modelpack import Descriptor, check_digest
from trtspec.store.registries.repository import Repository


def fetch_document(repository: Repository, where: str, what: str, blob: Descriptor) -> bytes:
    """Return the verified bytes of a document; raises TrtspecError if it is larger than MAX_BYTES."""
    if blob.size > MAX_BYTES:
        raise TrtspecError(f"{what} exceeds {MAX_BYTES:,} bytes", where=where)
    failed = repository.failed()
    while True:
        data = bytearray()
        try:
            for piece in repository.pieces(blob, 0):
                data += piece
                if len(data) > blob.size:
                    break
            if len(data) < blob.size:
                raise Broken(f"the transfer of {what} was cut off")
        except Broken as error:
            failed(error)
            continue
        check_digest(where, what, bytes(data), blob.digest)
        return bytes(data)


def download_file(
    repository: Repository, blob: Descriptor, record: FileRecord, path: Path, on_bytes: Callable[[int], None]
) -> None:
    """Fetch a blob to a read-only file, which may have its beginning or all of it; verify it against its record.

    A partial file that turns out wrong is fetched again once. Raises DigestMismatch if the repository has other bytes.
    """
    for is_last in (False, True):
        with path.open("a+b", buffering=0) as file:
            try:
                Download(repository, blob, record, file, on_bytes).run()
            except DigestMismatch:
                file.truncate(0)
                if is_last:
                    raise
                continue
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
        return


class Download:
    """The download of one blob to an open file, which may have its beginning; each full segment is verified at once."""

    def __init__(
        self,
        repository: Repository,
        blob: Descriptor,
        record: FileRecord,
        file: BinaryIO,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._repository, self._blob, self._record, self._file, self._on_bytes = (
            repository,
            blob,
            record,
            file,
            on_bytes,
        )
        self._digest, self._verified = BackgroundDigest(), 0  # the number of verified segments

    def run(self) -> None:
        """Fetch and verify the rest; raises DigestMismatch for wrong bytes, which remain in the file."""
        try:
            self._fetch()
        finally:
            self._digest.close()

    def _fetch(self) -> None:
        for piece in read_chunks(self._file.fileno()):
            self._add(piece)
            self._digest.finished()  # the next piece has the same buffer
        failed = self._repository.failed()
        while (before := self._digest.position) < self._record.size:
            try:
                for received in self._repository.pieces(self._blob, before):
                    self._add(received)
                    self._file.write(received)
                if self._digest.position < self._record.size:
                    raise Broken("the transfer was cut off")
            except Broken as error:
                if self._digest.position > before:
                    failed = self._repository.failed()
                failed(error)
        digest = self._digest.finished()
        if digest.segments != self._record.segments or digest.sha256 != self._blob.hex:
            raise self._mismatch("its digest differs")

    def _add(self, data: bytes | memoryview) -> None:
        """Verify the segments of the pieces before, and start to hash a piece."""
        self._on_bytes(len(data))
        if self._digest.position + len(data) > self._record.size:
            raise self._mismatch(f"more than {self._record.size:,} bytes arrived")
        found = self._digest.finished().finished_segments
        if found[self._verified :] != self._record.segments[self._verified : len(found)]:
            raise self._mismatch(f"the bytes before {self._digest.position:,} differ")
        self._verified = len(found)
        self._digest.start(data)

    def _mismatch(self, what: str) -> DigestMismatch:
        message = f"{self._record.path!a} ({self._blob.digest}) is not the promised file: {what}"
        return DigestMismatch(message, where=self._repository.label, hint="push the artifact again")
