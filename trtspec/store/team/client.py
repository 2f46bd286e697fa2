# SPDX-License-Identifier: Apache-2.0
"""Fetching and sending of store entries; every failure is a warning, after which the build continues by itself.

The team store is any location of registries/locations. Bytes on arrival are verified by the SHA-256 of the image
manifest and by the BLAKE3 segments of the entry's document. They do not prove that the output belongs to the key:
users with write access are trusted (docs/team-store.md).
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from threading import Event, Lock

from trtspec.core.diagnostics import escape_unprintable
from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.core.files import failpoint, map_in_threads
from trtspec.core.hashing import copy_hashed
from trtspec.store.entry import StoreEntry, UnsoundError, scan
from trtspec.store.file_records import FileRecord
from trtspec.store.registries.blobs import BlobIndex
from trtspec.store.registries.download import download_file, fetch_document
from trtspec.store.registries.http_client import Patience
from trtspec.store.registries.modelpack import parse_image_manifest
from trtspec.store.registries.repository import (
    Opening,
    Repository,
    UnknownReference,
    open_location,
    opened_location,
)
from trtspec.store.registries.transfer import Meter, buffer_bytes, transfer_all
from trtspec.store.registries.upload import Uploads
from trtspec.store.remote import Received, Start
from trtspec.store.step import Step, StepProgress
from trtspec.store.team.documents import (
    RemoteEntry,
    entry_tag,
    read_entry,
    render_document,
    render_entry_manifest,
    with_use,
)

log = logging.getLogger(__name__)

# A build must not wait for long: a team store that sends less than 1 MiB/s is not worth it.
PATIENCE = Patience(attempts=3, first_pause_s=0.5, longest_pause_s=5.0, read_s=10.0, exchange_s=20.0, transfer_s=60.0)
PAUSE_S = 300.0  # after a failure, the team store is not used for this long
MAX_REFUSED = 3  # wrong entries, after which the team store is not used either
MODES = {"read-write": (True, True), "read": (True, False), "write": (False, True), "compare": (False, False)}
LOOKUP_THREADS = 8
RECENT_S = 10.0


class TeamStore:
    """Entries in a location, by step key; safe for use by several threads.

    `mode` is one of MODES: "compare" neither fetches nor sends, but requires that what this machine builds equals what
    the team store has.
    """

    def __init__(
        self,
        address: str,
        mode: str = "read-write",
        patience: Patience = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.address = address
        self._patience = patience
        self._reads, self._writes = MODES[mode]
        self._compares = mode == "compare"
        self._reading, self._writing = Breaker(clock), Breaker(clock)
        self._lookups: Repository | None = None
        self._lock = Lock()
        self._refused = set[str]()
        self._distrusted = set[str]()
        self._recent: dict[str, tuple[float, bool]] = {}
        self._clock = clock

    def receive(self, step: Step, files: Path, start: Start) -> Received | None:
        """Fetch and verify a step's output below `files`, or return None; see Remote."""
        if not self._reads or not self._reading.is_closed():
            return None
        try:
            if (found := self._look_up(step.key)) is None:
                return None
            if found.document.step_class != type(step).__qualname__:
                raise DigestMismatch("the entry is of another kind of step", where=self.address)
            with self._opened(for_writing=False) as transfer:
                _fetch_files(transfer, found, files, start)
            self._note_use(step.key)
            return Received(found.document.files, found.document.seconds)
        except (DigestMismatch, UnknownReference) as error:
            self._refuse(step, error)
        except (TrtspecError, OSError) as error:
            self._fail(self._reading, error)
            self._writing.open(_describe(error))
        return None

    def offer(self, step: Step, entry: StoreEntry, start: Start) -> None:
        """Send an entry if the team store lacks it, or compare it; see Remote."""
        if self._compares:
            self._compare(step, entry)
        if not self._writes or not self._writing.is_closed():
            return
        try:
            is_damaged = step.key in self._refused | self._distrusted
            if is_damaged or not self._has(step.key):
                self._send(entry, start, replace=is_damaged)
                self._refused.discard(step.key)
                self._distrusted.discard(step.key)
                self._recent.pop(step.key, None)
            else:
                self._note_use(step.key)
        except (TrtspecError, OSError) as error:
            self._fail(self._writing, error)

    def find(self, keys: Collection[str]) -> frozenset[str]:
        """Return the keys whose entries the team store has; none after a failure."""
        if not self._reads or not self._reading.is_closed():
            return frozenset()
        try:
            wanted = [key for key in keys if key not in self._refused]
            present = map_in_threads(self._has_recently, wanted, LOOKUP_THREADS)
            return frozenset(key for key, is_present in zip(wanted, present, strict=True) if is_present)
        except (TrtspecError, OSError) as error:
            self._fail(self._reading, error)
            return frozenset()

    def failure(self) -> str:
        """Return why the team store is not used at present, or "" if it is used."""
        breakers = [breaker for breaker, used in ((self._reading, self._reads), (self._writing, self._writes)) if used]
        return next((breaker.reason for breaker in breakers if not breaker.is_closed()), "")

    def resume(self) -> None:
        """Use the team store again at once, after a failure."""
        self._recent.clear()
        for breaker in (self._reading, self._writing):
            breaker.close()

    def distrust(self, key: str) -> None:
        """Replace the entry of a key by the next output that is offered; see Remote."""
        self._distrusted.add(key)

    def _send(self, entry: StoreEntry, start: Start, *, replace: bool) -> None:
        with self._opened(for_writing=True) as transfer:
            progress = start(entry.total_bytes)
            progress.set_message("sending to the team store")
            meter = Meter("send", entry.total_bytes, transfer.stopped, _advancing(progress))
            uploads = Uploads(transfer.repository, transfer.known, meter, replace=replace)
            files = {entry.files_dir / record.path: record for record in entry.files}
            sha256 = uploads.bring_all(files, transfer.stopped)
            document = render_document(entry)
            transfer.repository.upload_bytes(document)
            failpoint("team.before-publish")
            if replace or not self._has(entry.key):  # of concurrent writers, the first one wins
                transfer.repository.publish(render_entry_manifest(entry, document, sha256), entry_tag(entry.key))

    def _compare(self, step: Step, entry: StoreEntry) -> None:
        """Raise DigestMismatch if the team store has another output than this machine built."""
        found = self._look_up(step.key)
        if found is None or found.document.files == entry.files:
            return
        pairs = {(record.path, record.digest) for record in found.document.files}
        pairs ^= {(record.path, record.digest) for record in entry.files}
        hint = "its builder may have changed it; or the step's tool is not reproducible, as TensorRT's builder is not"
        message = f"{step.name}: this machine's output and the entry {step.key[:12]} differ in {min(pairs)[0]!a}"
        raise DigestMismatch(message, where=self.address, hint=hint)

    def _look_up(self, key: str) -> RemoteEntry | None:
        repository = self._lookup_repository()
        try:
            manifest = repository.manifest(entry_tag(key))
        except UnknownReference:
            return None
        where = f"{self.address}, {entry_tag(key)}"
        try:
            image = parse_image_manifest(where, manifest)
        except TrtspecError as error:
            raise DigestMismatch(error.message, where=where) from None
        return read_entry(where, key, image, fetch_document(repository, where, "the entry's document", image.config))

    def _has(self, key: str) -> bool:
        try:
            self._lookup_repository().manifest(entry_tag(key))
        except UnknownReference:
            return False
        return True

    def _has_recently(self, key: str) -> bool:
        """Like `_has`, without a second request within RECENT_S seconds: a command plans several times."""
        looked_up, is_present = self._recent.get(key, (float("-inf"), False))
        if self._clock() - looked_up > RECENT_S:
            is_present = self._has(key)
            self._recent[key] = self._clock(), is_present
        return is_present

    def _note_use(self, key: str) -> None:
        """Record the day of a use in the entry's manifest, for the removal of unused entries."""
        today = datetime.now(timezone.utc).date().isoformat()
        with suppress(TrtspecError, OSError):  # only the record is lost
            if not self._writes or not self._writing.is_closed():
                return
            if manifest := with_use(self._lookup_repository().manifest(entry_tag(key)), today):
                with self._opened(for_writing=True) as transfer:
                    transfer.repository.publish(manifest, entry_tag(key))

    def _lookup_repository(self) -> Repository:
        """Return the repository of all lookups, whose connections stay open."""
        with self._lock:
            if self._lookups is None:
                if self._writes:
                    with self._opened(for_writing=True):
                        """A new layout in a directory exists afterwards."""
                self._lookups = open_location(self.address, Opening(False, self._patience, Event(), BlobIndex()))
            return self._lookups

    @contextmanager
    def _opened(self, *, for_writing: bool) -> Iterator[_Transfer]:
        """Provide a repository for one transfer: if one of its threads fails, the others stop."""
        with opened_location(self.address, self._patience, for_writing=for_writing) as (repository, opening):
            yield _Transfer(repository, opening.known, opening.stopped)

    def _refuse(self, step: Step, error: TrtspecError) -> None:
        """Warn of an entry with wrong bytes; `offer` replaces it."""
        self._refused.add(step.key)
        log.warning("refused what the team store has of %s: %s", step.name, _describe(error))
        if len(self._refused) >= MAX_REFUSED:
            self._fail(self._reading, TrtspecError(f"{MAX_REFUSED} of its entries are wrong"))

    def _fail(self, breaker: Breaker, error: TrtspecError | OSError) -> None:
        what = "gets nothing from" if breaker is self._reading else "sends nothing to"
        minutes = PAUSE_S / 60
        if breaker.open(_describe(error)):
            log.warning("this machine %s the team store for %.0f minutes: %s", what, minutes, _describe(error))


