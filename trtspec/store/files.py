# SPDX-License-Identifier: Apache-2.0
"""Source files outside the store as inputs of steps, identified by content instead of location.

A plan may leave large files unread. A build reads each of them once and caches the digest. If no entry of the store can
have been built from them, a step hashes them while it reads them, and its key is known when it has run.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, cast

from trtspec.core.errors import SourceChanged, StepError
from trtspec.core.files import UNREAD, AbsentFile, file_identity, map_in_threads, open_regular
from trtspec.core.hashing import GrowingDigest, Segments, combine_segments, digest_and_sha256, file_digests
from trtspec.core.paths import hub_cache_dir
from trtspec.store.digest import DigestCache
from trtspec.store.step import FoundDigests, Inputs, Step

SAMPLE_BYTES = 4096


@dataclass(frozen=True)
class Files:
    """Source files directly below `root`, as pairs (name, digest) sorted by name.

    A plan may leave large files unread and use a placeholder that identifies the file instead of its digest. Then
    `is_read` is False, and the plan's keys are not the final keys. `stats` are pairs (bytes, modification time in ns).
    `identities` detect replacement of the files after their digests were taken. `samples` are digests of a few bytes of
    each file, "" for a file that does not exist on this machine.
    """

    root: Path = field(metadata={"key": False})
    digests: tuple[tuple[str, str], ...]
    stats: tuple[tuple[int, int], ...] = field(metadata={"key": False})
    identities: tuple[str, ...] = field(default=(), metadata={"key": False})
    samples: tuple[str, ...] = field(default=(), metadata={"key": False})

    @property
    def is_read(self) -> bool:
        return not any(digest.startswith(UNREAD) for _, digest in self.digests)

    @property
    def paths(self) -> list[Path]:
        return [self.root / name for name, _ in self.digests]

    @property
    def unread(self) -> dict[Path, int]:
        """Return the size in bytes of each unread file."""
        each = zip(self.paths, self.digests, self.stats, strict=True)
        return {path: size for path, (_, digest), (size, _) in each if digest.startswith(UNREAD)}

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Context manager that raises SourceChanged at its end, also after an exception, if a file changed."""
        try:
            yield
        finally:
            for path, before in zip(self.paths, self.identities, strict=True):
                if not path.is_file() or file_identity(path) != before:
                    raise SourceChanged("the file changed during the build", where=str(path), hint="build again")

    def found_digests(self, segments: Mapping[Path, Segments]) -> dict[Path, tuple[str, str]]:
        """Return the identity and the digest of each unread file from its segments, for `Inputs.found_digests`."""
        identities, unread = dict(zip(self.paths, self.identities, strict=True)), self.unread
        return {path: (identities[path], combine_segments(segments[path], unread[path])) for path in unread}

    def with_digests(self, found: FoundDigests) -> Files:
        """Return the files with the digests in `found` instead of placeholders."""
        named = zip(self.paths, self.digests, strict=True)
        return replace(self, digests=tuple((name, found.get(path, ("", digest))[1]) for path, (name, digest) in named))

    def without_digests(self) -> Files:
        """Return the files with samples and sizes instead of digests."""
        each = zip(self.digests, self.samples, self.stats, strict=True)
        return replace(self, digests=tuple((name, f"{sample} {size}") for (name, _), sample, (size, _) in each))


def find_files(step: Step) -> list[Files]:
    """Return the files outside the store that a step reads, without those of the steps that it depends on."""
    return [files for each in fields(step) for files in _find_files(getattr(step, each.name))]  # type: ignore[arg-type]


def _find_files(value: object) -> Iterator[Files]:
    if isinstance(value, Files):
        yield value
    elif isinstance(value, tuple):
        yield from (files for each in value for files in _find_files(each))
    elif is_dataclass(value) and not isinstance(value, Step):
        yield from (files for each in fields(value) for files in _find_files(getattr(value, each.name)))


def with_digests(step: Step, found: FoundDigests) -> Step:
    """Return a step whose files, and those of the steps that it depends on, have the digests in `found`."""
    return replace_files(step, lambda files: files.with_digests(found)) if found else step


def shape_key(step: Step) -> str:
    """Return a step's key with samples and sizes of source files instead of their digests.

    Equal files have equal samples. If no entry of the store has the shape of a step with unread files, then it has none
    that the step could use.
    """
    return replace_files(step, Files.without_digests).key


def replace_files(step: Step, change: Callable[[Files], Files], *, in_inputs: bool = True) -> Step:
    """Return a step in which `change` was applied to all Files, also in the steps that it depends on if `in_inputs`.

    The same object is returned if nothing changes.
    """
    return cast(Step, _replace_fields(step, change, in_inputs=in_inputs))


def _replace_fields(value: Any, change: Callable[[Files], Files], *, in_inputs: bool) -> Any:
    changed = {each.name: _replace(getattr(value, each.name), change, in_inputs) for each in fields(value) if each.init}
    changed = {name: found for name, found in changed.items() if found is not getattr(value, name)}
    return replace(value, **changed) if changed else value


