# SPDX-License-Identifier: Apache-2.0
"""A store entry: its document, and the verification of its files by digests or stamps.

    entry.json     step, time, and every file with size and segments; written last, with a checksum
    files/...      the step's output, read-only

A file is hashed once, and later compared by its stamp (inode, size and times). This module does not handle locks, other
entries or how an entry is moved into place.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trtspec.core.diagnostics import first_invalid
from trtspec.core.files import replace_file, sync_directories
from trtspec.core.hashing import Segments, file_segments
from trtspec.store.digest import dump_checksummed, load_checksummed
from trtspec.store.file_records import FileRecord, Sha256
from trtspec.store.layout import Layout

ENTRY_SCHEMA = "trtspec.entry/3"
# File times advance in ticks of at most 10 ms: a file hashed within the tick of its last write could change unnoticed.
TICK_NS = 20_000_000

Stamp = list[int]  # inode, size, mtime_ns, ctime_ns
SealedFiles = tuple[tuple[FileRecord, ...], dict[str, Stamp]]  # the records of the files, and their stamps by path


class UnsoundError(Exception):
    """Raised if an entry differs from its record; the message names the first difference. Internal to the store."""


class StoreEntry(BaseModel):
    """The published output of a step; `seconds` is the duration of the step, `created` an ISO 8601 time.

    `shape` is the step's `shape_key` (store/files.py), "" if unknown.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: Annotated[Path, Field(exclude=True)]
    key: Sha256
    name: str
    step_class: str
    files: tuple[FileRecord, ...]
    seconds: float
    created: str
    shape: str = ""

    @property
    def files_dir(self) -> Path:
        return self.directory / "files"

    @property
    def total_bytes(self) -> int:
        return sum(record.size for record in self.files)


def load_entry(directory: Path, key: str) -> StoreEntry:
    """Return the entry of `key` without checking its files; raises UnsoundError if its document is invalid."""
    body = load_checksummed(ENTRY_SCHEMA, directory / "entry.json")
    if body is None:
        raise UnsoundError("entry.json is missing, damaged or of another version")
    try:
        entry = StoreEntry.model_validate({**body, "directory": directory})
    except ValidationError as error:
        raise UnsoundError(f"entry.json: {first_invalid(error)}") from error
    if entry.key != key:
        raise UnsoundError(f"entry.json has the key {entry.key}")
    return entry


def write_entry(entry: StoreEntry, workspace: Path) -> None:
    """Write entry.json for an entry whose files are already sealed in `workspace`."""
    replace_file(workspace / "entry.json", dump_checksummed(ENTRY_SCHEMA, entry.model_dump(mode="json")))


def check_files(entry: StoreEntry, known: dict[str, Stamp]) -> dict[str, Stamp]:
    """Return the stamps of an entry's files; raises UnsoundError for the first file that differs from its record.

    Files whose stamp equals the one in `known` are not hashed again.
    """
    found, unknown = scan(entry.files_dir), []
    for record in entry.files:
        if record.path not in found:
            raise UnsoundError(f"files/{record.path} is missing")
        stamp = found[record.path]
        if stamp[1] != record.size:
            raise UnsoundError(f"files/{record.path} has {stamp[1]} bytes, {record.size} were recorded")
        if known.get(record.path) != stamp:
            unknown.append(record)
    if extra := set(found) - {record.path for record in entry.files}:
        raise UnsoundError(f"files/{min(extra)} is not part of the entry")
    hashed = _settled_segments(entry.files_dir, {record.path: found[record.path] for record in unknown})
    for record in unknown:
        if difference := record.difference(hashed[record.path]):
            raise UnsoundError(f"files/{record.path}: {difference}")
    return found


def seal_files(files_dir: Path, known: Mapping[str, Segments]) -> SealedFiles:
    """Make a step's output read-only and durable; return the records and stamps of its files.

    `known` are the segments, by path, of files that were hashed while they were written.
    """
    paths = [files_dir / path for path in scan(files_dir)]
    for path in paths:
        path.chmod(0o444)
    sync_directories(files_dir, paths)
    stamps = scan(files_dir)  # scan again: chmod changed the times
    unknown = {path: stamp for path, stamp in stamps.items() if path not in known}
    found = {**known, **_settled_segments(files_dir, unknown)}
    return tuple(FileRecord(path=path, size=stamps[path][1], segments=found[path]) for path in sorted(stamps)), stamps


def scan(root: Path) -> dict[str, Stamp]:
    """Return the stamps of all files below `root` by relative path; raises UnsoundError for other file types."""
    found: dict[str, Stamp] = {}
    pending = [""]
    if root.is_symlink():
        raise UnsoundError(f"{root.name} is a symlink")
    while pending:
        prefix = pending.pop()
        try:
            listed = [(prefix + item.name, item.stat(follow_symlinks=False)) for item in os.scandir(root / prefix)]
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UnsoundError(f"{root.name}/{prefix} is missing") from error
        for path, status in listed:
            if stat.S_ISDIR(status.st_mode):
                pending.append(path + "/")
            elif stat.S_ISREG(status.st_mode):
                found[path] = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            else:
                raise UnsoundError(f"{root.name}/{path} is neither a file nor a directory")
    return found


def _settled_segments(files_dir: Path, stamps: Mapping[str, Stamp]) -> dict[str, Segments]:
    """Hash files and return their segments by path; first wait until any later write would change their stamps."""
    age_ns = time.time_ns() - max((max(stamp[2:]) for stamp in stamps.values()), default=0)
    if 0 <= age_ns < TICK_NS:
        time.sleep((TICK_NS - age_ns) / 1e9)
    return dict(zip(stamps, file_segments([files_dir / path for path in stamps]), strict=True))


STAMPS_SCHEMA = "trtspec.stamps/1"


@dataclass(frozen=True)
class Lookup:
    """The entry of a key, or the reason why it is missing."""

    entry: StoreEntry | None
    why: str = ""

    @property
    def status(self) -> Literal["hit", "miss"]:
        return "hit" if self.entry else "miss"


def find_entry(layout: Layout, key: str, *, remember: bool) -> Lookup:
    """Look up and verify the entry of a key; with `remember`, its stamps are saved to avoid hashing it again."""
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
    """Update the recorded change times of an entry's files; return False if anything else changed."""
    with suppress(UnsoundError):
        known, found = _stamps(layout, key), scan(layout.entry(key) / "files")
        if {path: stamp[:3] for path, stamp in known.items()} == {path: stamp[:3] for path, stamp in found.items()}:
            remember_stamps(layout, key, found)
            return True
    return False


def remember_stamps(layout: Layout, key: str, stamps: dict[str, Stamp]) -> None:
    path = layout.stamps(key)
    with suppress(OSError):  # on a full disk, the next reader hashes the files again
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, dump_checksummed(STAMPS_SCHEMA, {"stamps": stamps}), durable=False)


def _stamps(layout: Layout, key: str) -> dict[str, Stamp]:
    document = load_checksummed(STAMPS_SCHEMA, layout.stamps(key)) or {"stamps": {}}
    return cast(dict[str, Stamp], document["stamps"])
