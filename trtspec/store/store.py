# SPDX-License-Identifier: Apache-2.0
"""Store of step outputs by step key; a kill or a full disk never leaves a partial entry.

A step writes to a workspace; its output is sealed and moved into place with one rename. This module handles locking:
which operations need a key's lock, and the repeated lookup after acquiring it. Entries are used only after their files
were verified (entry.py). layout.py defines the paths. With a remote store (remote.py), a missing output is fetched from
there before the step is run, and an output that the remote lacks is sent to it.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Literal

from trtspec.core.errors import SourceChanged, StepError
from trtspec.core.files import failpoint, fsync_path
from trtspec.store.digest import DigestCache
from trtspec.store.entry import (
    Lookup,
    SealedFiles,
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
from trtspec.store.files import shape_key, with_digests
from trtspec.store.layout import Layout, collect, listdir, remove_entry
from trtspec.store.records import Leases, StepRates
from trtspec.store.remote import Remote, Start
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Obtained:
    """A step with the final key, its verified entry, and whether it was a hit, fetched from the remote, or built."""

    step: Step
    entry: StoreEntry
    status: Literal["hit", "fetched", "built"]

    @property
    def built(self) -> bool:
        """Whether the step was run."""
        return self.status == "built"


class Store:
    """Entries by step key below one directory, which any number of processes may share.

    `remote` is the store from which `obtain` fetches, and to which it sends. `digests` caches the digests of files
    outside the store, in a file next to its root.
    """

    def __init__(self, root: Path, clock: Callable[[], float] = time.time, remote: Remote | None = None) -> None:
        self.root = root
        self.remote = remote
        self.uses = Leases(root, clock)
        self.rates = StepRates(root)
        self._layout = Layout(root)
        self._clock = clock

    @cached_property
    def digests(self) -> DigestCache:
        return DigestCache(self.root.with_name("digests.json"))

    def peek(self, key: str) -> Lookup:
        """Return the verified entry of a key, like `get`, without changing anything on disk."""
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

    def obtain(
        self, step: Step, inputs: Inputs | None = None, start: Start = lambda total_bytes: StepProgress()
    ) -> Obtained:
        """Return a step's output, fetching it or running the step if it is missing.

        `start` is called with the bytes of each transfer or run, and returns the receiver of its progress. The remote
        store has the output afterwards, unless it failed. A step with unread files runs under its provisional key; its
        entry has the key with the digests that it found.
        """
        lookup = self.get(step.key)
        if lookup.entry:
            obtained = Obtained(step, lookup.entry, "hit")
        else:
            doing = "fetching or building" if self.remote else "building"
            log.info("%s: %s; %s it as %s", step.name, lookup.why, doing, step.key)
            obtained = self._fetch_or_build(step, inputs or Inputs({}), start, start(step.total_bytes))
        if self.remote and step.is_shared and obtained.status != "fetched":
            self.remote.offer(obtained.step, obtained.entry, start)
        return obtained

    def has_shapes(self, steps: Iterable[Step]) -> bool:
        """Return whether an entry may be the output of one of `steps`, although the steps have unread files."""
        return not {entry.shape for entry in self.entries()}.isdisjoint(map(shape_key, steps))

    def fetch(self, step: Step, start: Start = lambda total_bytes: StepProgress()) -> StoreEntry | None:
        """Return a step's output from this store or the remote one, or None; the step is not run."""
        entry = self.get(step.key).entry
        if entry or not self.remote or not step.is_shared:
            return entry
        self._layout.make()
        with self._layout.explain_os_errors(f"fetching {step.name}"), self._layout.lock(step.key):
            return self._get_locked(step.key).entry or self._receive(self.remote, step, start)

    def _fetch_or_build(self, step: Step, inputs: Inputs, start: Start, progress: StepProgress) -> Obtained:
        """Publish the output of a step, unless another process has done so in the meantime."""
        self._layout.make()
        with self._layout.explain_os_errors(f"building {step.name}; nothing was published"):
            collect(self._layout, "tmp")
            with self._layout.lock(step.key):
                if entry := self._get_locked(step.key).entry:
                    return Obtained(step, entry, "hit")
                if self.remote and step.is_shared:
                    if entry := self._receive(self.remote, step, start):
                        return Obtained(step, entry, "fetched")
                    progress = start(step.total_bytes)
                started, is_resumed = time.perf_counter(), bool(self.resumable_bytes(step.key))
                with self._workspace(step) as workspace:
                    output = _write_output(workspace / "files", step, inputs, progress)
                    seconds = time.perf_counter() - started
                    final = with_digests(step, inputs.found_digests)
                    publish = self._publish if final.key == step.key else self._publish_found
                    entry = publish(final, workspace, output, seconds)
            self.digests.learn(inputs.found_digests)
        if not is_resumed:
            self.rates.note(step, seconds)
        return Obtained(final, entry, "built")

    def _receive(self, remote: Remote, step: Step, start: Start) -> StoreEntry | None:
        """Fetch and publish a step's output, or return None; the caller holds the step's lock."""
        workspace = self._layout.incoming(step.key)
        received = remote.receive(step, workspace / "files", start)
        if received is None:
            shutil.rmtree(workspace, ignore_errors=True)
            return None
        failpoint("store.received")
        output = seal_files(workspace / "files", {record.path: record.segments for record in received.files})
        entry = self._publish(step, workspace, output, received.seconds)
        shutil.rmtree(self._layout.partial(step.key), ignore_errors=True)
        return entry

    @contextmanager
    def _workspace(self, step: Step) -> Iterator[Path]:
        """Context manager that provides the directory for a step's files and notes.

        After a failure, the workspace of a resumable step is kept. After SourceChanged its notes are deleted, because
        the files may come from a different source.
        """
        workspace = self._layout.partial(step.key) if step.RESUMABLE else self._layout.temporary(step.key)
        files = workspace / "files"
        try:
            if step.RESUMABLE and files.is_dir():
                for path in scan(files):
                    (files / path).chmod(0o644)
            files.mkdir(parents=True, exist_ok=step.RESUMABLE)
            if step.RESUMABLE:
                notes_dir(files).mkdir(exist_ok=True)
            yield workspace
        except BaseException as error:  # after an interrupt, too, only resumable output may remain
            if not step.RESUMABLE:
                shutil.rmtree(workspace, ignore_errors=True)
            elif isinstance(error, SourceChanged):
                shutil.rmtree(notes_dir(files))
            raise

    def _publish_found(self, step: Step, workspace: Path, output: SealedFiles, seconds: float) -> StoreEntry:
        """Publish the output of a step whose key became known as it ran, unless the store has its entry."""
        with self._layout.lock(step.key):
            entry = self._get_locked(step.key).entry
            if entry:
                shutil.rmtree(workspace)
            self.uses.hold(step.key)
            return entry or self._publish(step, workspace, output, seconds)

    def _publish(self, step: Step, workspace: Path, output: SealedFiles, seconds: float) -> StoreEntry:
        """Turn a workspace into the entry of a step with one rename; the caller holds the step's lock."""
        failpoint("store.before-entry")
        directory, (records, stamps) = self._layout.entry(step.key), output
        created = datetime.fromtimestamp(self._clock(), timezone.utc).isoformat(timespec="seconds")
        entry = StoreEntry(
            directory=directory,
            key=step.key,
            name=step.name,
            step_class=type(step).__qualname__,
            files=records,
            seconds=seconds,
            created=created,
            shape=shape_key(step),
        )
        write_entry(entry, workspace)
        shutil.rmtree(notes_dir(workspace / "files"), ignore_errors=True)
        failpoint("store.before-rename")
        directory.parent.mkdir(parents=True, exist_ok=True)
        os.rename(workspace, directory)
        failpoint("store.after-rename")
        for parent in (directory.parent, directory.parent.parent):
            fsync_path(parent)
        remember_stamps(self._layout, step.key, stamps)
        return entry

    def restamp(self, key: str) -> bool:
        """Accept the new change times of an entry's files after hard-linking them.

        Return False if anything else changed. Use it only for an entry that this process fetched or built before it
        created the links.
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

    @contextmanager
    def holding(self, keys: Collection[str], user: str) -> Iterator[None]:
        """Context manager that protects a build's entries from removal, and then records that `user` used them."""
        with self.uses.holding(keys) as held:
            try:
                yield
            finally:
                self.uses.note([key for key in held if self._layout.entry(key).exists()], user)

    def all_resumable_bytes(self) -> int:
        """Return the bytes on disk that interrupted builds of all keys left for later ones."""
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
        """Remove the entry of a key, unless a running build holds it; return True if an entry was removed."""
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
            collect(self._layout, "tmp", "partial", "incoming")
            return [key for key in self._layout.entry_keys() if key not in keep and self.remove(key)]

    def _get_locked(self, key: str) -> Lookup:
        lookup = find_entry(self._layout, key, remember=True)
        if not lookup.entry and remove_entry(self._layout, key):
            return Lookup(None, f"{lookup.why}, evicted")
        return lookup


def _write_output(files: Path, step: Step, inputs: Inputs, progress: StepProgress) -> SealedFiles:
    """Run a step and seal its output; raises StepError if the output has files of unsupported types."""
    known = step.run(files, inputs, progress) or {}
    try:
        return seal_files(files, known)
    except UnsoundError as problem:
        raise StepError(f"invalid output of {step.name}: {problem}; nothing was published") from problem
