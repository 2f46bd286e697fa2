# SPDX-License-Identifier: Apache-2.0
"""Paths below the root of a store, the lock of each key, removal, and error messages for OS errors.

    root/entries/ab/<key>/            an entry (entry.py), complete or absent
    root/tmp/<key>.<pid>.<random>     being written or removed; garbage once the key's lock is free
    root/partial/<key>/               unfinished output of a resumable step; the next build of the key continues it
    root/incoming/<key>/              files on arrival from a team store; the next fetch of the key continues them
    root/locks/<key>.lock             held while an entry is built, moved aside or removed
    root/uses/, root/holds/           which recipes and builds use which entries (records.py)
    root/stamps/<key>.json            hashed files by inode, size and times; a cache
    root/rates.json                   speeds of earlier steps (records.py); a cache

Deleting a cache loses no output. This module does not depend on the contents of the files.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.core.errors import (
    StepError,
    TrtspecError,
    describe_os_error,
    describe_os_error_at,
    os_error_path,
    os_error_remedy,
)
from trtspec.core.files import failpoint, file_lock

if TYPE_CHECKING:
    from filelock import BaseFileLock


@dataclass(frozen=True)
class Layout:
    """Paths below the root of a store."""

    root: Path

    def make(self) -> None:
        """Create the root directory; raises TrtspecError if that fails."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            hint = "set TRTSPEC_CACHE to a writable directory"
            raise TrtspecError(f"cannot create the store: {error.strerror}", where=str(self.root), hint=hint) from error

    def entry(self, key: str) -> Path:
        """Return the directory of a key's entry; raises TrtspecError if the key is malformed."""
        if not re.fullmatch("[0-9a-f]{64}", key):
            raise TrtspecError(f"{key!r} is not a step key: expected 64 hex digits")
        return self.root / "entries" / key[:2] / key

    def entry_keys(self) -> list[str]:
        return [path.name for shelf in self.listed("entries") for path in listdir(shelf)]

    def partial(self, key: str) -> Path:
        return self.root / "partial" / key

    def incoming(self, key: str) -> Path:
        return self.root / "incoming" / key

    def stamps(self, key: str) -> Path:
        return self.root / "stamps" / f"{key}.json"

    def temporary(self, key: str) -> Path:
        """Return a unique path below root/tmp for a key; its parent directory exists."""
        path = self.root / "tmp" / f"{key}.{os.getpid()}.{secrets.token_hex(4)}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def listed(self, folder: str) -> list[Path]:
        return listdir(self.root / folder)

    def lock(self, key: str, timeout_s: float = -1) -> BaseFileLock:
        """Return the lock of a key, not yet acquired; by default, acquiring it blocks without a timeout."""
        path = self.root / "locks" / f"{key}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        return file_lock(path, timeout_s)

    @contextmanager
    def explain_os_errors(self, doing: str) -> Iterator[None]:
        """Context manager that converts OSErrors with a cause in the machine, such as a full disk, to StepErrors."""
        try:
            yield
        except OSError as error:
            path = os_error_path(error)
            if (refused := describe_os_error_at(error, str(self.root))) is None:
                raise
            if path and Path(path).is_relative_to(self.root):
                refused = f"{describe_os_error(error)} {self.root}"
            hint = "free disk space or fix permissions there, or set TRTSPEC_CACHE to a directory on another disk"
            raise StepError(f"{refused} while {doing}", hint=os_error_remedy(error) or hint) from error


def listdir(path: Path) -> list[Path]:
    """Return the sorted contents of a directory; [] if it does not exist."""
    return sorted(path.iterdir()) if path.is_dir() else []


def remove_entry(layout: Layout, key: str) -> bool:
    """Remove an entry; return True if it existed. The caller holds the lock of its key."""
    layout.stamps(key).unlink(missing_ok=True)
    aside = layout.temporary(key)
    try:
        os.rename(layout.entry(key), aside)  # rename first, so that a kill leaves garbage instead of half an entry
    except FileNotFoundError:
        return False
    failpoint("store.before-delete")
    shutil.rmtree(aside)
    return True


def collect(layout: Layout, *folders: str) -> None:
    """Delete leftovers of ended processes in folders of a store, except for keys whose lock is held."""
    from filelock import Timeout

    for path in [path for folder in folders for path in layout.listed(folder)]:
        with suppress(Timeout), layout.lock(path.name.split(".")[0], timeout_s=0):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
