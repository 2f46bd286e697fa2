# SPDX-License-Identifier: Apache-2.0
"""Where things lie below the root of a store, the lock of each key, and what is said where the machine refuses.

    root/entries/ab/<key>/            an entry (entry.py); it is there whole or not at all
    root/tmp/<key>.<pid>.<random>     what is being written or thrown away; garbage once nobody holds the key's lock
    root/partial/<key>/               what a resumable step has written so far; the next build of the key goes on there
    root/locks/<key>.lock             held while an entry is built, moved aside or removed
    root/uses/, root/holds/           who uses which entries (uses.py)
    root/stamps/<key>.json            which files were hashed, by inode, size and times; a memory, may be lost
    root/alike/<key>                  an empty file for what was built, whatever bytes its sources had; may be lost
    root/rates.json                   how fast steps were (rates.py); may be lost

Knows nothing of what is in them.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.core.errors import StepError, TrtspecError, describe_refusal, refusal, refused_at, remedy_of
from trtspec.core.files import file_lock

if TYPE_CHECKING:
    from filelock import BaseFileLock


@dataclass(frozen=True)
class Layout:
    """The places below one root."""

    root: Path

    def make(self) -> None:
        """Make the root; TrtspecError where that cannot be."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            hint = "set TRTSPEC_CACHE to a directory that can be written"
            raise TrtspecError(f"no store can be made: {error.strerror}", where=str(self.root), hint=hint) from error

    def entry(self, key: str) -> Path:
        """Return the directory of a key's entry; TrtspecError where that is no key."""
        if not re.fullmatch("[0-9a-f]{64}", key):
            raise TrtspecError(f"{key!r} is not the key of a step: those are 64 hex digits")
        return self.root / "entries" / key[:2] / key

    def entry_keys(self) -> list[str]:
        """Return the keys that have an entry, sound or not."""
        return [path.name for shelf in self.listed("entries") for path in listdir(shelf)]

    def partial(self, key: str) -> Path:
        """Return where a resumable step writes."""
        return self.root / "partial" / key

    def stamps(self, key: str) -> Path:
        """Return the file with the stamps of a key's files."""
        return self.root / "stamps" / f"{key}.json"

    def alike(self, key: str) -> Path:
        """Return the note that a step was built that is alike but for the bytes of its sources."""
        return self.root / "alike" / key

    def temporary(self, key: str) -> Path:
        """Return a path that nobody else has; its parent is there."""
        path = self.root / "tmp" / f"{key}.{os.getpid()}.{secrets.token_hex(4)}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def listed(self, folder: str) -> list[Path]:
        """Return what lies in a folder of the root, in order."""
        return listdir(self.root / folder)

    def lock(self, key: str, timeout_s: float = -1) -> BaseFileLock:
        """Return the lock of a key, not yet taken; it waits as long as it takes unless told otherwise."""
        path = self.root / "locks" / f"{key}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        return file_lock(path, timeout_s)

    @contextmanager
    def in_words(self, doing: str) -> Iterator[None]:
        """Raise what the machine refuses within the block as a StepError."""
        try:
            yield
        except OSError as error:
            path = refused_at(error)
            if (refused := describe_refusal(error, str(self.root))) is None:
                raise
            if path and Path(path).is_relative_to(self.root):
                refused = f"{refusal(error)} {self.root}"
            hint = "give it room or access there; TRTSPEC_CACHE puts the store on another disk"
            raise StepError(f"{refused} while {doing}", hint=remedy_of(error) or hint) from error


def listdir(path: Path) -> list[Path]:
    """Return what lies in a directory, in order; nothing where there is none."""
    return sorted(path.iterdir()) if path.is_dir() else []
