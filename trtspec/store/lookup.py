# SPDX-License-Identifier: Apache-2.0
"""What the store has for a key: its files hashed at the first reading, known by their stamps afterwards."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, cast

from trtspec.core.files import replace_file
from trtspec.store.checksummed_json import load_sealed, seal
from trtspec.store.entry import Entry, Stamp, UnsoundError, check_files, load_entry, scan
from trtspec.store.layout import Layout

STAMPS_SCHEMA = "trtspec.stamps/1"


@dataclass(frozen=True)
class Lookup:
    """What the store has for a key: the entry, or why there is none."""

    entry: Entry | None
    why: str = ""

    @property
    def status(self) -> Literal["hit", "miss"]:
        """`hit` where there is an entry."""
        return "hit" if self.entry else "miss"


def look_up(layout: Layout, key: str, *, remember: bool) -> Lookup:
    """Return the entry of a key, its files as recorded; with `remember` the next reading need not hash them."""
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


def restamp(layout: Layout, key: str) -> bool:
    """Take over the change times of an entry's files; False where more than those changed."""
    with suppress(UnsoundError):
        known, found = _stamps(layout, key), scan(layout.entry(key) / "files")
        if {path: stamp[:3] for path, stamp in known.items()} == {path: stamp[:3] for path, stamp in found.items()}:
            remember_stamps(layout, key, found)
            return True
    return False


def remember_stamps(layout: Layout, key: str, stamps: dict[str, Stamp]) -> None:
    """Note that files were found as recorded."""
    path = layout.stamps(key)
    with suppress(OSError):  # a full disk costs the next reader a second hashing, nothing else
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, seal(STAMPS_SCHEMA, {"stamps": stamps}))


def _stamps(layout: Layout, key: str) -> dict[str, Stamp]:
    document = load_sealed(STAMPS_SCHEMA, layout.stamps(key)) or {"stamps": {}}
    return cast(dict[str, Stamp], document["stamps"])
