# SPDX-License-Identifier: Apache-2.0
"""Source files outside the store as inputs of steps, identified by content instead of location.

A plan may leave large files unread. A build reads each of them once and caches the digest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.core.errors import SourceChanged, StepError
from trtspec.core.files import UNREAD, AbsentFile, file_identity, map_in_threads
from trtspec.core.hashing import digest_and_sha256, file_digests
from trtspec.core.paths import hub_cache_dir
from trtspec.store.digest import DigestCache


@dataclass(frozen=True)
class Files:
    """Source files directly below `root`, as pairs (name, digest) sorted by name.

    A plan may leave large files unread and use a placeholder that identifies the file instead of its digest. Then
    `is_read` is False, the plan's keys are not the final keys, and its steps cannot run. `stats` are pairs (bytes,
    modification time in ns). `identities` detect replacement of the files after their digests were taken.
    """

    root: Path = field(metadata={"key": False})
    digests: tuple[tuple[str, str], ...]
    stats: tuple[tuple[int, int], ...] = field(metadata={"key": False})
    identities: tuple[str, ...] = field(default=(), metadata={"key": False})

    @property
    def is_read(self) -> bool:
        return not any(digest.startswith(UNREAD) for _, digest in self.digests)

    @property
    def paths(self) -> list[Path]:
        return [self.root / name for name, _ in self.digests]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Context manager that raises SourceChanged at its end, also after an exception, if a file changed."""
        try:
            yield
        finally:
            for path, before in zip(self.paths, self.identities, strict=True):
                if not path.is_file() or file_identity(path) != before:
                    raise SourceChanged("the file changed during the build", where=str(path), hint="build again")


class FileReader:
    """Determines the digests of source files; files with a cached digest are not read.

    If the files without a cached digest exceed `unread_above` bytes together, they stay unread. `on_bytes` receives the
    size of each piece read, from several threads. `absent` has records of files that do not exist on this machine. They
    suffice for a plan, and a step that reads such a file fails.
    """

    def __init__(
        self,
        digests: DigestCache,
        unread_above: int | None = None,
        on_bytes: Callable[[int], None] | None = None,
        absent: Mapping[Path, AbsentFile] | None = None,
    ) -> None:
        self._digests = digests
        self._absent = absent or {}
        self._unread_above = unread_above
        self._on_bytes = on_bytes

    @property
    def reads_all(self) -> bool:
        """Return whether large files are read too, as for a build."""
        return self._unread_above is None

    def read(self, root: Path, paths: Iterable[Path]) -> Files:
        """Return the digests of `paths`, which are directly below `root`.

        Raises StepError if a file cannot be read, or if a download differs from the file that the hub lists.
        """
        paths = sorted(paths)
        try:
            # before hashing, so that later changes are detected
            identities = {path: "" if path in self._absent else file_identity(path) for path in paths}
            stats = {path: self._stat(path) for path in paths}
            found = {path: self._cached_digest(path) for path in paths}
            unknown = [path for path in paths if found[path] is None]
            if self._unread_above is not None and sum(stats[path][0] for path in unknown) > self._unread_above:
                found |= {path: f"{UNREAD} {identities[path]}" for path in unknown}
            else:
                read = self._hash(unknown)
                self._digests.learn({path: (identities[path], digest) for path, digest in read.items()})
                found |= read
        except OSError as error:
            raise StepError(f"cannot be read: {error.strerror}", where=str(error.filename)) from None
        named = tuple((path.name, digest or "") for path, digest in found.items())
        return Files(root, named, tuple(stats.values()), tuple(identities.values()))

    def _hash(self, paths: Sequence[Path]) -> dict[Path, str]:
        """Return the digests of files; downloads from the hub are also compared with the hub's SHA-256."""
        downloads = [path for path in paths if hub_digest(path)]
        others = [path for path in paths if path not in downloads]
        return {
            **dict(zip(others, file_digests(others, self._on_bytes), strict=True)),
            **dict(zip(downloads, map_in_threads(self._hash_download, downloads), strict=True)),
        }

    def _hash_download(self, path: Path) -> str:
        digest, sha256 = digest_and_sha256(path, self._on_bytes)
        if sha256 != (listed := hub_digest(path)):
            message = f"the file is damaged: its SHA-256 is {sha256}, the hub lists {listed}"
            raise StepError(message, where=str(path), hint="remove it and build again to download it anew")
        return digest

    def _stat(self, path: Path) -> tuple[int, int]:
        """Return the size in bytes and the modification time in nanoseconds of a file."""
        if path in self._absent:
            return self._absent[path][1:]
        status = path.stat()
        return status.st_size, status.st_mtime_ns

    def _cached_digest(self, path: Path) -> str | None:
        return self._absent[path][0] if path in self._absent else self._digests.lookup(path)


def hub_digest(path: Path) -> str | None:
    """Return the SHA-256 that the Hugging Face hub lists for a file in its cache, or None for other files.

    It is the name of the blob that a snapshot links to. Only files stored in LFS or Xet have such a name
    (huggingface_hub, file_download.py: the blob's name is the ETag). Other files are named by git's digest, which is
    shorter.
    """
    blob = Path(os.path.realpath(path))
    is_kept = blob.parent.name == "blobs" and blob.is_relative_to(os.path.realpath(hub_cache_dir()))
    return blob.name if is_kept and re.fullmatch("[0-9a-f]{64}", blob.name) else None
