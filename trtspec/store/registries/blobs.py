# SPDX-License-Identifier: Apache-2.0
"""Files as blobs: their reading for an upload, and a cache of the SHA-256 of contents.

An artifact's manifest has BLAKE3 digests, and registries use SHA-256, for which a file has to be read. The
SHA-256 of each content that this machine has read or verified is recorded in the user's cache. It applies to every copy
of a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from trtspec.core.errors import DigestMismatch
from trtspec.core.files import file_lock, open_regular, replace_file
from trtspec.core.hashing import (
    PIECE_BYTES,
    SEGMENT_BYTES,
    BackgroundDigest,
    SegmentsDigest,
    new_buffers,
    read_chunks,
    segment_count,
)
from trtspec.core.paths import cache_dir
from trtspec.store.digest import dump_checksummed, load_checksummed
from trtspec.store.file_records import FileRecord

PART_PIECE_BYTES = 256 << 10  # of each thread that sends a part of a file

OnBytes = Callable[[int], None]


class BlobSource:
    """An open file of an artifact that is uploaded: hashed in the same reading, and compared with its record.

    `on_bytes` is called with the number of new bytes that were read. It may raise an exception to stop the upload.
    `known_sha256` is the SHA-256 of the record's content, in hex, if this machine has computed it before.
    """

    def __init__(
        self,
        path: Path,
        record: FileRecord,
        on_bytes: OnBytes,
        known_sha256: str = "",
        buffer_bytes: int = PIECE_BYTES,
    ) -> None:
        self.record = record
        self.path = path
        self._known_sha256 = known_sha256
        self._digest, self._buffer_bytes = BackgroundDigest(with_sha256=not known_sha256), buffer_bytes
        self._buffers = new_buffers(nbytes=buffer_bytes)
        self._on_bytes = on_bytes
        self._file = open_regular(path, follow=False)

    def __enter__(self) -> BlobSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._digest.close()
        self._file.close()

    def pieces(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes from `begin` to `end`, which may have been read before; a piece is valid until the next.

        Raises DigestMismatch if the file is shorter than its record.
        """
        self._hash_until(begin)
        self._digest.finish()  # bytes that are read again are not hashed, so nothing else waits for their buffers
        for piece in read_chunks(self._file.fileno(), begin, end, self._buffers):
            new = piece[max(0, self._digest.position - begin) :]
            if new.nbytes:
                self._digest.start(new)
                self._on_bytes(new.nbytes)
            yield piece
            begin += piece.nbytes
        if begin < end:
            raise self._changed()

    def segment_pieces(self, begin: int, end: int) -> Iterator[memoryview]:
        """Yield the bytes of whole segments for one of several threads; the last piece of a wrong segment is withheld.

        Both ends are multiples of SEGMENT_BYTES, or the file's size. The bytes are neither counted nor added to
        `sha256`. Raises DigestMismatch if a segment differs from the record.
        """
        digest = SegmentsDigest()
        expected = self.record.segments[begin // SEGMENT_BYTES : segment_count(end)]
        for piece in read_chunks(self._file.fileno(), begin, end, new_buffers(1, PART_PIECE_BYTES)):
            digest.update(piece)
            if not begin + digest.position < end and digest.segments != expected:
                raise self._changed()
            self._on_bytes(0)
            yield piece
        if begin + digest.position < end:
            raise self._changed()

    def count(self, nbytes: int) -> None:
        """Report bytes that were sent, for a location that calls `sha256` before it sends them."""
        self._on_bytes(nbytes)

    def _hash_until(self, end: int, *, is_counted: bool = True) -> None:
        for piece in read_chunks(self._file.fileno(), self._digest.position, end, self._buffers):
            self._digest.start(piece)
            self._on_bytes(piece.nbytes if is_counted else 0)

    def sha256(self, *, is_counted: bool = True) -> str:
        """Return the SHA-256 of the whole file, in hex; raises DigestMismatch if the file differs from its record."""
        self._hash_until(self.record.size, is_counted=is_counted)
        self._digest.finish()
        self._buffers = new_buffers(nbytes=self._buffer_bytes)  # which take no memory until they are used
        size = os.fstat(self._file.fileno()).st_size
        if size != self.record.size or self._digest.segments != self.record.segments:
            raise self._changed()
        return self._known_sha256 or self._digest.sha256

    def _changed(self) -> DigestMismatch:
        return DigestMismatch("the file differs from its recorded digest; nothing was published", where=str(self.path))


KNOWN_SCHEMA = "trtspec.blobs/2"
MAX_BLOBS = 20_000
MAX_PLACES = 4


class BlobIndex:
    """Cache in the user's directory: the SHA-256 of contents, and the repositories where they were seen.

    Contents are identified by the BLAKE3 digest of core/hashing. Only verified contents are recorded, and only a
    SHA-256 that this machine has computed. A repository is a hint, which a registry confirms.
    """

    def __init__(self) -> None:
        self._path = cache_dir() / "blobs.json"
        self._known = self._load()

    def sha256(self, blake3: str) -> str | None:
        """Return the SHA-256 of the content with this BLAKE3 digest, or None if it is unknown here."""
        found = self._known.get(blake3)
        return str(found[0]) or None if found else None

    def places(self, blake3: str) -> list[str]:
        """Return the repositories HOST/NAME that had this content, the latest first."""
        return list(map(str, self._known.get(blake3, [])[1:]))

    def learn(self, found: Iterable[tuple[str, str]], place: str = "") -> None:
        """Record (BLAKE3, SHA-256) of verified contents that the repository `place` has; failed writes are ignored.

        The SHA-256 is "" if it was not computed.
        """
        new = {
            blake3: [sha256 or self.sha256(blake3) or "", *dict.fromkeys(filter(None, [place, *self.places(blake3)]))][
                : 1 + MAX_PLACES
            ]
            for blake3, sha256 in found
        }
        self._known |= new
        with suppress(OSError):  # on a full disk the next upload reads the files again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(self._path.with_suffix(".lock"), timeout_s=60):
                rest = {blake3: each for blake3, each in self._load().items() if blake3 not in new}
                kept = dict(list({**rest, **new}.items())[-MAX_BLOBS:])
                replace_file(self._path, dump_checksummed(KNOWN_SCHEMA, {"blobs": kept}), durable=False)

    def _load(self) -> dict[str, list[str]]:
        return dict((load_checksummed(KNOWN_SCHEMA, self._path) or {"blobs": {}})["blobs"])
