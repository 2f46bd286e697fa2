# SPDX-License-Identifier: Apache-2.0
"""Listing, checking and removal of a team store's entries; unlike in a build, failures are errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

from trtspec.core.diagnostics import escape_unprintable
from trtspec.core.errors import TrtspecError
from trtspec.store.entry import StoreEntry
from trtspec.store.registries.download import fetch_document
from trtspec.store.registries.http_client import Patience
from trtspec.store.registries.modelpack import TITLE, ImageManifest, parse_image_manifest
from trtspec.store.registries.repository import Repository, UnknownReference, opened_location
from trtspec.store.registries.transfer import Meter, OnProgress, transfer_all
from trtspec.store.team.documents import CREATED, USED, entry_tag, read_entry, tagged_key

T = TypeVar("T")
UNKNOWN = datetime.fromtimestamp(0, timezone.utc)
LOOKS_UP, REMOVES = "look up entries", "remove entries"


@dataclass(frozen=True)
class RemoteUsage:
    """An entry of a team store, as its manifest describes it; no build can hold it.

    `last_used` is the day of the last use by a machine that may write to the team store.
    """

    key: str
    name: str
    total_bytes: int
    created: datetime
    last_used: datetime
    is_held: bool = False


def list_remote(address: str, on_progress: OnProgress, patience: Patience | None = None) -> list[RemoteUsage]:
    """Return the entries of a team store, by key; raises TrtspecError if it cannot be read."""
    return [each for each in _for_each(address, patience, on_progress, _read_usage) if each]


def check_remote(
    address: str, own: Callable[[str], StoreEntry | None], on_progress: OnProgress, patience: Patience | None = None
) -> list[str]:
    """Check the documents of all entries, and that their blobs are present; return the problems, one line per entry.

    `own` returns this machine's entry of a key, if it has one. An entry that differs from it is a problem.
    """

    def check(repository: Repository, key: str) -> str:
        try:
            problem = _check_entry(repository, address, key, own(key))
        except TrtspecError as error:
            problem = error.message
        return f"{key}: {problem}" if problem else ""

    return list(filter(None, _for_each(address, patience, on_progress, check)))


def remove_remote(address: str, keys: Sequence[str], on_progress: OnProgress, patience: Patience | None = None) -> None:
    """Remove entries; raises TrtspecError if the location does not remove them."""
    with opened_location(address, patience, for_writing=True) as (repository, _):
        on_progress(REMOVES, 0, len(keys))
        repository.remove([entry_tag(key) for key in keys])
        on_progress(REMOVES, len(keys), len(keys))


def _read_usage(repository: Repository, key: str) -> RemoteUsage | None:
    with suppress(UnknownReference):  # removed in the meantime
        try:
            image = parse_image_manifest(key, repository.manifest(entry_tag(key)))
        except UnknownReference:
            raise
        except TrtspecError:
            return RemoteUsage(key, "(damaged)", 0, UNKNOWN, UNKNOWN)
        created, used = (_time(image, name) for name in (CREATED, USED))
        name = escape_unprintable(image.annotations.get(TITLE, ""))[:100]
        return RemoteUsage(key, name, image.total_bytes, created, max(created, used))
    return None


def _time(image: ImageManifest, name: str) -> datetime:
    with suppress(ValueError):
        found = datetime.fromisoformat(image.annotations.get(name, ""))
        return found if found.tzinfo else found.replace(tzinfo=timezone.utc)
    return UNKNOWN


def _check_entry(repository: Repository, where: str, key: str, own: StoreEntry | None) -> str:
    """Return the problem of an entry, or ""."""
    image = parse_image_manifest(where, repository.manifest(entry_tag(key)))
    document = fetch_document(repository, where, "the entry's document", image.config)
    found = read_entry(where, key, image, document)
    for path, blob in found.blobs.items():
        if not repository.has_blob(blob.digest, blob.size):
            return f"files/{path} is missing"
    if own and own.files != found.document.files:
        return "this machine has another output for this key"
    return ""


def _for_each(
    address: str, patience: Patience | None, on_progress: OnProgress, work: Callable[[Repository, str], T]
) -> list[T]:
    """Return `work(repository, key)` for the keys of all entries, in their order; a new location has none."""
    with opened_location(address, patience) as (repository, opening):
        tags: list[str] = []
        with suppress(UnknownReference):
            tags = repository.tags()
        keys = sorted(key for tag in tags if (key := tagged_key(tag)))
        meter = Meter(LOOKS_UP, len(keys), opening.stopped, on_progress)
        meter(0)

        def count(key: str) -> T:
            found = work(repository, key)
            meter(1)
            return found

        return transfer_all(count, keys, opening.stopped, repository)
