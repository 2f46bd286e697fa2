# SPDX-License-Identifier: Apache-2.0
"""Store of step outputs by step key; a kill or a full disk never leaves a partial entry.

Handles locking: which operations need a key's lock, and the repeated lookup after acquiring it. Entries are used only
after their files were verified (lookup.py). layout.py defines the paths.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

from trtspec.store.entry import StoreEntry, UnsoundError, check_files, load_entry
from trtspec.store.gc import collect, remove_entry
from trtspec.store.layout import Layout, listdir
from trtspec.store.lazy_digests import ConcurrentHasher, SourceDigests, shape_key, unverified_files
from trtspec.store.leases import Leases
from trtspec.store.lookup import Lookup, find_entry, refresh_mtimes
from trtspec.store.publish import StepOutput, publish_output, step_workspace, write_output
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.store.throughput import StepRates


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
