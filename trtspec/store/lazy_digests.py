# SPDX-License-Identifier: Apache-2.0
"""Sources that nobody has read yet: they are hashed while a step reads them, and its key is final after that."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from threading import Condition
from types import TracebackType
from typing import Any, cast

from trtspec.core.errors import SourceChanged, TrtspecError
from trtspec.core.files import UNREAD, identity_of, in_threads
from trtspec.core.hashing import FilesBeside, threads_beside
from trtspec.core.processes import available_memory
from trtspec.store.digest import DigestCache, ensure_unchanged
from trtspec.store.files import Files
from trtspec.store.step import Progress, Step

TICK_S = 0.02  # times of files move in ticks of at most 10 ms
LEAD_BYTES = 256 << 20  # what one reads the other finds in the page cache
SHARE_OF_MEMORY = 4  # a quarter of what is free may wait there to be hashed


def files_of(step: Step) -> Iterator[Files]:
    """Yield the files that a step reads itself, not those of the steps that it depends on."""
    yield from _files_in(tuple(getattr(step, field.name) for field in fields(step)))  # type: ignore[arg-type]


def unproven(step: Step) -> dict[Path, str]:
    """Return the files of a step that have to be hashed, with their supposed digests."""
    return {
        files.root / name: digest
        for files in files_of(step)
        for name, digest in files.digests
        if name in files.unproven
    }


def proven(step: Step, found: Mapping[Path, str]) -> Step:
    """Return a step with the digests that were found of its files; itself where none is its."""

    def change(files: Files) -> Files:
        here = {name: found[files.root / name] for name in files.unproven if files.root / name in found}
        digests = tuple((name, here.get(name, digest)) for name, digest in files.digests)
        left = tuple(name for name in files.unproven if name not in here)
        return replace(files, digests=digests, unproven=left) if here else files

    return cast(Step, _with_files(step, change))


def alike_key(step: Step) -> str:
    """Return what steps have in common that are equal but for the bytes of files of one name and size."""

    def change(files: Files) -> Files:
        sizes = zip(files.digests, files.stats, strict=True)
        return replace(files, digests=tuple((name, f"{size} bytes") for (name, _), (size, _) in sizes))

    return cast(Step, _with_files(step, change)).key


def _with_files(value: Any, change: Callable[[Files], Files]) -> Any:
    """Return a step, or anything in one, with its files changed; itself where none is."""
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


class Alongside:
    """Hashes a step's unproven files in threads of its own while the step runs, and is the step's progress meanwhile.

    Hashing stays within `LEAD_BYTES` of the step, and the step, which may count much at once, within a share of the
    free memory of the hashing, so that a disk is read once. Each is told to wait by what the other has read, never
    both: neither can wait for ever. What an earlier run of the step has done is hashed meanwhile.
    """

    def __init__(self, step: Step, digests: DigestCache, progress: Progress) -> None:
        self._step, self._digests, self._progress = step, digests, progress
        self._supposed = unproven(step)
        self._identities: dict[Path, str] = {}
        self._hashed = self._read = self._resumed = 0
        self._most_ahead = max(LEAD_BYTES, available_memory() // SHARE_OF_MEMORY)
        self._moved, self._is_over = Condition(), False
        self._pool = ThreadPoolExecutor(1, "source")
        self._paths = sorted(self._supposed)
        self._files = FilesBeside(self._paths, self._on_hashed, self._has_room, self._on_found)

    def __enter__(self) -> Alongside:
        self._identities = {path: _settled(path) for path in self._supposed}
        self._work: Future[list[str]] = self._pool.submit(self._files.digests, threads_beside(len(self._paths)))
        self._work.add_done_callback(lambda _: self._wake())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._files.stop()
        self._pool.shutdown(cancel_futures=True)

    def advance(self, n_bytes: int) -> None:
        """Count what the step has read; waits where it is far ahead, raises what is wrong with what was hashed."""
        with self._moved:
            self._read += n_bytes
        self._files.wake()
        with self._moved:  # unbounded: files are being hashed
            self._moved.wait_for(lambda: self._read - self._hashed <= self._most_ahead or self._work.done())
        if self._work.done():
            self._result()
        self._progress.advance(n_bytes)

    def resume(self, n_bytes: int) -> None:
        """Count what an earlier run has read: it has to be hashed, and nothing waits for that."""
        with self._moved:
            self._resumed += n_bytes
        self._files.wake()
        self._progress.resume(n_bytes)

    def say(self, text: str) -> None:
        """Tell people in words what is being done."""
        self._progress.say(text)

    def digests(self) -> dict[Path, str]:
        """Return the files' digests once the step is over; SourceChanged where one is not what it was or is called."""
        self._is_over = True
        self._files.wake()
        self._files.join_in()  # this thread has nothing else to do
        found = dict(zip(self._paths, self._result(), strict=True))
        with _as_change():
            ensure_unchanged(self._identities)
        return found

    def remember(self) -> None:
        """Remember the digests, once the output is published: earlier a kill would leave it under a key of no use."""
        found = zip(self._paths, self._work.result(), strict=True)
        with suppress(TrtspecError, OSError):  # a file that has changed since is unknown again
            self._digests.learn({path: (self._identities[path], digest) for path, digest in found})

    def _result(self) -> list[str]:
        with _as_change():
            return self._work.result()

    def _on_found(self, number: int, digest: str) -> None:
        path = self._paths[number]
        supposed = self._supposed[path]
        if not supposed.startswith(UNREAD) and supposed != digest:
            message = f"its SHA-256 is {digest}, and the hub calls it {supposed}: it is damaged"
            raise SourceChanged(message, where=str(path), hint="remove it and build again, which downloads it")

    def _on_hashed(self, count: int) -> None:
        with self._moved:
            self._hashed += count
            self._moved.notify_all()

    def _has_room(self) -> bool:
        return self._hashed - self._read - self._resumed <= LEAD_BYTES or self._is_over

    def _wake(self) -> None:
        with self._moved:
            self._moved.notify_all()


class Sources:
    """What becomes known of a plan's sources while its steps run."""

    def __init__(self, digests: DigestCache) -> None:
        self.digests = digests
        self.found: dict[Path, str] = {}

    def of(self, step: Step) -> Step:
        """Return a step as far as its sources are known by now."""
        return proven(step, self.found)

    def read(self, step: Step) -> Step:
        """Return a step with all its sources read now."""
        paths = list(unproven(step))
        self.found |= dict(zip(paths, in_threads(self.digests.digest, paths), strict=True))
        return self.of(step)

    def looked_up(self, step: Step) -> Step:
        """Return a step with what is known of its sources since another process has read them."""
        self.digests.reload()
        known = {path: self.digests.lookup(path) for path in unproven(step)}
        self.found |= {path: digest for path, digest in known.items() if digest}
        return self.of(step)


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
    """Raise what is wrong with a source as what makes a step's work of no use."""
    try:
        yield
    except TrtspecError as error:
        raise SourceChanged(error.message, where=error.where, hint=error.hint) from None


def _settled(path: Path) -> str:
    """Return a file's identity at a time when every later writing changes it."""
    if abs(time.time() - path.stat().st_ctime) < TICK_S:
        time.sleep(TICK_S)
    return identity_of(path)
