# SPDX-License-Identifier: Apache-2.0
"""OCI image layouts on a disk: file:PATH[:TAG] or file:PATH@sha256:DIGEST; a path that ends in .tar is one tar file.

Source of the format: opencontainers/image-spec:image-layout.md@v1.1.1. Other tools read both as oci:PATH:TAG and
oci-archive:PATH. A layout is read as untrusted input. Several processes may write to a directory at once: they upload
blobs without a lock and change index.json under one. A tar file has one writer at a time. A killed writer leaves the
old content, and temporary files that the next writer deletes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import secrets
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from trtspec.core.diagnostics import quote_value
from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.core.files import (
    SequentialWriter,
    UnreadableFile,
    describe_read_error,
    file_lock,
    fsync_path,
    open_regular,
    replace_file,
    write_all,
)
from trtspec.core.hashing import read_chunks
from trtspec.core.image_references import DIGEST
from trtspec.store.registries.blobs import BlobSource
from trtspec.store.registries.modelpack import (
    IMAGE_MANIFEST,
    MAX_MANIFEST_BYTES,
    Descriptor,
    check_digest,
    parse_image_manifest,
)
from trtspec.store.registries.referrers import (
    MAX_REFERRERS,
    Referrer,
    describe_referrer,
    is_fallback_tag,
    read_referrers,
    render_index,
)
from trtspec.store.registries.repository import Opening, UnknownReference

REF_NAME = "org.opencontainers.image.ref.name"
LAYOUT = b'{"imageLayoutVersion":"1.0.0"}'
MAX_INDEX_BYTES = 32 << 20  # about 80,000 tags
MAX_MEMBERS = 100_000
LOCK_TIMEOUT_S = 600.0
UNUSED_S = 3600.0  # younger blobs without a manifest may be part of a running upload
_TAG = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
_LEFTOVER = re.compile(r"\.upload-[0-9a-f]{16}")
_INDEX_LEFTOVER = re.compile(r"\.(index\.json|oci-layout)\.[0-9a-f]{16}\.tmp")
BLOCK = tarfile.BLOCKSIZE


def parse_address(rest: str) -> tuple[Path, str]:
    """Return the path and the tag or digest of PATH[:TAG] or PATH@sha256:DIGEST; the default tag is `latest`."""
    text = rest.removeprefix("//") if rest.startswith("///") else rest
    parts = re.fullmatch(rf"(?P<path>.*?)(?:@(?P<digest>{DIGEST})|:(?P<tag>{_TAG}))?", text, re.DOTALL)
    path = parts["path"] if parts else ""
    if not path.strip("/") or path.startswith("//") or re.search(r":[^/]*$|@sha256", path):
        raise TrtspecError(f"{'file:' + rest[:200]!r} is not file:PATH:TAG", hint="e.g. file:models/layout:v1")
    return Path(os.path.expanduser(path)), (parts and (parts["digest"] or parts["tag"])) or "latest"


class _Layout:
    """Blobs and index.json of a layout; the subclasses know where they are."""

    place = ""

    def __init__(self, path: Path, tag: str, opening: Opening) -> None:
        self.path = path
        self.label = f"file:{path}"
        self.reference = tag
        if opening.for_writing and re.fullmatch(DIGEST, tag):
            raise TrtspecError("an artifact is pushed to a tag, not to a digest", hint="e.g. file:models/layout:v1")
        if opening.for_writing:
            _make_directory(path.parent)

    def interrupt(self) -> None:
        """Nothing waits here; the progress of each transfer ends it."""

    def close(self) -> None:
        """Nothing is open."""

    def failed(self) -> Callable[[Exception], None]:
        def fail(error: Exception) -> None:
            raise DigestMismatch(str(error), where=str(self.path))

        return fail

    def read_file(self, name: str, max_bytes: int) -> bytes | None:
        """Return the bytes of a file of the layout, or None if it is absent."""
        raise NotImplementedError

    def manifest(self, reference: str = "") -> bytes:
        reference = reference or self.reference
        for entry in self._entries():
            if reference in (_read_tag(entry), entry.get("digest")):
                digest = str(entry.get("digest"))
                if not re.fullmatch("sha256:[0-9a-f]{64}", digest) or entry.get("mediaType") != IMAGE_MANIFEST:
                    raise TrtspecError(f"{reference} is not an image manifest", where=str(self.path))
                data = self.read_file(f"blobs/sha256/{digest[7:]}", MAX_MANIFEST_BYTES)
                if data is None:
                    raise TrtspecError(f"the manifest of {reference} is missing", where=str(self.path))
                check_digest(str(self.path), "the manifest", data, digest)
                return data
        raise UnknownReference(
            f"no {reference} in this layout", where=str(self.path), hint=f"trtspec list file:{self.path}"
        )

    def tags(self) -> list[str]:
        found = {_read_tag(entry) for entry in self._entries()}
        return sorted(tag for tag in found if re.fullmatch(_TAG, tag) and not is_fallback_tag(tag))

    def referrers(self, digest: str) -> list[Referrer]:
        """Return the referrers of an image manifest: the manifests of index.json without a tag that name it."""
        found = read_referrers(entry for entry in self._entries() if not _read_tag(entry))
        return [each for each in found if self._subject(each) == digest][:MAX_REFERRERS]

    def _subject(self, referrer: Referrer) -> str:
        """Return the subject of an image manifest, or "" without one."""
        with suppress(TrtspecError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
            return str(json.loads(self.manifest(referrer.digest))["subject"]["digest"])
        return ""

    def take_blob(self, digest: str, nbytes: int, places: list[str]) -> bool:
        return False

    def _entries(self) -> list[dict[str, Any]]:
        data = self.read_file("index.json", MAX_INDEX_BYTES)
        if data is None:
            is_there = self.path.exists()
            message = "not an OCI image layout: index.json is missing" if is_there else "the layout does not exist"
            raise TrtspecError(message, where=str(self.path))
        try:
            entries = json.loads(data)["manifests"]
            return [entry for entry in entries if isinstance(entry, dict)]
        except (ValueError, RecursionError, LookupError, TypeError):
            raise TrtspecError("index.json is not valid", where=str(self.path)) from None


def _render_entry(manifest: bytes, tag: str) -> dict[str, Any]:
    """Return the entry of index.json for a manifest."""
    return {
        "mediaType": IMAGE_MANIFEST,
        "artifactType": json.loads(manifest)["artifactType"],
        "digest": f"sha256:{hashlib.sha256(manifest).hexdigest()}",
        "size": len(manifest),
        "annotations": {REF_NAME: tag},
    }


class DirectoryLayout(_Layout):
    """A layout in a directory, which may have several tags that share blobs."""

    def __init__(self, path: Path, tag: str, opening: Opening) -> None:
        super().__init__(path, tag, opening)
        self._blobs = path / "blobs" / "sha256"
        self._for_writing, self._timeout_s = opening.for_writing, min(LOCK_TIMEOUT_S, opening.patience.exchange_s)
        if opening.for_writing:
            _check_only_layout(path)
            _make_directory(self._blobs)
            for leftover in filter(lambda each: _LEFTOVER.fullmatch(each.name), self._blobs.iterdir()):
                _remove_unless_written(leftover)
            if not (path / "index.json").exists():
                with self._changing_index():
                    """The index exists afterwards."""

    def read_file(self, name: str, max_bytes: int) -> bytes | None:
        try:
            with _opened(self.path / name) as file:
                return _bounded(file.read(max_bytes + 1), max_bytes, self.path)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def has_blob(self, digest: str, nbytes: int) -> bool:
        path = self._blobs / digest.removeprefix("sha256:")
        if not path.is_file() or path.stat().st_size != nbytes:
            return False
        if self._for_writing:
            with suppress(OSError):
                os.utime(path)  # keeps it from `remove` until its manifest is published
        return True

    def pieces(self, blob: Descriptor, offset: int) -> Iterator[memoryview]:
        try:
            with _opened(self._blobs / blob.hex) as file:
                yield from read_chunks(file.fileno(), offset)
        except FileNotFoundError:
            raise UnknownReference(f"the blob {blob.digest} is missing", where=str(self.path)) from None

    def upload(self, source: BlobSource) -> str:
        with self._temporary_file() as (temporary, file):
            writer = SequentialWriter(file.fileno())
            for piece in source.pieces(0, source.record.size):
                writer.write(piece)
            os.fsync(file.fileno())
            os.rename(temporary, self._blobs / (sha256 := source.sha256()))
            return sha256

    @contextmanager
    def _temporary_file(self) -> Iterator[tuple[Path, BinaryIO]]:
        """Provide a new file, which no other writer deletes before it is closed."""
        while True:
            path = self._blobs / f".upload-{secrets.token_hex(8)}"
            with path.open("xb", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                if not path.exists():  # another writer deleted it before it was locked
                    continue
                try:
                    yield path, file
                finally:
                    path.unlink(missing_ok=True)
                return

    def upload_bytes(self, data: bytes) -> None:
        with self._temporary_file() as (temporary, file):
            write_all(file.fileno(), data, 0)
            os.fsync(file.fileno())
            os.rename(temporary, self._blobs / hashlib.sha256(data).hexdigest())

    def publish(self, manifest: bytes, tag: str = "") -> None:
        tag = tag or self.reference
        self.upload_bytes(manifest)
        fsync_path(self._blobs)
        image = parse_image_manifest(self.label, manifest)
        with self._changing_index() as entries:
            for blob in (image.config, *image.layers):
                if not self.has_blob(blob.digest, blob.size):
                    raise TrtspecError(f"the blob {blob.digest} was removed", where=str(self.path), hint="try again")
            entries[:] = [each for each in entries if _read_tag(each) != tag]
            entries.append(_render_entry(manifest, tag))

    def attach(self, manifest: bytes, subject: str) -> None:
        self.upload_bytes(manifest)
        fsync_path(self._blobs)
        with self._changing_index() as entries:
            entries[:] = _add_referrer(manifest, entries)

    def remove(self, tags: Sequence[str]) -> None:
        """Remove tags, and blobs that no manifest needs and that nobody has used for UNUSED_S seconds."""
        with self._locked():
            entries = [each for each in self._entries() if _read_tag(each) not in tags]
            replace_file(self.path / "index.json", render_index(entries))
            needed = {digest for each in entries for digest in self._blobs_of(str(each.get("digest")))}
            for path in self._blobs.iterdir():
                is_blob = re.fullmatch("[0-9a-f]{64}", path.name) is not None
                if is_blob and path.name not in needed and time.time() - path.stat().st_mtime > UNUSED_S:
                    path.unlink(missing_ok=True)

    def _blobs_of(self, digest: str) -> set[str]:
        """Return the names of a manifest's blobs and of its own blob."""
        image = parse_image_manifest(self.label, self.manifest(digest))
        return {digest.removeprefix("sha256:"), image.config.hex, *(layer.hex for layer in image.layers)}

    @contextmanager
    def _changing_index(self) -> Iterator[list[dict[str, Any]]]:
        """Provide the entries of the index for a change, which is written at the end; one writer at a time."""
        with self._locked():
            if not (self.path / "oci-layout").exists():
                replace_file(self.path / "oci-layout", LAYOUT)
            entries = self._entries() if (self.path / "index.json").exists() else []
            yield entries
            replace_file(self.path / "index.json", render_index(entries))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        lock = _acquired(Path(os.path.realpath(self.path)), self._timeout_s)
        try:
            for leftover in filter(lambda each: _INDEX_LEFTOVER.fullmatch(each.name), self.path.iterdir()):
                leftover.unlink(missing_ok=True)
            yield
        finally:
            lock.release()


