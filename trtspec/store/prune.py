# SPDX-License-Identifier: Apache-2.0
"""Selection and removal of store entries that are old or exceed a size limit, least recently used first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Protocol, TypeVar

from trtspec.store.entry import StoreEntry
from trtspec.store.store import Store


@dataclass(frozen=True)
class EntryUsage:
    """A store entry with its recipes and its last use; `is_held` is true while a running build needs it."""

    entry: StoreEntry
    recipes: tuple[str, ...]
    last_used: datetime
    is_held: bool

    @property
    def key(self) -> str:
        return self.entry.key

    @property
    def total_bytes(self) -> int:
        return self.entry.total_bytes


class Usage(Protocol):
    """What the selection needs of an entry here or in a team store."""

    @property
    def key(self) -> str: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def last_used(self) -> datetime: ...
    @property
    def is_held(self) -> bool: ...


U = TypeVar("U", bound=Usage)


@dataclass(frozen=True)
class PruneLimits:
    """Retention limits: maximum seconds since the last use, and maximum total bytes; None for no limit."""

    older_than_s: float | None = None
    max_bytes: int | None = None


@dataclass(frozen=True)
class PruneResult:
    """The removed keys, the freed bytes, and the bytes that remain because artifacts link to the files."""

    keys: tuple[str, ...] = ()
    freed_bytes: int = 0
    linked_bytes: int = 0


def list_usage(store: Store) -> list[EntryUsage]:
    """Return the usage of all entries, by key; an entry without a recorded use counts as used when it was built."""
    held = store.uses.held()
    return [_entry_usage(store, entry, entry.key in held) for entry in store.entries()]


def _entry_usage(store: Store, entry: StoreEntry, is_held: bool) -> EntryUsage:
    noted = store.uses.of(entry.key)
    times = [datetime.fromtimestamp(each, timezone.utc) for each in noted.values()]
    return EntryUsage(entry, tuple(sorted(noted)), max([*times, datetime.fromisoformat(entry.created)]), is_held)


def select_prunable(
    uses: Sequence[U], limits: PruneLimits, now: datetime, keep: Collection[str] = frozenset()
) -> list[U]:
    """Return the entries beyond the limits, least recently used first.

    Entries that a build holds, or whose keys are in `keep`, count but are not returned.
    """
    size, found = sum(each.total_bytes for each in uses), []
    for each in sorted(uses, key=lambda each: each.last_used):
        is_old = limits.older_than_s is not None and (now - each.last_used).total_seconds() > limits.older_than_s
        is_too_much = limits.max_bytes is not None and size > limits.max_bytes
        if (is_old or is_too_much) and not each.is_held and each.key not in keep:
            found.append(each)
            size -= each.total_bytes
    return found


def remove(store: Store, chosen: Sequence[EntryUsage], *, dry_run: bool) -> PruneResult:
    """Remove entries, or only report them with `dry_run`; entries that a running build holds are kept."""
    gone, freed, total = [], 0, 0
    for entry in (each.entry for each in chosen):
        own = _unshared_bytes(entry)
        if dry_run or store.remove(entry.key):
            gone.append(entry.key)
            freed, total = freed + own, total + entry.total_bytes
    return PruneResult(tuple(gone), freed, total - freed)


def clear_rest(store: Store, removed: PruneResult, *, dry_run: bool) -> PruneResult:
    """Remove all remaining entries that no build holds, such as damaged ones, and leftovers of interrupted builds.

    Return `removed` with the additional keys and bytes. With `dry_run`, nothing is removed and only leftovers are
    counted.
    """
    left = store.all_resumable_bytes()
    more = () if dry_run else tuple(store.gc(keep=set()))
    freed = left if dry_run else left - store.all_resumable_bytes()
    return replace(removed, keys=removed.keys + more, freed_bytes=removed.freed_bytes + freed)


def by_recipe(uses: Sequence[EntryUsage]) -> list[tuple[str, int, int]]:
    """Return `(recipe, number of entries, total bytes)` for each recipe; a shared entry counts for each one."""
    names = sorted({name for each in uses for name in each.recipes})
    own = {name: [each.entry.total_bytes for each in uses if name in each.recipes] for name in names}
    return [(name, len(sizes), sum(sizes)) for name, sizes in own.items()]


def _unshared_bytes(entry: StoreEntry) -> int:
    stats = (path.lstat() for record in entry.files if (path := entry.files_dir / record.path).exists())
    return sum(stat.st_size for stat in stats if stat.st_nlink == 1)
