# SPDX-License-Identifier: Apache-2.0
"""Records about artifacts in this user's cache: verified files, and the directories of the sources.

A file is identified by device, inode, size and times, and only this user's cache is trusted, never the artifact. Change
times cannot be set, so writing or replacing a file invalidates its record. A mounted file system may have forged inodes
and times, but is a different device from the cache's. Its files are never cached.

Equal inputs give equal manifests everywhere, so a manifest contains no locations. The directory of each source is
recorded in the cache, by the keys of the artifact's steps. Moving a source only makes this record obsolete.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.core.files import file_identity, replace_file
from trtspec.core.paths import cache_dir
from trtspec.store.artifact import Manifest, verify_files
from trtspec.store.digest import DigestCache, compute_digest, dump_checksummed, load_checksummed


def verify_changed(root: Path, manifest: Manifest) -> tuple[list[str], int]:
    """Verify an artifact's files like `verify_files`, except for files that were verified before and are unchanged.

    Return the problems and the number of files that were not read again.
    """
    cache = DigestCache(cache_dir() / "artifacts.json")
    before, cached = dict[Path, str](), set[Path]()

    def known(path: Path) -> str | None:
        if not _is_ours(path):
            return None
        if digest := cache.lookup(path):
            cached.add(path)
            return digest
        before[path] = file_identity(path)
        return None

    problems = verify_files(root, manifest, known)
    digests = {root.resolve() / record.path: record.digest for record in manifest.files}
    with suppress(TrtspecError, OSError):  # a file that changed is read again next time
        if not problems:
            cache.learn({path: (identity, digests[path]) for path, identity in before.items()})
    return problems, len(cached)


def remember_published(root: Path, manifest: Manifest) -> None:
    """Cache the digests of a new artifact's files, so that `verify_changed` does not hash them."""
    digests = {root.resolve() / record.path: record.digest for record in manifest.files}
    with suppress(OSError):  # a missing file is reported when the artifact is opened
        DigestCache(cache_dir() / "artifacts.json").add_written(
            {path: digest for path, digest in digests.items() if _is_ours(path)}
        )


def _is_ours(path: Path) -> bool:
    try:
        return path.stat().st_dev == cache_dir().stat().st_dev
    except OSError:
        return False


LOCATIONS_SCHEMA = "trtspec.origins/1"
MAX_DIRECTORIES = 16  # equal sources may be in several directories, some of them deleted


def record_source_locations(manifest: Manifest, sources: Mapping[str, str]) -> None:
    """Record the directories that an artifact was just built from, as {role: directory}."""
    if not sources:
        return
    path = _record_path(manifest)
    before = _directories(path)
    record = {
        role: list(dict.fromkeys([directory, *before.get(role, [])]))[:MAX_DIRECTORIES]
        for role, directory in sources.items()
    }
    with suppress(OSError):  # on a full disk only `verify --source` is affected
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, dump_checksummed(LOCATIONS_SCHEMA, record), durable=False)


def find_source_location(manifest: Manifest, role: str) -> str | None:
    """Return a role's newest existing source directory, else its newest one, or None if none is recorded."""
    directories = _directories(_record_path(manifest)).get(role, [])
    return next(filter(os.path.isdir, directories), next(iter(directories), None))


def _record_path(manifest: Manifest) -> Path:
    digest = compute_digest(LOCATIONS_SCHEMA, tuple(step.key for step in manifest.steps))
    return cache_dir() / "origins" / f"{digest}.json"


def _directories(path: Path) -> dict[str, list[str]]:
    return load_checksummed(LOCATIONS_SCHEMA, path) or {}
