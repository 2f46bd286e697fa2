# SPDX-License-Identifier: Apache-2.0
"""Downloads of blobs to files, verified segment by segment, and of documents to memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.core.files import SequentialWriter
from trtspec.core.hashing import PIECE_BYTES, BackgroundDigest, new_buffers, read_chunks
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
    repository: Repository,
    blob: Descriptor,
    record: FileRecord,
    path: Path,
    on_bytes: Callable[[int], None],
    buffer_bytes: int = PIECE_BYTES,
) -> None:
    """Fetch a blob to a read-only file, which may have its beginning or all of it; verify it against its record.

    A partial file that turns out wrong is fetched again once. Raises DigestMismatch if the repository has other bytes.
    """
    for is_last in (False, True):
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0) as file:
            try:
                Download(repository, blob, record, file, on_bytes, buffer_bytes).run()
            except DigestMismatch:
                file.truncate(0)
                if is_last:
                    raise
                continue
            os.fchmod(file.fileno(), 0o444)
            os.fsync(file.fileno())
        return


class Download:
    """The download of one blob to an open file, which may have its beginning; each full segment is verified at once.

    Bytes are gathered to whole buffers, which are written while they are hashed.
    """

    def __init__(
        self,
        repository: Repository,
        blob: Descriptor,
        record: FileRecord,
        file: BinaryIO,
        on_bytes: Callable[[int], None],
        buffer_bytes: int,
    ) -> None:
        self._repository, self._blob, self._record, self._on_bytes = repository, blob, record, on_bytes
        self._file, self._writer = file, SequentialWriter(file.fileno())
        self._digest, self._verified = BackgroundDigest(with_sha256=False), 0  # the number of verified segments
        self._buffers = new_buffers(nbytes=buffer_bytes)
        self._buffer, self._gathered = next(self._buffers), 0

    def run(self) -> None:
        """Fetch and verify the rest; raises DigestMismatch for wrong bytes, which remain in the file."""
        try:
            self._read_present()
            self._fetch()
        finally:
            self._digest.close()
        if self._digest.segments != self._record.segments:
            raise self._mismatch("its digest differs")

    @property
    def _position(self) -> int:
        return self._digest.position + self._gathered

    def _read_present(self) -> None:
        """Hash the bytes that the file already has."""
        for piece in read_chunks(self._file.fileno(), buffers=self._buffers):
            self._check_size(piece.nbytes)
            self._hash(piece)
        self._writer = SequentialWriter(self._file.fileno(), self._digest.position)
        self._buffer = next(self._buffers)

    def _fetch(self) -> None:
        failed = self._repository.failed()
        while (before := self._position) < self._record.size:
            try:
                for piece in self._repository.pieces(self._blob, before):
                    self._add(piece)
                if self._position < self._record.size:
                    raise Broken("the transfer was cut off")
            except Broken as error:
                self._flush()
                if self._position > before:
                    failed = self._repository.failed()
                failed(error)
        self._flush()

    def _add(self, piece: bytes | memoryview) -> None:
        self._check_size(len(piece))
        rest = memoryview(piece)
        while rest.nbytes:
            part = rest[: self._buffer.nbytes - self._gathered]
            self._buffer[self._gathered : self._gathered + part.nbytes] = part
            self._gathered, rest = self._gathered + part.nbytes, rest[part.nbytes :]
            if self._gathered == self._buffer.nbytes:
                self._flush()

    def _check_size(self, nbytes: int) -> None:
        """Count bytes; raises DigestMismatch if the file is longer than promised."""
        self._on_bytes(nbytes)
        if self._position + nbytes > self._record.size:
            raise self._mismatch(f"more than {self._record.size:,} bytes arrived")

    def _flush(self) -> None:
        """Write and hash the gathered bytes."""
        if self._gathered:
            data, self._gathered = self._buffer[: self._gathered], 0
            self._hash(data)
            self._writer.write(data)
            self._buffer = next(self._buffers)

    def _hash(self, data: memoryview) -> None:
        """Start to hash bytes, and verify the segments that are hashed."""
        self._digest.start(data)
        found = self._digest.finished_segments
        if found[self._verified :] != self._record.segments[self._verified : len(found)]:
            raise self._mismatch(f"the bytes before {self._digest.position:,} differ")
        self._verified = len(found)

    def _mismatch(self, what: str) -> DigestMismatch:
        message = f"{self._record.path!a} ({self._blob.digest}) is not the promised file: {what}"
        return DigestMismatch(message, where=self._repository.label, hint="push the artifact again")