def _replace(value: Any, change: Callable[[Files], Files], in_inputs: bool) -> Any:
    if isinstance(value, Files):
        return change(value)
    if type(value) is tuple:
        found = tuple(_replace(each, change, in_inputs) for each in value)
        return found if any(new is not old for new, old in zip(found, value, strict=True)) else value
    if not is_dataclass(value) or isinstance(value, type) or (isinstance(value, Step) and not in_inputs):
        return value
    return _replace_fields(value, change, in_inputs=in_inputs)


@contextmanager
def read_sources(sources: Sequence[Files], inputs: Inputs) -> Iterator[Mapping[Path, GrowingDigest]]:
    """Context manager of a step that reads `sources`; yields the digests of unread files, to which it adds its bytes.

    At the end, bytes that the step did not read are read, and the digests are recorded in `inputs`. Raises
    SourceChanged, also after an exception, if a file changed.
    """
    with ExitStack() as unchanged:
        for files in sources:
            unchanged.enter_context(files.unchanged())
        growing = {path: GrowingDigest(size) for files in sources for path, size in files.unread.items()}
        yield growing
        segments = {path: _finish(path, digest) for path, digest in growing.items()}
        for files in sources:
            inputs.found_digests |= files.found_digests(segments)


def _finish(path: Path, digest: GrowingDigest) -> Segments:
    with open_regular(path) as file:
        return digest.finish(file.fileno(), path)


class FileReader:
    """Determines the digests of source files; files with a cached digest are not read.

    If the files without a cached digest exceed `unread_above` bytes together, they stay unread. `on_bytes` receives the
    size of each piece read, from several threads. `absent` has records of files that do not exist on this machine. They
    suffice for a plan, and a step that reads such a file fails. `for_build` is set if the plan is to be run.
    """

    def __init__(
        self,
        digests: DigestCache,
        unread_above: int | None = None,
        on_bytes: Callable[[int], None] | None = None,
        absent: Mapping[Path, AbsentFile] | None = None,
        *,
        for_build: bool = False,
    ) -> None:
        self.for_build = for_build
        self._digests = digests
        self._absent = absent or {}
        self._unread_above = unread_above
        self._on_bytes = on_bytes

    def read(self, root: Path, paths: Iterable[Path]) -> Files:
        """Return the digests of `paths`, which are directly below `root`.

        Raises StepError if a file cannot be read, or if a download differs from the file that the hub lists.
        """
        paths = sorted(paths)
        try:
            # before hashing, so that later changes are detected
            identities = {path: "" if path in self._absent else file_identity(path) for path in paths}
            stats = {path: self._stat(path) for path in paths}
            samples = ["" if path in self._absent else _sample(path, stats[path][0]) for path in paths]
            found = {path: self._cached_digest(path) for path in paths}
            unknown = [path for path in paths if found[path] is None]
            if self._unread_above is not None and sum(stats[path][0] for path in unknown) > self._unread_above:
                found |= {path: f"{UNREAD} {identities[path]}" for path in unknown}
            else:
                read = self._hash(unknown)
                self._digests.learn({path: (identities[path], digest) for path, digest in read.items()})
                found |= read
        except OSError as error:
            raise StepError(f"cannot be read: {error.strerror}", where=str(error.filename)) from None
        named = tuple((path.name, digest or "") for path, digest in found.items())
        return Files(root, named, tuple(stats.values()), tuple(identities.values()), tuple(samples))

    def _hash(self, paths: Sequence[Path]) -> dict[Path, str]:
        """Return the digests of files; downloads from the hub are also compared with the hub's SHA-256."""
        downloads = [path for path in paths if hub_digest(path)]
        others = [path for path in paths if path not in downloads]
        return {
            **dict(zip(others, file_digests(others, self._on_bytes), strict=True)),
            **dict(zip(downloads, map_in_threads(self._hash_download, downloads), strict=True)),
        }

    def _hash_download(self, path: Path) -> str:
        digest, sha256 = digest_and_sha256(path, self._on_bytes)
        if sha256 != (listed := hub_digest(path)):
            message = f"the file is damaged: its SHA-256 is {sha256}, the hub lists {listed}"
            raise StepError(message, where=str(path), hint="remove it and build again to download it anew")
        return digest

    def _stat(self, path: Path) -> tuple[int, int]:
        """Return the size in bytes and the modification time in nanoseconds of a file."""
        if path in self._absent:
            return self._absent[path][1:]
        status = path.stat()
        return status.st_size, status.st_mtime_ns

    def _cached_digest(self, path: Path) -> str | None:
        return self._absent[path][0] if path in self._absent else self._digests.lookup(path)


def _sample(path: Path, nbytes: int) -> str:
    """Return a digest of bytes in the middle of a file: weights of different models differ there."""
    with open_regular(path) as file:
        return hashlib.sha256(os.pread(file.fileno(), SAMPLE_BYTES, nbytes // 2)).hexdigest()


def hub_digest(path: Path) -> str | None:
    """Return the SHA-256 that the Hugging Face hub lists for a file in its cache, or None for other files.

    It is the name of the blob that a snapshot links to. Only files stored in LFS or Xet have such a name
    (huggingface_hub, file_download.py: the blob's name is the ETag). Other files are named by git's digest, which is
    shorter.
    """
    blob = Path(os.path.realpath(path))
    is_kept = blob.parent.name == "blobs" and blob.is_relative_to(os.path.realpath(hub_cache_dir()))
    return blob.name if is_kept and re.fullmatch("[0-9a-f]{64}", blob.name) else None
