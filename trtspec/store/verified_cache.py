# SPDX-License-Identifier: Apache-2.0
"""Which files of artifacts were read before on this machine and have not changed since: they are not read again.

A file is known by device, inode, size and times, in this user's cache alone; an artifact brings nothing that is
trusted. Times of change cannot be set, so whoever writes to a file, or puts another in its place, makes it unknown. A
file system that others may bring along, with inodes and times as they like, is another device than the cache's:
nothing is remembered of it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.core.files import identity_of
from trtspec.core.hashing import file_sha256
from trtspec.core.paths import cache_dir
from trtspec.store.digest import DigestCache
from trtspec.store.manifest import Manifest, verify_files


class ReadBefore:
    """The digest of a file: the remembered one, or that of its bytes; threads may ask at once."""

    def __init__(self) -> None:
        self._digests = DigestCache(cache_dir() / "artifacts.json")
        self._read: dict[Path, tuple[str, str]] = {}
        self.known: set[Path] = set()

    def sha256(self, path: Path) -> str:
        """Return a file's digest."""
        if _is_ours(path) and (known := self._digests.lookup(path)):
            self.known.add(path)
            return known
        identity, digest = identity_of(path), file_sha256(path)
        if _is_ours(path):
            self._read[path] = identity, digest
        return digest

    def remember(self) -> None:
        """Remember what was read."""
        with suppress(TrtspecError, OSError):  # what changes meanwhile is read again, and found then
            self._digests.learn(self._read)


def verify_changed(root: Path, manifest: Manifest) -> tuple[list[str], int]:
    """As `verify_files`, reading only files that were not read before; return how many those were as well."""
    before = ReadBefore()
    problems = verify_files(root, manifest, before.sha256)
    before.remember()
    return problems, len(before.known)


def remember_published(root: Path, manifest: Manifest) -> None:
    """Remember the files of an artifact that was put in place just now: all are as the manifest says."""
    digests = {root.resolve() / record.path: record.sha256 for record in manifest.files}
    with suppress(OSError):  # gone already, which whoever opens it finds
        DigestCache(cache_dir() / "artifacts.json").learn_own(
            {path: digest for path, digest in digests.items() if _is_ours(path)}
        )


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_dev == cache_dir().stat().st_dev
    except OSError:
        return False
