# SPDX-License-Identifier: Apache-2.0
"""Files outside the store as a step's input: their content is the identity, where they lie is not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.core.errors import SourceChanged, StepError
from trtspec.core.files import UNREAD, Absent, identity_of, in_threads
from trtspec.core.paths import hub_cache_dir
from trtspec.store.digest import DigestCache


@dataclass(frozen=True)
class Files:
    """Files directly below `root`: (name, SHA-256) each, sorted by name.

    A plan may leave a large file that nobody has read yet `unread`, with what identifies it meanwhile; `is_read` tells.
    Such a plan shows what would be done; its keys are not those the build will use. `unproven` are the names of those
    files, and of those whose digest is what the hub calls them: whoever reads them hashes them. `identities` tell the
    files whose digests these are from any that take their places later.
    """

    root: Path = field(metadata={"key": False})
    digests: tuple[tuple[str, str], ...]
    stats: tuple[tuple[int, int], ...] = field(metadata={"key": False})
    unproven: tuple[str, ...] = field(default=(), metadata={"key": False})
    identities: tuple[str, ...] = field(default=(), metadata={"key": False})

    @property
    def is_read(self) -> bool:
        """Return whether the content of every file is known."""
        return not any(digest.startswith(UNREAD) for _, digest in self.digests)

    @property
    def paths(self) -> list[Path]:
        """Return where the files lie."""
        return [self.root / name for name, _ in self.digests]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise SourceChanged when the block ends, however it does, where a file is not the one of the known digest."""
        try:
            yield
        finally:
            for path, before in zip(self.paths, self.identities, strict=True):
                if not path.is_file() or identity_of(path) != before:
                    raise SourceChanged("the file changed during the build", where=str(path), hint="build again")


class FileReader:
    """Reads the identity of source files; what is remembered of them is not read again.

    Where files that nobody has read are more than `unread_above` bytes together, they stay `unread`. `on_bytes` is told
    the size of each piece that is read, from several threads. What `absent` files were stands for them: a plan needs no
    more, and a step that would read them fails.
    """

    def __init__(
        self,
        digests: DigestCache,
        unread_above: int | None = None,
        on_bytes: Callable[[int], None] | None = None,
        absent: Mapping[Path, Absent] | None = None,
    ) -> None:
        self._digests = digests
        self._absent = absent or {}
        self._unread_above = unread_above
        self._on_bytes = on_bytes

    def read(self, root: Path, paths: Iterable[Path]) -> Files:
        """Return files below `root`; raises StepError for one that cannot be read."""
        paths = sorted(paths)
        try:
            identities = tuple(self._identity(path) for path in paths)  # before any digest: none is of an older file
            stats = tuple(self._stat(path) for path in paths)
            known = [self._lookup(path) for path in paths]
            new = sum(size for (size, _), digest in zip(stats, known, strict=True) if digest is None)
            unproven: tuple[str, ...] = ()
            if self._unread_above is not None and new > self._unread_above:
                found = [digest or hub_digest(path) or _unread(path) for path, digest in zip(paths, known, strict=True)]
                unproven = tuple(path.name for path, digest in zip(paths, known, strict=True) if digest is None)
            else:
                found = in_threads(self._digest, paths)
        except OSError as error:
            raise StepError(f"cannot be read: {error.strerror}", where=str(error.filename)) from None
        named = tuple(zip((path.name for path in paths), found, strict=True))
        return Files(root, named, stats, unproven, identities)

    def _identity(self, path: Path) -> str:
        return "" if path in self._absent else identity_of(path)

    def _stat(self, path: Path) -> tuple[int, int]:
        return self._absent[path][1:] if path in self._absent else _stat(path)

    def _lookup(self, path: Path) -> str | None:
        return self._absent[path][0] if path in self._absent else self._digests.lookup(path)

    def _digest(self, path: Path) -> str:
        return self._absent[path][0] if path in self._absent else self._digests.digest(path, self._on_bytes)


def hub_digest(path: Path) -> str | None:
    """Return the SHA-256 that the hub says a file of its cache has: the name of the blob that a snapshot links to.

    Only files that the hub keeps in LFS or Xet are named so (huggingface_hub, file_download.py: the blob's name is the
    ETag); others are named by git's own digest, which is shorter.
    """
    blob = Path(os.path.realpath(path))
    is_kept = blob.parent.name == "blobs" and blob.is_relative_to(os.path.realpath(hub_cache_dir()))
    return blob.name if is_kept and re.fullmatch("[0-9a-f]{64}", blob.name) else None


def _unread(path: Path) -> str:
    return f"{UNREAD} {identity_of(path)}"


def _stat(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