class TarLayout(_Layout):
    """A layout in one uncompressed tar file with one tag; writing replaces the file once it is complete."""

    def __init__(self, path: Path, tag: str, opening: Opening) -> None:
        super().__init__(path, tag, opening)
        self._lock = _acquired(path, LOCK_TIMEOUT_S) if opening.for_writing else None
        self._members = {} if opening.for_writing else read_members(path)
        self._writing = Lock()
        self._temporary: Path | None = None
        self._file: BinaryIO | None = None
        self._end = 0
        self._attached: list[dict[str, Any]] = []
        if opening.for_writing:
            for leftover in path.parent.glob(f".{path.name}.tmp-*"):
                leftover.unlink(missing_ok=True)
            self._temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(8)}")
            self._file = self._temporary.open("xb", buffering=0)

    def close(self) -> None:
        if self._file:
            self._file.close()
        if self._temporary:
            with suppress(OSError):
                self._temporary.unlink(missing_ok=True)
        if self._lock:
            self._lock.release()

    def read_file(self, name: str, max_bytes: int) -> bytes | None:
        if name not in self._members:
            return None
        offset, size = self._members[name]
        _bounded(b"" if size <= max_bytes else bytes(max_bytes + 1), max_bytes, self.path)
        with open_regular(self.path) as file:
            return os.pread(file.fileno(), size, offset)

    def has_blob(self, digest: str, nbytes: int) -> bool:
        return f"blobs/sha256/{digest.removeprefix('sha256:')}" in self._members

    def pieces(self, blob: Descriptor, offset: int) -> Iterator[memoryview]:
        if (name := f"blobs/sha256/{blob.hex}") not in self._members:
            raise UnknownReference(f"the blob {blob.digest} is missing", where=str(self.path))
        begin, size = self._members[name]
        with open_regular(self.path) as file:
            yield from read_chunks(file.fileno(), begin + offset, begin + size)

    def upload(self, source: BlobSource) -> str:
        with self._writing:
            begin = self._end + BLOCK
            writer = SequentialWriter(self._descriptor, begin)
            for piece in source.pieces(0, source.record.size):
                writer.write(piece)
            sha256 = source.sha256()
            self._complete(f"blobs/sha256/{sha256}", begin, source.record.size)
            return sha256

    def upload_bytes(self, data: bytes) -> None:
        self._add(f"blobs/sha256/{hashlib.sha256(data).hexdigest()}", data)

    def attach(self, manifest: bytes, subject: str) -> None:
        """Add a referrer, which becomes visible with the artifact: when `publish` replaces the file."""
        self.upload_bytes(manifest)
        self._attached = _add_referrer(manifest, self._attached)

    def publish(self, manifest: bytes, tag: str = "") -> None:
        self.upload_bytes(manifest)
        self._add("oci-layout", LAYOUT)
        self._add("index.json", render_index([*self._attached, _render_entry(manifest, tag or self.reference)]))
        write_all(self._descriptor, bytes(2 * BLOCK), self._end)
        os.fsync(self._descriptor)
        if self._temporary:
            os.rename(self._temporary, self.path)
        fsync_path(self.path.parent)

    def remove(self, tags: Sequence[str]) -> None:
        raise TrtspecError("a tar file has one tag, which cannot be removed", where=str(self.path), hint="delete it")

    @property
    def _descriptor(self) -> int:
        if self._file is None:
            raise ValueError("the layout is open for reading")
        return self._file.fileno()

    def _add(self, name: str, data: bytes) -> None:
        with self._writing:
            if name not in self._members:
                write_all(self._descriptor, data, self._end + BLOCK)
                self._complete(name, self._end + BLOCK, len(data))

    def _complete(self, name: str, begin: int, size: int) -> None:
        """Write the header in front of a member's bytes; equal blobs are kept once."""
        if name in self._members:
            return
        header = tarfile.TarInfo(name)
        header.size, header.mode = size, 0o644
        write_all(self._descriptor, header.tobuf(tarfile.GNU_FORMAT), begin - BLOCK)
        self._end = begin + -(-size // BLOCK) * BLOCK
        os.ftruncate(self._descriptor, self._end)
        self._members[name] = (begin, size)


def read_members(path: Path) -> dict[str, tuple[int, int]]:
    """Return the offset and size of each regular file in an uncompressed tar file by its name.

    Only headers are read, so neither a large nor a malformed file takes memory. Links and other types are ignored.
    Raises TrtspecError for a file that is not a tar file or has more than MAX_MEMBERS members.
    """
    found: dict[str, tuple[int, int]] = {}
    try:
        with open_regular(path) as file:
            total, position = os.fstat(file.fileno()).st_size, 0
            for _ in range(MAX_MEMBERS):
                header = os.pread(file.fileno(), BLOCK, position)
                if not header.strip(b"\0"):
                    return found
                member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
                if not 0 <= member.size <= total - position - BLOCK:
                    raise tarfile.TarError("a member exceeds the file")
                if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                    found[member.name.removeprefix("./")] = (position + BLOCK, member.size)
                position += BLOCK + -(-member.size // BLOCK) * BLOCK
    except FileNotFoundError:
        raise TrtspecError("the file does not exist", where=str(path)) from None
    except (tarfile.TarError, ValueError) as error:
        raise TrtspecError(f"not a tar file: {error}", where=str(path)) from None
    raise TrtspecError(f"it has more than {MAX_MEMBERS:,} members", where=str(path))


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileNotFoundError, FileExistsError) as error:  # a link to nothing, or a file system without directories
        raise TrtspecError("the directory cannot be created", where=str(error.filename or path)) from None


def _check_only_layout(path: Path) -> None:
    """Raise TrtspecError for a directory of something else, such as an artifact: a layout would mix with it."""
    with suppress(FileNotFoundError):
        names = {name for name in os.listdir(path) if not name.startswith(".")} - {"lost+found"}
        if names and not names & {"blobs", "index.json", "oci-layout"}:
            message = f"not an OCI image layout: the directory contains {quote_value(min(names))}"
            raise TrtspecError(message, where=str(path), hint="push to another or a new directory")


def _opened(path: Path) -> BinaryIO:
    """Open a file of a layout, which must not be a link; raises TrtspecError for anything but a regular file."""
    try:
        return open_regular(path, follow=False)
    except UnreadableFile as error:
        raise TrtspecError(describe_read_error(error), where=str(path)) from None


def _remove_unless_written(leftover: Path) -> None:
    """Delete a temporary file, unless another process writes it."""
    with suppress(OSError), leftover.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        leftover.unlink()


def _acquired(path: Path, timeout_s: float) -> Any:
    from filelock import Timeout

    lock = file_lock(path.with_name(f".{path.name}.lock"), timeout_s=timeout_s)
    try:
        lock.acquire()
    except Timeout:
        raise TrtspecError("another process writes to this layout", where=str(path), hint="try again later") from None
    return lock


def _add_referrer(manifest: bytes, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries of index.json with a referrer, which has no tag, besides the entries `before`."""
    entry = describe_referrer(manifest)
    return [*(each for each in before if _read_tag(each) or each.get("digest") != entry["digest"]), entry]


def _read_tag(entry: dict[str, Any]) -> str:
    annotations = entry.get("annotations")
    return str(annotations.get(REF_NAME, "")) if isinstance(annotations, dict) else ""


def _bounded(data: bytes, max_bytes: int, where: Path) -> bytes:
    if len(data) > max_bytes:
        raise TrtspecError(f"a document of the layout exceeds {max_bytes:,} bytes", where=str(where))
    return data


def open_layout(rest: str, opening: Opening) -> _Layout:
    """Open a layout; a path that ends in .tar is a tar file."""
    path, tag = parse_address(rest)
    return (TarLayout if path.suffix == ".tar" else DirectoryLayout)(path, tag, opening)


LOCATION = open_layout
