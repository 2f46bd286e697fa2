# SPDX-License-Identifier: Apache-2.0
"""Cache of artifact files that were verified on this machine and have not changed since; they are not read again.

A file is identified by device, inode, size and times, and only this user's cache is trusted, never the artifact.
Change times cannot be set, so writing or replacing a file invalidates it. A mounted file system with forged inodes and
times is a different device from the cache's; its files are never cached.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.core.files import file_identity
from trtspec.core.hashing import file_sha256
from trtspec.core.paths import cache_dir
from trtspec.store.digest import DigestCache
from trtspec.store.manifest import Manifest, verify_files


class VerifiedCache:
    """Returns file digests from the cache or from the bytes. Thread-safe."""

    def __init__(self) -> None:
        self._digests = DigestCache(cache_dir() / "artifacts.json")
        self._read: dict[Path, tuple[str, str]] = {}
        self.known: set[Path] = set()

    def sha256(self, path: Path) -> str:
        """Return a file's digest."""
        if _is_ours(path) and (known := self._digests.lookup(path)):
            self.known.add(path)
            return known
        identity, digest = file_identity(path), file_sha256(path)
        if _is_ours(path):
            self._read[path] = identity, digest
        return digest

    def remember(self) -> None:
        """Save the digests of the files that were read."""
        with suppress(TrtspecError, OSError):  # a file that changed is read again next time
            self._digests.learn(self._read)


def verify_changed(root: Path, manifest: Manifest) -> tuple[list[str], int]:
    """Verify files as `verify_files` but skip cached ones; return the problems and the number of cached files."""
    before = VerifiedCache()
    problems = verify_files(root, manifest, before.sha256)
    before.remember()
    return problems, len(before.known)


def remember_published(root: Path, manifest: Manifest) -> None:
    """Cache the digests of a just published artifact from its manifest."""
    digests = {root.resolve() / record.path: record.sha256 for record in manifest.files}
    with suppress(OSError):  # a file that vanished is reported when the artifact is opened
        DigestCache(cache_dir() / "artifacts.json").add_written(
            {path: digest for path, digest in digests.items() if _is_ours(path)}
        )


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_dev == cache_dir().stat().st_dev
    except OSError:
        return False
