# SPDX-License-Identifier: Apache-2.0
"""Files outside the store as input of a step; they are identified by content, not by location."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.core.errors import SourceChanged, StepError
from trtspec.core.files import UNREAD, AbsentFile, file_identity, map_in_threads
from trtspec.core.paths import hub_cache_dir
from trtspec.store.digest import DigestCache


@dataclass(frozen=True)
class Files:
    """Files directly below `root`: (name, SHA-256) each, sorted by name.

    A plan may leave large files unread and use a placeholder that identifies the file instead of its digest; then
    `is_read` is False and the plan's keys are not the final keys. `unproven` names the files that still have to be
    hashed: unread files and files whose digest comes from the hub. `identities` detect replacement of the files after
    their digests were taken.
    """

    root: Path = field(metadata={"key": False})
    digests: tuple[tuple[str, str], ...]
    stats: tuple[tuple[int, int], ...] = field(metadata={"key": False})
    unproven: tuple[str, ...] = field(default=(), metadata={"key": False})
    identities: tuple[str, ...] = field(default=(), metadata={"key": False})

    @property
    def is_read(self) -> bool:
        """Return whether all digests are known."""
        return not any(digest.startswith(UNREAD) for _, digest in self.digests)

    @property
    def paths(self) -> list[Path]:
        """Return the paths of the files."""
        return [self.root / name for name, _ in self.digests]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise SourceChanged at the end of the block, also after an exception, if a file was changed or replaced."""
        try:
            yield
        finally:
            for path, before in zip(self.paths, self.identities, strict=True):
                if not path.is_file() or file_identity(path) != before:
                    raise SourceChanged("the file changed during the build", where=str(path), hint="build again")


class FileReader:
    """Determines the digests of source files; files with a cached digest are not read.

    If the files without a cached digest exceed `unread_above` bytes together, they stay unread. `on_bytes` receives
    the size of each piece read, from several threads. `absent` gives records for files that do not exist here: these
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

    def read(self, root: Path, paths: Iterable[Path]) -> Files:
        """Return the files below `root`; StepError if one cannot be read."""
        paths = sorted(paths)
        try:
            identities = tuple(
                self._identity(path) for path in paths
            )  # before hashing, so that later changes are detected
            stats = tuple(self._stat(path) for path in paths)
            known = [self._lookup(path) for path in paths]
            new = sum(size for (size, _), digest in zip(stats, known, strict=True) if digest is None)
            unproven: tuple[str, ...] = ()
            if self._unread_above is not None and new > self._unread_above:
                found = [digest or hub_digest(path) or _unread(path) for path, digest in zip(paths, known, strict=True)]
                unproven = tuple(path.name for path, digest in zip(paths, known, strict=True) if digest is None)
            else:
                found = map_in_threads(self._digest, paths)
        except OSError as error:
            raise StepError(f"cannot be read: {error.strerror}", where=str(error.filename)) from None
        named = tuple(zip((path.name for path in paths), found, strict=True))
        return Files(root, named, stats, unproven, identities)

    def _identity(self, path: Path) -> str:
        return "" if path in self._absent else file_identity(path)

    def _stat(self, path: Path) -> tuple[int, int]:
        return self._absent[path][1:] if path in self._absent else _stat(path)

    def _lookup(self, path: Path) -> str | None:
        return self._absent[path][0] if path in self._absent else self._digests.lookup(path)

    def _digest(self, path: Path) -> str:
        return self._absent[path][0] if path in self._absent else self._digests.digest(path, self._on_bytes)


def hub_digest(path: Path) -> str | None:
    """Return the SHA-256 that the hub reports for a file of its cache: the name of the blob that a snapshot links to.

    Only files stored in LFS or Xet have such a name (huggingface_hub, file_download.py: the blob's name is the ETag);
    other files are named by git's digest, which is shorter.
    """
    blob = Path(os.path.realpath(path))
    is_kept = blob.parent.name == "blobs" and blob.is_relative_to(os.path.realpath(hub_cache_dir()))
    return blob.name if is_kept and re.fullmatch("[0-9a-f]{64}", blob.name) else None


def _unread(path: Path) -> str:
    return f"{UNREAD} {file_identity(path)}"


def _stat(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