class Breaker:
    """Circuit breaker: closed, or open for PAUSE_S seconds after a failure, whose reason it keeps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = float("-inf")
        self._lock = Lock()
        self.reason = ""

    def is_closed(self) -> bool:
        return self._clock() >= self._until

    def open(self, reason: str) -> bool:
        """Open the breaker; return whether it was closed."""
        with self._lock:
            was_closed = self.is_closed()
            self._until, self.reason = self._clock() + PAUSE_S, reason
            return was_closed

    def close(self) -> None:
        with self._lock:
            self._until = float("-inf")


@dataclass(frozen=True)
class _Transfer:
    repository: Repository
    known: BlobIndex
    stopped: Event


def _fetch_files(transfer: _Transfer, found: RemoteEntry, files: Path, start: Start) -> None:
    """Fetch the files of an entry; raises DigestMismatch for wrong bytes, and TrtspecError if the disk is too small."""
    records, total = found.document.files, found.document.total_bytes
    _prepare_directory(files, found)
    progress = start(total)
    progress.set_message("fetching from the team store")
    meter = Meter("fetch", total, transfer.stopped, _advancing(progress))
    distinct = {record.digest: record for record in reversed(records)}  # equal files are fetched once

    nbytes = buffer_bytes(record.size for record in distinct.values())

    def fetch(record: FileRecord) -> None:
        download_file(transfer.repository, found.blobs[record.path], record, files / record.path, meter, nbytes)

    largest_first = sorted(distinct.values(), key=lambda record: -record.size)
    transfer_all(fetch, largest_first, transfer.stopped, transfer.repository)
    for record in records:
        if record != (first := distinct[record.digest]):
            (files / record.path).unlink(missing_ok=True)
            copy_hashed(files / first.path, files / record.path, meter)


def _prepare_directory(files: Path, found: RemoteEntry) -> None:
    """Make the directories of an entry's files, and the files of an interrupted fetch writable."""
    paths, present = {record.path for record in found.document.files}, dict[str, list[int]]()
    with suppress(UnsoundError):
        present = scan(files)
    if not present or present.keys() - paths:
        shutil.rmtree(files, ignore_errors=True)
        present = {}
    for path in paths:
        (files / path).parent.mkdir(parents=True, exist_ok=True)
    for path in present:
        (files / path).chmod(0o644)
    needed = found.document.total_bytes - sum(stamp[1] for stamp in present.values())
    if (free := shutil.disk_usage(files).free) < needed:
        message = f"{found.document.name} needs {needed:,} bytes, and {free:,} are free"
        raise TrtspecError(message, where=str(files))


def _advancing(progress: StepProgress) -> Callable[[str, int, int], None]:
    """Return a receiver of absolute progress that advances a step's progress."""
    before = 0

    def advance(what: str, done: int, total: int) -> None:
        nonlocal before
        progress.advance(done - before)
        before = done

    return advance


def _describe(error: TrtspecError | OSError) -> str:
    text = str(error).partition("\nhint: ")[0] if isinstance(error, TrtspecError) else str(error)
    return escape_unprintable(text)[:500]
