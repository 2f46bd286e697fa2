# SPDX-License-Identifier: Apache-2.0
"""Files outside the store as input of a step, identified by content, not by location.

A plan may leave large files unread. They are hashed while a step reads them; the step's key is final afterwards.
"""

from __future__ import annotations

import operator
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from threading import Condition
from types import TracebackType
from typing import Any, cast

from trtspec.core.errors import SourceChanged, StepError, TrtspecError
from trtspec.core.files import UNREAD, AbsentFile, file_identity, map_in_threads
from trtspec.core.hashing import ParallelFileHasher, background_thread_count
from trtspec.core.paths import hub_cache_dir
from trtspec.core.processes import available_memory
from trtspec.store.digest import DigestCache, ensure_unchanged
from trtspec.store.step import Step, StepProgress


@dataclass(frozen=True)
class Files:
    """Files directly below `root`: (name, SHA-256) each, sorted by name.

    A plan may leave large files unread and use a placeholder that identifies the file instead of its digest; then
    `is_read` is False and the plan's keys are not the final keys. `unproven` names the files that still have to be
    hashed: unread files and files whose digest comes from the hub. `identities` detect replacement of the files after
    their digests were taken.
    """

    root: Path = field(metadata={"key": False})
    digests: tuple[tuple[str, str], ...]
    stats: tuple[tuple[int, int], ...] = field(metadata={"key": False})
    unproven: tuple[str, ...] = field(default=(), metadata={"key": False})
    identities: tuple[str, ...] = field(default=(), metadata={"key": False})

    @property
    def is_read(self) -> bool:
        return not any(digest.startswith(UNREAD) for _, digest in self.digests)

    @property
    def paths(self) -> list[Path]:
        return [self.root / name for name, _ in self.digests]

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Raise SourceChanged at the end of the block, also after an exception, if a file was changed or replaced."""
        try:
            yield
        finally:
            for path, before in zip(self.paths, self.identities, strict=True):
                if not path.is_file() or file_identity(path) != before:
                    raise SourceChanged("the file changed during the build", where=str(path), hint="build again")


class FileReader:
    """Determines the digests of source files; files with a cached digest are not read.

    If the files without a cached digest exceed `unread_above` bytes together, they stay unread. `on_bytes` receives
    the size of each piece read, from several threads. `absent` gives records for files that do not exist here: these
    suffice for a plan, and a step that reads such a file fails.
    """

    def __init__(
        self,
        digests: DigestCache,
        unread_above: int | None = None,
        on_bytes: Callable[[int], None] | None = None,
        absent: Mapping[Path, AbsentFile] | None = None,
    ) -> None:
        self._digests = digests
        self._absent = absent or {}
        self._unread_above = unread_above
        self._on_bytes = on_bytes

    def read(self, root: Path, paths: Iterable[Path]) -> Files:
        """Return the files below `root`; StepError if one cannot be read."""
        paths = sorted(paths)
        try:
            # before hashing, so that later changes are detected
            identities = tuple("" if path in self._absent else file_identity(path) for path in paths)
            stats = tuple(map(self._stat, paths))
            known = {path: self._cached_digest(path) for path in paths}
            unknown = [path for path, digest in known.items() if digest is None]
            unproven: tuple[str, ...] = ()
            if self._unread_above is not None and sum(self._stat(path)[0] for path in unknown) > self._unread_above:
                found = [digest or hub_digest(path) or _unread(path) for path, digest in known.items()]
                unproven = tuple(path.name for path in unknown)
            else:
                digests = map_in_threads(lambda path: self._digests.digest(path, self._on_bytes), unknown)
                read = dict(zip(unknown, digests, strict=True))
                found = [digest or read[path] for path, digest in known.items()]
        except OSError as error:
            raise StepError(f"cannot be read: {error.strerror}", where=str(error.filename)) from None
        named = tuple(zip((path.name for path in paths), found, strict=True))
        return Files(root, named, stats, unproven, identities)

    def _stat(self, path: Path) -> tuple[int, int]:
        """Return the size and the modification time of a file."""
        if path in self._absent:
            return self._absent[path][1:]
        status = path.stat()
        return status.st_size, status.st_mtime_ns

    def _cached_digest(self, path: Path) -> str | None:
        return self._absent[path][0] if path in self._absent else self._digests.lookup(path)


def hub_digest(path: Path) -> str | None:
    """Return the SHA-256 that the hub reports for a file of its cache: the name of the blob that a snapshot links to.

    Only files stored in LFS or Xet have such a name (huggingface_hub, file_download.py: the blob's name is the ETag);
    other files are named by git's digest, which is shorter.
    """
    blob = Path(os.path.realpath(path))
    is_kept = blob.parent.name == "blobs" and blob.is_relative_to(os.path.realpath(hub_cache_dir()))
    return blob.name if is_kept and re.fullmatch("[0-9a-f]{64}", blob.name) else None


def _unread(path: Path) -> str:
    return f"{UNREAD} {file_identity(path)}"


TICK_S = 0.02  # file times advance in ticks of at most 10 ms
LEAD_BYTES = 256 << 20  # hashing and the step stay close enough to share the page cache
SHARE_OF_MEMORY = 4  # up to a quarter of the free memory may hold data that waits to be hashed


def step_files(step: Step) -> Iterator[Files]:
    """Yield the files that a step reads itself; files of its dependencies are excluded."""
    yield from _files_in(tuple(getattr(step, field.name) for field in fields(step)))  # type: ignore[arg-type]


def unverified_files(step: Step) -> dict[Path, str]:
    """Return the files of a step that still have to be hashed, with their supposed digests."""
    return {
        files.root / name: digest
        for files in step_files(step)
        for name, digest in files.digests
        if name in files.unproven
    }


def is_read(step: Step) -> bool:
    """Return whether the digests of all files that a step reads itself are known."""
    return all(files.is_read for files in step_files(step))


def shape_key(step: Step) -> str:
    """Return a key that is equal for steps that differ only in the bytes of files of equal name and size."""

    def change(files: Files) -> Files:
        sizes = zip(files.digests, files.stats, strict=True)
        return replace(files, digests=tuple((name, f"{size} bytes") for (name, _), (size, _) in sizes))

    return cast(Step, _with_files(step, change)).key


def _with_files(value: Any, change: Callable[[Files], Files]) -> Any:
    """Return a step, or a value within one, with `change` applied to its files; the value itself if none changes."""
    if isinstance(value, Files):
        return change(value)
    if type(value) is tuple:
        new = tuple(_with_files(each, change) for each in value)
        return value if all(map(operator.is_, new, value)) else new
    if not is_dataclass(value) or isinstance(value, type):
        return value
    old = {field.name: getattr(value, field.name) for field in fields(value)}
    changed = {name: now for name, before in old.items() if (now := _with_files(before, change)) is not before}
    return replace(value, **changed) if changed else value


class ConcurrentHasher(StepProgress):
    """Hashes a step's unproven files in threads while the step runs, and acts as the step's progress.

    Hashing stays within `LEAD_BYTES` of the step. The step, which may report much in one call, stays within a share of
    the free memory of the hashing, so that each file is read from disk once. Only the one that is ahead waits, so they
    cannot deadlock. Data that an earlier run has processed is hashed as well.
    """

    def __init__(self, step: Step, digests: DigestCache, progress: StepProgress) -> None:
        self._step, self._digests, self._progress = step, digests, progress
        self._supposed = unverified_files(step)
        self._identities: dict[Path, str] = {}
        self._hashed = self._read = self._resumed = 0
        self._most_ahead = max(LEAD_BYTES, available_memory() // SHARE_OF_MEMORY)
        self._moved, self._is_over = Condition(), False
        self._pool = ThreadPoolExecutor(1, "source")
        self._paths = sorted(self._supposed)
        self._files = ParallelFileHasher(self._paths, self._on_hashed, self._may_hash_more, self._on_found)

    def __enter__(self) -> ConcurrentHasher:
        self._identities = {path: _settled(path) for path in self._supposed}
        self._work: Future[list[str]] = self._pool.submit(
            self._files.digests, background_thread_count(len(self._paths))
        )
        self._work.add_done_callback(lambda _: self._wake())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._files.stop()
        self._pool.shutdown(cancel_futures=True)

    def advance(self, n_bytes: int) -> None:
        """Count bytes that the step read; wait while it is far ahead of hashing, and raise errors found by hashing."""
        with self._moved:
            self._read += n_bytes
        self._files.wake()
        with self._moved:  # unbounded: hashing makes progress
            self._moved.wait_for(lambda: self._read - self._hashed <= self._most_ahead or self._work.done())
        if self._work.done():
            self._result()
        self._progress.advance(n_bytes)

    def resume(self, n_bytes: int) -> None:
        """Count bytes that an earlier run read; they are hashed, and the step does not wait for that."""
        with self._moved:
            self._resumed += n_bytes
        self._files.wake()
        self._progress.resume(n_bytes)

    def set_message(self, text: str) -> None:
        self._progress.set_message(text)

    def digests(self) -> dict[Path, str]:
        """Return the digests after the step; SourceChanged if a file changed or differs from its hub digest."""
        self._is_over = True
        self._files.wake()
        self._files.join_in()  # this thread is otherwise idle
        found = dict(zip(self._paths, self._result(), strict=True))
        with _as_change():
            ensure_unchanged(self._identities)
        return found

    def remember(self) -> None:
        """Cache the digests. Call this after publishing, or a kill in between would make the output unreachable."""
        found = zip(self._paths, self._work.result(), strict=True)
        with suppress(TrtspecError, OSError):  # files that changed since are not cached
            self._digests.learn({path: (self._identities[path], digest) for path, digest in found})

    def _result(self) -> list[str]:
        with _as_change():
            return self._work.result()

    def _on_found(self, number: int, digest: str) -> None:
        path = self._paths[number]
        supposed = self._supposed[path]
        if not supposed.startswith(UNREAD) and supposed != digest:
            message = f"the file is damaged: its SHA-256 is {digest}, the hub lists {supposed}"
            raise SourceChanged(message, where=str(path), hint="remove it and build again to download it anew")

    def _on_hashed(self, count: int) -> None:
        with self._moved:
            self._hashed += count
            self._moved.notify_all()

    def _may_hash_more(self) -> bool:
        return self._hashed - self._read - self._resumed <= LEAD_BYTES or self._is_over

    def _wake(self) -> None:
        with self._moved:
            self._moved.notify_all()


class SourceDigests:
    """The source digests found while a plan's steps run; `cache` has those of earlier runs."""

    def __init__(self, cache: DigestCache) -> None:
        self.cache = cache
        self.found: dict[Path, str] = {}

    def complete(self, step: Step) -> Step:
        """Return a step with the digests found so far; the step itself if that changes nothing."""
        return cast(Step, _with_files(step, self._complete_files))

    def read(self, step: Step) -> Step:
        """Return a step with all its sources read."""
        paths = list(unverified_files(step))
        self.found |= dict(zip(paths, map_in_threads(self.cache.digest, paths), strict=True))
        return self.complete(step)

    def with_cached_digests(self, step: Step) -> Step:
        """Return a step with the digests that other processes have cached since, if they suffice."""
        if not (paths := unverified_files(step)):
            return step
        self.cache.reload()
        known = {path: self.cache.lookup(path) for path in paths}
        self.found |= {path: digest for path, digest in known.items() if digest}
        return self.complete(step) if all(known.values()) else step

    def _complete_files(self, files: Files) -> Files:
        here = {name: self.found[files.root / name] for name in files.unproven if files.root / name in self.found}
        digests = tuple((name, here.get(name, digest)) for name, digest in files.digests)
        left = tuple(name for name in files.unproven if name not in here)
        return replace(files, digests=digests, unproven=left) if here else files


def _files_in(value: object) -> Iterator[Files]:
    if isinstance(value, Files):
        yield value
    elif type(value) is tuple:
        for each in value:
            yield from _files_in(each)
    elif is_dataclass(value) and not isinstance(value, Step | type):
        yield from _files_in(tuple(getattr(value, field.name) for field in fields(value)))


@contextmanager
def _as_change() -> Iterator[None]:
    """Convert errors about a source to SourceChanged, which invalidates the step's output."""
    try:
        yield
    except TrtspecError as error:
        raise SourceChanged(error.message, where=error.where, hint=error.hint) from None


def _settled(path: Path) -> str:
    """Return a file's identity once any later write is certain to change it."""
    if abs(time.time() - path.stat().st_ctime) < TICK_S:
        time.sleep(TICK_S)
    return file_identity(path)
