# SPDX-License-Identifier: Apache-2.0
"""Store of step outputs by step key; a kill or a full disk never leaves a partial entry.

A step writes to a workspace; its output is sealed and moved into place with one rename. This module handles locking:
which operations need a key's lock, and the repeated lookup after acquiring it. Entries are used only after their files
were verified (entry.py). layout.py defines the paths.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from trtspec.core.errors import SourceChanged, StepError
from trtspec.core.file_records import FileRecord
from trtspec.core.files import failpoint, fsync_path
from trtspec.store.entry import (
    Lookup,
    Stamp,
    StoreEntry,
    UnsoundError,
    check_files,
    find_entry,
    load_entry,
    refresh_mtimes,
    remember_stamps,
    scan,
    seal_files,
    write_entry,
)
from trtspec.store.files import ConcurrentHasher, SourceDigests, shape_key, unverified_files
from trtspec.store.layout import Layout, collect, listdir, remove_entry
from trtspec.store.records import Leases, StepRates
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir


@dataclass(frozen=True)
class StepOutput:
    """A step's sealed output in its workspace, not yet in the store, and the seconds it took."""

    workspace: Path
    records: tuple[FileRecord, ...]
    stamps: dict[str, Stamp]
    seconds: float


@contextmanager
def step_workspace(layout: Layout, step: Step) -> Iterator[Path]:
    """Provide the directory for a step's files and notes; after a failure a resumable step's workspace is kept.

    After SourceChanged the notes are deleted, because the files may come from a different source.
    """
    workspace = layout.partial(step.key) if step.RESUMABLE else layout.temporary(step.key)
    try:
        _make_workspace(workspace, step)
        yield workspace
    except BaseException as error:  # after an interrupt, too, only resumable output may remain
        if not step.RESUMABLE:
            shutil.rmtree(workspace, ignore_errors=True)
        elif isinstance(error, SourceChanged):
            shutil.rmtree(notes_dir(workspace / "files"))
        raise


def write_output(workspace: Path, step: Step, inputs: Inputs, progress: StepProgress) -> StepOutput:
    """Run a step and seal its output."""
    started, files = time.perf_counter(), workspace / "files"
    known = step.run(files, inputs, progress) or {}
    records, stamps = _seal_output(step, files, known)
    return StepOutput(workspace, records, stamps, time.perf_counter() - started)


def publish_output(layout: Layout, step: Step, output: StepOutput, clock: Callable[[], float]) -> StoreEntry:
    """Make an output the entry of a step's key; `clock` returns the time in seconds since the epoch."""
    failpoint("store.before-entry")
    entry = StoreEntry(
        directory=output.workspace,
        key=step.key,
        name=step.name,
        step_class=type(step).__qualname__,
        files=output.records,
        seconds=output.seconds,
        created=datetime.fromtimestamp(clock(), timezone.utc).isoformat(timespec="seconds"),
    )
    write_entry(entry)
    shutil.rmtree(notes_dir(output.workspace / "files"), ignore_errors=True)
    failpoint("store.before-rename")
    entry = _install(entry, layout.entry(step.key))
    remember_stamps(layout, step.key, output.stamps)
    return entry


def _make_workspace(workspace: Path, step: Step) -> None:
    """Create the directories for a step's output and notes; make files of an earlier run writable again."""
    files = workspace / "files"
    if step.RESUMABLE and files.is_dir():
        for path in scan(files):
            (files / path).chmod(0o644)
    files.mkdir(parents=True, exist_ok=step.RESUMABLE)
    if step.RESUMABLE:
        notes_dir(files).mkdir(exist_ok=True)


def _seal_output(
    step: Step, files_dir: Path, known: Mapping[str, str]
) -> tuple[tuple[FileRecord, ...], dict[str, Stamp]]:
    try:
        return seal_files(files_dir, known)
    except UnsoundError as problem:
        raise StepError(f"invalid output of {step.name}: {problem}; nothing was published") from problem


def _install(entry: StoreEntry, directory: Path) -> StoreEntry:
    directory.parent.mkdir(parents=True, exist_ok=True)
    os.rename(entry.directory, directory)
    failpoint("store.after-rename")
    for parent in (directory.parent, directory.parent.parent):
        fsync_path(parent)
    return entry.model_copy(update={"directory": directory})


