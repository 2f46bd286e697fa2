# SPDX-License-Identifier: Apache-2.0
"""The store: what every step wrote, by the step's key, kept so that a kill or a full disk leaves nothing half done.

    root/entries/ab/<key>/            an entry (entry.py); it is there whole or not at all
    root/tmp/<key>.<pid>.<random>     what is being written or thrown away; garbage once nobody holds the key's lock
    root/partial/<key>/               what a resumable step has written so far; the next build of the key goes on there
    root/locks/<key>.lock             held while an entry is built, moved aside or removed
    root/uses/, root/holds/           who uses which entries (uses.py)
    root/stamps/<key>.json            which files were hashed, by inode, size and times; a memory, may be lost

An entry is used only after its files were found as recorded: hashed at the first reading, by their stamps afterwards.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from trtspec.errors import StepError, TrtspecError, refusal
from trtspec.failpoint import failpoint
from trtspec.files import FileRecord, replace_file, sync
from trtspec.graph.entry import (
    Entry,
    Stamp,
    UnsoundError,
    check_files,
    load_entry,
    scan,
    seal_files,
    write_entry,
)
from trtspec.graph.sealed import load_sealed, seal
from trtspec.graph.step import Inputs, Progress, Step, notes_of
from trtspec.graph.uses import Uses

if TYPE_CHECKING:
    from filelock import BaseFileLock

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


class Store:
    """Entries by step key, below one directory; any number of processes may share it."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self.uses = Uses(root, clock)
        self._clock = clock

    def peek(self, key: str) -> Lookup:
        """Return what `get` would, and change nothing on the disk."""
        with self._in_words("reading the store"):
            return self._check(key, remember=False)

    def get(self, key: str) -> Lookup:
        """Return the entry of a key, its files verified; an entry found damaged is thrown away first."""
        with self._in_words("reading the store"):
            lookup = self._check(key, remember=True)
            if lookup.entry or not self._directory(key).exists():
                return lookup
            with self._lock(key):
                return self._get_locked(key)

    def build(self, step: Step, inputs: Inputs, progress: Progress) -> tuple[Entry, bool]:
        """Return the step's entry and whether the step ran here: another process may have built it meanwhile."""
        self._make_root()
        with self._in_words(f"building {step.name}; nothing was published"):
            self._collect("tmp")
            with self._lock(step.key):
                entry = self._get_locked(step.key).entry
                return (entry, False) if entry else (self._build_locked(step, inputs, progress), True)

    def restamp(self, key: str) -> bool:
        """Accept the change times of an entry's files after hard-linking them; False where more than that changed.

        Only for an entry that this process got or built before it made the links.
        """
        with self._in_words("reading the store"), suppress(UnsoundError):
            known, found = self._stamps(key), scan(self._directory(key) / "files")
            if {path: stamp[:3] for path, stamp in known.items()} == {path: stamp[:3] for path, stamp in found.items()}:
                self._remember(key, found)
                return True
        return False

    def entries(self) -> list[Entry]:
        """Return all entries with a sound document, by key; their files are not looked at."""
        found = []
        with self._in_words("reading the store"):
            for key in self._keys():
                with suppress(UnsoundError):
                    found.append(load_entry(self._directory(key), key))
        return found

    def size(self) -> int:
        """Return the bytes of all entries' files."""
        return sum(entry.total_bytes for entry in self.entries())

    @contextmanager
    def holding(self, keys: Collection[str], user: str) -> Iterator[None]:
        """Keep a build's entries from being thrown away while it runs; note in the end that `user` used them."""
        with self.uses.holding(keys):
            try:
                yield
            finally:
                self.uses.note([key for key in keys if self._directory(key).exists()], user)

    def all_resumable_bytes(self) -> int:
        """Return the bytes on the disk that interrupted builds left."""
        return sum(self.resumable_bytes(path.name) for path in _listdir(self.root / "partial"))

    def resumable_bytes(self, key: str) -> int:
        """Return the bytes on the disk that an interrupted build of a key left for the next."""
        files = self.root / "partial" / key / "files"
        return sum(path.stat().st_blocks * 512 for path in _listdir(files) if path.is_file())

    def verify(self) -> list[str]:
        """Hash every file of every entry; return what is wrong, one line an entry."""
        problems = []
        with self._in_words("verifying the store"):
            for key in self._keys():
                try:
                    check_files(load_entry(self._directory(key), key), {})
                except UnsoundError as problem:
                    problems.append(f"{key}: {problem}")
        return problems

    def remove(self, key: str) -> bool:
        """Throw away the entry of a key; return whether there was one that no running build holds."""
        with self._in_words("removing an entry"), self._lock(key), self.uses.unheld(key) as may_go:
            if may_go and self._remove_locked(key):
                self.uses.forget(key)
                return True
            return False

    def gc(self, keep: set[str]) -> list[str]:
        """Throw away what is not in `keep` nor held, and what killed builds left; return the removed keys."""
        with self._in_words("cleaning the store"):
            self._collect("tmp", "partial")
            return [key for key in self._keys() if key not in keep and self.remove(key)]

    def _make_root(self) -> None:
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            hint = "set TRTSPEC_CACHE to a directory that can be written"
            raise TrtspecError(f"no store can be made: {error.strerror}", where=str(self.root), hint=hint) from error

    def _check(self, key: str, *, remember: bool) -> Lookup:
        directory = self._directory(key)
        if not directory.exists():
            return Lookup(None, "never built")
        known = self._stamps(key)
        try:
            entry = load_entry(directory, key)
            found = check_files(entry, known)
        except UnsoundError as problem:
            return Lookup(None, f"corrupt: {problem}")
        if remember and found != known:
            self._remember(key, found)
        return Lookup(entry)

    def _get_locked(self, key: str) -> Lookup:
        lookup = self._check(key, remember=True)
        if not lookup.entry and self._remove_locked(key):
            return Lookup(None, f"{lookup.why}, evicted")
        return lookup

    def _build_locked(self, step: Step, inputs: Inputs, progress: Progress) -> Entry:
        workspace = self.root / "partial" / step.key if step.RESUMABLE else self._temporary(step.key)
        started = time.perf_counter()
        try:
            _make_workspace(workspace, step)
            step.run(workspace / "files", inputs, progress)
            records, stamps = _seal_output(step, workspace / "files")
            failpoint("store.before-entry")
            entry = Entry(
                directory=workspace,
                key=step.key,
                name=step.name,
                step_class=type(step).__qualname__,
                files=records,
                seconds=time.perf_counter() - started,
                created=datetime.fromtimestamp(self._clock(), timezone.utc).isoformat(timespec="seconds"),
            )
            write_entry(entry)
            shutil.rmtree(notes_of(workspace / "files"), ignore_errors=True)
            failpoint("store.before-rename")
            entry = self._put_in_place(entry)
        except BaseException:  # an interrupt too leaves nothing behind but what can be resumed
            if not step.RESUMABLE:
                shutil.rmtree(workspace, ignore_errors=True)
            raise
        self._remember(step.key, stamps)
        return entry

    def _put_in_place(self, entry: Entry) -> Entry:
        directory = self._directory(entry.key)
        directory.parent.mkdir(parents=True, exist_ok=True)
        os.rename(entry.directory, directory)
        failpoint("store.after-rename")
        for parent in (directory.parent, directory.parent.parent):
            sync(parent)
        return entry.model_copy(update={"directory": directory})

    def _remove_locked(self, key: str) -> bool:
        self._stamps_path(key).unlink(missing_ok=True)
        aside = self._temporary(key)
        try:
            os.rename(self._directory(key), aside)  # first out of sight: a kill leaves garbage, not half an entry
        except FileNotFoundError:
            return False
        failpoint("store.before-delete")
        shutil.rmtree(aside)
        return True

    def _collect(self, *folders: str) -> None:
        """Delete what ended processes left: a name in these folders is in use while its key's lock is held."""
        from filelock import Timeout

        for path in [path for folder in folders for path in _listdir(self.root / folder)]:
            with suppress(Timeout), self._lock(path.name.split(".")[0], timeout_s=0):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def _stamps(self, key: str) -> dict[str, Stamp]:
        document = load_sealed(STAMPS_SCHEMA, self._stamps_path(key)) or {"stamps": {}}
        return cast(dict[str, Stamp], document["stamps"])

    def _remember(self, key: str, stamps: dict[str, Stamp]) -> None:
        path = self._stamps_path(key)
        with suppress(OSError):  # a full disk costs the next reader a second hashing, nothing else
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, seal(STAMPS_SCHEMA, {"stamps": stamps}), self._temporary(key))

    def _lock(self, key: str, timeout_s: float = -1) -> BaseFileLock:
        from filelock import FileLock

        path = self.root / "locks" / f"{key}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(path, timeout_s)

    def _temporary(self, key: str) -> Path:
        path = self.root / "tmp" / f"{key}.{os.getpid()}.{secrets.token_hex(4)}"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _stamps_path(self, key: str) -> Path:
        return self.root / "stamps" / f"{key}.json"

    def _directory(self, key: str) -> Path:
        if not re.fullmatch("[0-9a-f]{64}", key):
            raise TrtspecError(f"{key!r} is not the key of a step: those are 64 hex digits")
        return self.root / "entries" / key[:2] / key

    def _keys(self) -> Iterable[str]:
        return [path.name for shelf in _listdir(self.root / "entries") for path in _listdir(shelf)]

    @contextmanager
    def _in_words(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if (refused := refusal(error)) is None:
                raise
            inside = not error.filename or Path(str(error.filename)).is_relative_to(self.root)
            where = self.root if inside else error.filename
            hint = "give it room or access there; TRTSPEC_CACHE puts the store on another disk"
            raise StepError(f"{refused} {where} while {doing}", hint=hint) from error


def _make_workspace(workspace: Path, step: Step) -> None:
    """Make the directories for a step's output and notes; files that an earlier run left become writable again."""
    files = workspace / "files"
    if step.RESUMABLE and files.is_dir():
        for path in scan(files):
            (files / path).chmod(0o644)
    files.mkdir(parents=True, exist_ok=step.RESUMABLE)
    if step.RESUMABLE:
        notes_of(files).mkdir(exist_ok=True)


def _seal_output(step: Step, files_dir: Path) -> tuple[tuple[FileRecord, ...], dict[str, Stamp]]:
    try:
        return seal_files(files_dir)
    except UnsoundError as problem:
        raise StepError(f"{step.name} wrote what cannot be kept: {problem}; nothing was published") from problem


def _listdir(path: Path) -> list[Path]:
    return sorted(path.iterdir()) if path.is_dir() else []
