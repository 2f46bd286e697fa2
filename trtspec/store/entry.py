# SPDX-License-Identifier: Apache-2.0
"""One directory of the store: its document, and whether its files still are what was recorded.

    entry.json     what was built, when, and every file with size and SHA-256; written last and sealed
    files/...      what the step wrote, read-only

Knows nothing of locks, of other entries, or of how an entry comes to its place.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trtspec.core.diagnostics import plain_words
from trtspec.core.file_records import FileRecord, Sha256
from trtspec.core.files import in_threads, replace_file, sync, sync_directories
from trtspec.core.hashing import file_sha256
from trtspec.store.checksummed_json import load_sealed, seal

SCHEMA = "trtspec.entry/1"
# Times of files move in ticks of at most 10 ms: a file hashed in the tick it was written in could change unseen.
TICK_NS = 20_000_000

Stamp = list[int]  # inode, size, mtime_ns, ctime_ns


class UnsoundError(Exception):
    """An entry is not what was recorded, with the first difference; the store's own, no user sees it raised."""


class Entry(BaseModel):
    """What a step wrote, and where it lies."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    directory: Annotated[Path, Field(exclude=True)]
    key: Sha256
    name: str
    step_class: str
    files: tuple[FileRecord, ...]
    seconds: float
    created: str

    @property
    def files_dir(self) -> Path:
        """The directory with the step's files."""
        return self.directory / "files"

    @property
    def total_bytes(self) -> int:
        """The size of all files."""
        return sum(record.size for record in self.files)


def load_entry(directory: Path, key: str) -> Entry:
    """Return the entry of `key` from its document alone; UnsoundError where that is not one."""
    body = load_sealed(SCHEMA, directory / "entry.json")
    if body is None:
        raise UnsoundError("entry.json is missing or damaged")
    try:
        entry = Entry.model_validate({**body, "directory": directory})
    except ValidationError as error:
        raise UnsoundError(f"entry.json: {plain_words(error.errors()[0]['msg'])}") from error
    if entry.key != key:
        raise UnsoundError(f"entry.json is that of {entry.key}")
    return entry


def write_entry(entry: Entry) -> None:
    """Write the document of an entry whose files are sealed."""
    data = seal(SCHEMA, entry.model_dump(mode="json"))
    replace_file(entry.directory / "entry.json", data)


def check_files(entry: Entry, known: dict[str, Stamp]) -> dict[str, Stamp]:
    """Return the stamps of an entry's files, all found as recorded; UnsoundError names the first that is not.

    A file that still has its stamp in `known` was hashed before and is not read again.
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
        raise UnsoundError(f"files/{min(extra)} does not belong there")
    digests = in_threads(lambda each: _settled_sha256(entry.files_dir / each.path, found[each.path]), unknown)
    for record, digest in zip(unknown, digests, strict=True):
        if digest != record.sha256:
            raise UnsoundError(f"files/{record.path}: sha256 differs")
    return found


def seal_files(files_dir: Path, known: Mapping[str, str]) -> tuple[tuple[FileRecord, ...], dict[str, Stamp]]:
    """Make what a step wrote read-only and durable; return the records and the stamps of its files.

    What is `known` of them, SHA-256 by path, was found while they were written.
    """
    for path in scan(files_dir):
        (files_dir / path).chmod(0o444)
        sync(files_dir / path)
    sync_directories(files_dir)
    stamps = scan(files_dir)  # again: chmod has moved the times
    paths = sorted(stamps)
    unknown = [path for path in paths if path not in known]
    digests = in_threads(lambda path: _settled_sha256(files_dir / path, stamps[path]), unknown)
    found = {**known, **dict(zip(unknown, digests, strict=True))}
    return tuple(FileRecord(path=path, size=stamps[path][1], sha256=found[path]) for path in paths), stamps


def scan(root: Path) -> dict[str, Stamp]:
    """Return the stamps of all files below `root` by relative path; UnsoundError at a symlink or a special file."""
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


def _settled_sha256(path: Path, stamp: Stamp) -> str:
    age_ns = time.time_ns() - max(stamp[2:])
    if 0 <= age_ns < TICK_NS:
        time.sleep((TICK_NS - age_ns) / 1e9)
    return file_sha256(path)
