# SPDX-License-Identifier: Apache-2.0
"""Artifacts that `deploy LOCATION` has pulled into the cache, and their removal.

TRTSPEC_CACHE/pulled/HEX            an artifact, called after the SHA-256 of its manifest
TRTSPEC_CACHE/pulled/.HEX.partial   fetched files of an interrupted pull
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.core.files import file_lock
from trtspec.core.paths import cache_dir
from trtspec.store.artifact import load_manifest

INTERRUPTED = "interrupted pull"
RECENT_S = 3600.0  # a deployment that has just pulled an artifact has no record yet
_NAME = re.compile(r"(?P<artifact>[0-9a-f]{64})|\.(?P<partial>[0-9a-f]{64})\.partial")


@dataclass(frozen=True)
class PulledArtifact:
    """A pulled artifact: the SHA-256 of its manifest, its recipe, and its size without files that others link to.

    `name` is INTERRUPTED for the files of an interrupted pull. `is_held` is true while a deployment uses the artifact,
    and for RECENT_S seconds after a use.
    """

    key: str
    path: Path
    name: str
    total_bytes: int
    last_used: datetime
    is_held: bool


def pulled_dir() -> Path:
    """Return the directory of the artifacts that are deployed from their location."""
    return cache_dir() / "pulled"


def note_use(path: Path) -> None:
    """Record that a pulled artifact is used now: its directory's modification time is its last use."""
    with suppress(OSError):
        os.utime(path)


def list_pulled(in_use: Collection[Path]) -> list[PulledArtifact]:
    """Return all pulled artifacts, by key; `in_use` are the directories that deployments use."""
    used, found = {os.path.realpath(path) for path in in_use}, []
    with suppress(FileNotFoundError):
        for path in sorted(pulled_dir().iterdir()):
            if (match := _NAME.fullmatch(path.name)) and path.is_dir() and not path.is_symlink():
                key, used_s = match["artifact"] or match["partial"], path.stat().st_mtime
                is_held = os.path.realpath(path) in used or time.time() - used_s < RECENT_S
                last_used = datetime.fromtimestamp(used_s, timezone.utc)
                found.append(PulledArtifact(key, path, _recipe_name(path), _own_bytes(path), last_used, is_held))
    return found


def remove_pulled(chosen: Sequence[PulledArtifact], *, dry_run: bool) -> list[PulledArtifact]:
    """Remove artifacts, or only return them with `dry_run`; one that was used since it was listed is kept."""
    if dry_run:
        return list(chosen)
    gone = []
    for each in chosen:
        with _lock(each.key) as is_ours:
            if is_ours and each.path.stat().st_mtime <= each.last_used.timestamp() + 1e-3:
                place = each.path.with_name(f".gone-{secrets.token_hex(8)}")
                os.rename(each.path, place)
                shutil.rmtree(place)
                gone.append(each)
    for leftover in pulled_dir().glob(".gone-*"):  # of a removal that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    return gone


@contextmanager
def _lock(key: str) -> Iterator[bool]:
    """Take the lock of pulls into the artifact's directory; provide False if another process has it."""
    from filelock import Timeout

    try:
        with file_lock(pulled_dir() / f".{key}.pull.lock", timeout_s=0):
            yield True
    except Timeout:
        yield False


def _recipe_name(path: Path) -> str:
    if path.name.startswith("."):
        return INTERRUPTED
    try:
        return load_manifest(path).recipe.name
    except TrtspecError:
        return "damaged"


def _own_bytes(path: Path) -> int:
    stats = (Path(folder, name).lstat() for folder, _, names in os.walk(path) for name in names)
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)