class Store:
    """Entries by step key below one directory; any number of processes may share it."""

    def __init__(self, root: Path, clock: Callable[[], float] = time.time) -> None:
        self.root = root
        self.uses = Leases(root, clock)
        self.rates = StepRates(root / "rates.json")
        self._layout = Layout(root)
        self._clock = clock

    def peek(self, key: str) -> Lookup:
        """Return the result of `get` without changing anything on disk."""
        with self._layout.explain_os_errors("reading the store"):
            return find_entry(self._layout, key, remember=False)

    def get(self, key: str) -> Lookup:
        """Return the verified entry of a key; a damaged entry is removed first."""
        with self._layout.explain_os_errors("reading the store"):
            lookup = find_entry(self._layout, key, remember=True)
            if lookup.entry or not self._layout.entry(key).exists():
                return lookup
            with self._layout.lock(key):
                return self._get_locked(key)

    def build(self, step: Step, inputs: Inputs, progress: StepProgress) -> tuple[StoreEntry, bool]:
        """Return the step's entry and whether the step ran here; another process may have built it in the meantime."""
        self._layout.make()
        with self._layout.explain_os_errors(f"building {step.name}; nothing was published"):
            collect(self._layout, "tmp")
            with self._layout.lock(step.key):
                if entry := self._get_locked(step.key).entry:
                    return entry, False
                with step_workspace(self._layout, step) as workspace:
                    output = write_output(workspace, step, inputs, progress)
                    return publish_output(self._layout, step, output, self._clock), True

    def build_unread(
        self, step: Step, inputs: Inputs, progress: StepProgress, sources: SourceDigests
    ) -> tuple[StoreEntry, bool]:
        """Build a step with unread files: they are hashed while it runs, which determines its final key.

        The output stays under the key of the unread step, which names files by identity and times, until it is
        published under the final key. The digests are added to `sources`. Returns the same as `build`.
        """
        self._layout.make()
        with self._layout.explain_os_errors(f"building {step.name}; nothing was published"):
            collect(self._layout, "tmp")
            with self._layout.lock(step.key):
                if entry := self._get_locked(step.key).entry:  # the digests came from the hub and were right
                    return entry, False
                if not unverified_files(
                    known := sources.looked_up(step)
                ):  # the previous holder of the lock has read them
                    return self.build(known, inputs, progress)
                with step_workspace(self._layout, step) as workspace:
                    with ConcurrentHasher(step, sources.digests, progress) as alongside:
                        output = write_output(workspace, step, inputs, alongside)
                        sources.found |= alongside.digests()
                    published = self._publish_as(sources.of(step), step, output)
                alongside.remember()
                return published

    def has_same_shape(self, step: Step) -> bool:
        """Return whether a step that differs at most in its sources' bytes was built; then read the sources first."""
        return self._layout.shape_marker(shape_key(step)).exists()

    def record_shape(self, step: Step) -> None:
        """Record that a step's output is in the store, for `has_alike`."""
        with suppress(OSError):  # on a full disk a later run may repeat a conversion
            note = self._layout.shape_marker(shape_key(step))
            note.parent.mkdir(parents=True, exist_ok=True)
            note.touch()

    def restamp(self, key: str) -> bool:
        """Accept the change times of an entry's files after hard-linking them; False if anything else changed.

        Use it only for an entry that this process fetched or built before it created the links.
        """
        with self._layout.explain_os_errors("reading the store"):
            return refresh_mtimes(self._layout, key)

    def entries(self) -> list[StoreEntry]:
        """Return all entries with a valid document, by key, without checking their files."""
        found = []
        with self._layout.explain_os_errors("reading the store"):
            for key in self._layout.entry_keys():
                with suppress(UnsoundError):
                    found.append(load_entry(self._layout.entry(key), key))
        return found

    def size(self) -> int:
        """Return the total bytes of all entries' files."""
        return sum(entry.total_bytes for entry in self.entries())

    @contextmanager
    def holding(self, keys: Collection[str], user: str) -> Iterator[None]:
        """Protect a build's entries from removal while the block runs; afterwards record that `user` used them."""
        with self.uses.holding(keys):
            try:
                yield
            finally:
                self.uses.note([key for key in keys if self._layout.entry(key).exists()], user)

    def all_resumable_bytes(self) -> int:
        """Return the bytes on disk left by interrupted builds."""
        return sum(self.resumable_bytes(path.name) for path in self._layout.listed("partial"))

    def resumable_bytes(self, key: str) -> int:
        """Return the bytes on disk that an interrupted build of a key left for the next one."""
        files = self._layout.partial(key) / "files"
        return sum(path.stat().st_blocks * 512 for path in listdir(files) if path.is_file())

    def verify(self) -> list[str]:
        """Hash every file of every entry; return the problems, one line per entry."""
        problems = []
        with self._layout.explain_os_errors("verifying the store"):
            for key in self._layout.entry_keys():
                try:
                    check_files(load_entry(self._layout.entry(key), key), {})
                except UnsoundError as problem:
                    problems.append(f"{key}: {problem}")
        return problems

    def remove(self, key: str) -> bool:
        """Remove the entry of a key; return whether there was one that no running build holds."""
        with (
            self._layout.explain_os_errors("removing an entry"),
            self._layout.lock(key),
            self.uses.unheld(key) as may_go,
        ):
            if may_go and remove_entry(self._layout, key):
                self.uses.forget(key)
                return True
            return False

    def gc(self, keep: set[str]) -> list[str]:
        """Remove entries neither in `keep` nor held, and leftovers of killed builds; return the removed keys."""
        with self._layout.explain_os_errors("cleaning the store"):
            collect(self._layout, "tmp", "partial", "alike")
            return [key for key in self._layout.entry_keys() if key not in keep and self.remove(key)]

    def _publish_as(self, step: Step, unread: Step, output: StepOutput) -> tuple[StoreEntry, bool]:
        """Publish the output of an unread step under its final key, unless that entry already exists."""
        self.uses.hold_too(step.key)
        with nullcontext() if step.key == unread.key else self._layout.lock(step.key):
            if not (entry := self._get_locked(step.key).entry):
                return publish_output(self._layout, step, output, self._clock), True
        shutil.rmtree(output.workspace)
        return entry, False

    def _get_locked(self, key: str) -> Lookup:
        lookup = find_entry(self._layout, key, remember=True)
        if not lookup.entry and remove_entry(self._layout, key):
            return Lookup(None, f"{lookup.why}, evicted")
        return lookup
