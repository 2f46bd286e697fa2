# SPDX-License-Identifier: Apache-2.0
"""Find and verify the entry of a key: files are hashed once and later compared by their stamps."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, cast

from trtspec.core.files import replace_file
from trtspec.store.checksummed_json import dump_checksummed, load_checksummed
from trtspec.store.entry import Stamp, StoreEntry, UnsoundError, check_files, load_entry, scan
from trtspec.store.layout import Layout

STAMPS_SCHEMA = "trtspec.stamps/1"


@dataclass(frozen=True)
class Lookup:
    """The entry of a key, or the reason why it is missing."""

    entry: StoreEntry | None
    why: str = ""

    @property
    def status(self) -> Literal["hit", "miss"]:
        """Return `hit` if there is an entry, else `miss`."""
        return "hit" if self.entry else "miss"


def find_entry(layout: Layout, key: str, *, remember: bool) -> Lookup:
    """Return the verified entry of a key; with `remember` its stamps are saved so that it is not hashed again."""
    directory = layout.entry(key)
    if not directory.exists():
        return Lookup(None, "never built")
    known = _stamps(layout, key)
    try:
        entry = load_entry(directory, key)
        found = check_files(entry, known)
    except UnsoundError as problem:
        return Lookup(None, f"corrupt: {problem}")
    if remember and found != known:
        remember_stamps(layout, key, found)
    return Lookup(entry)


def refresh_mtimes(layout: Layout, key: str) -> bool:
    """Update the stored change times of an entry's files; False if anything else changed."""
    with suppress(UnsoundError):
        known, found = _stamps(layout, key), scan(layout.entry(key) / "files")
        if {path: stamp[:3] for path, stamp in known.items()} == {path: stamp[:3] for path, stamp in found.items()}:
            remember_stamps(layout, key, found)
            return True
    return False


def remember_stamps(layout: Layout, key: str, stamps: dict[str, Stamp]) -> None:
    """Save the stamps of verified files."""
    path = layout.stamps(key)
    with suppress(OSError):  # on a full disk the next reader hashes the files again
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, dump_checksummed(STAMPS_SCHEMA, {"stamps": stamps}))


def _stamps(layout: Layout, key: str) -> dict[str, Stamp]:
    document = load_checksummed(STAMPS_SCHEMA, layout.stamps(key)) or {"stamps": {}}
    return cast(dict[str, Stamp], document["stamps"])
