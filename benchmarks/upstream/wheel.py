# SPDX-License-Identifier: Apache-2.0
"""Read single members of a wheel, on disk or through HTTP range requests, without importing any of its code.

The index's digest identifies a remote wheel but cannot be verified without a complete download. Each member is
verified by its CRC-32.
"""

from __future__ import annotations

import ast
import io
import re
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Protocol

from benchmarks.upstream.fetch import Fetcher, FetchError, public_url
from benchmarks.upstream.index import IndexFile

BLOCK = 1 << 16
BUDGET = 96 << 20  # bytes of one wheel
REQUEST = 8 << 20  # bytes of one request
GAP = 1 << 18  # unneeded bytes between two members that are cheaper than another request
MEMBER = 8 << 20  # bytes of an uncompressed member


class Sources(Protocol):
    """The Python sources of a release; `sha256` is the digest of its file, "" without one."""

    name: str
    version: str
    sha256: str
    read_members: set[str]

    def names(self) -> list[str]:
        """Return the paths of all members."""

    def text(self, path: str) -> str:
        """Return a member's text, or "" if it is missing."""

    def tree(self, path: str) -> ast.Module:
        """Return the syntax tree of a member, empty if it is missing."""


class Wheel:
    """A wheel's members; raise FetchError for a wheel that cannot be read."""

    def __init__(self, name: str, file: IO[bytes], sha256: str = "") -> None:
        self.name, self.sha256, self.file = name, sha256, file
        self.version = name.split("-")[1]
        self.read_members: set[str] = set()
        self.trees: dict[str, ast.Module] = {}
        try:
            self.archive = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise FetchError(f"{name}: {error}") from error
        self.infos = {info.filename: info for info in self.archive.infolist()}

    def names(self) -> list[str]:
        return list(self.infos)

    def text(self, path: str) -> str:
        info = self.infos.get(path)
        if info is None:
            return ""
        if info.file_size > MEMBER:
            raise FetchError(f"{self.name}: {path} has {info.file_size} bytes, more than {MEMBER}")
        self.read_members.add(path)
        try:
            return self.archive.read(info).decode("utf-8-sig")
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            UnicodeDecodeError,
            NotImplementedError,
            RuntimeError,
        ) as error:
            raise FetchError(f"{self.name}: {path}: {error}") from error

    def tree(self, path: str) -> ast.Module:
        if path not in self.trees:
            try:
                self.trees[path] = ast.parse(self.text(path))
            except (SyntaxError, ValueError, RecursionError) as error:
                raise FetchError(f"{self.name}: {path}: {error}") from error
        return self.trees[path]

    def prefetch(self, names: Iterable[str]) -> None:
        """Fetch the members' bytes in few requests; without effect for a wheel on disk."""
        if not isinstance(self.file, RangeFile):
            return
        starts = sorted(info.header_offset for info in self.infos.values())
        ends = dict(zip(starts, [*starts[1:], self.archive.start_dir], strict=True))
        wanted = [self.infos[name].header_offset for name in names if name in self.infos]
        self.file.fetch_spans([(start, ends[start]) for start in wanted])


class RangeFile(io.RawIOBase):
    """A remote file of known size as a seekable binary file that fetches the blocks it reads, in bounded requests."""

    def __init__(self, url: str, size: int, fetcher: Fetcher, budget: int = BUDGET) -> None:
        super().__init__()
        self.url, self.size, self.fetcher, self.budget = url, size, fetcher, budget
        self.position = 0
        self.blocks: dict[int, bytes] = {}
        self.requests = self.fetched = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.position, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError("negative position")
        self.position = base + offset
        return self.position

    def read(self, size: int = -1) -> bytes:
        end = self.size if size < 0 else min(self.position + size, self.size)
        if end <= self.position:
            return b""
        self.fetch_spans([(self.position, end)])
        first = self.position // BLOCK
        joined = b"".join(self.blocks[number] for number in range(first, (end - 1) // BLOCK + 1))
        found = joined[self.position - first * BLOCK : end - first * BLOCK]
        self.position = end
        return found

    def fetch_spans(self, spans: list[tuple[int, int]]) -> None:
        """Fetch the blocks of byte ranges (start, end); raise FetchError if they exceed the budget."""
        needed = {number for start, end in spans for number in range(start // BLOCK, (end - 1) // BLOCK + 1)}
        for first, last in _runs(sorted(needed - self.blocks.keys())):
            self._fetch(first * BLOCK, min((last + 1) * BLOCK, self.size))

    def _fetch(self, start: int, end: int) -> None:
        self.fetched += end - start
        if self.fetched > self.budget:
            raise FetchError(f"{public_url(self.url)}: more than {self.budget} bytes are needed of it")
        response = self.fetcher.get(self.url, end - start, {"Range": f"bytes={start}-{end - 1}"})
        self.requests += 1
        self._check(response.status, response.headers.get("content-range", ""), start, end, len(response.body))
        for offset in range(0, end - start, BLOCK):
            self.blocks[(start + offset) // BLOCK] = response.body[offset : offset + BLOCK]

    def _check(self, status: int, content_range: str, start: int, end: int, length: int) -> None:
        if status != 206:
            raise FetchError(f"{public_url(self.url)}: the server does not support range requests (status {status})")
        told = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", content_range)
        if not told or (int(told[1]), int(told[2])) != (start, end - 1) or length != end - start:
            wrong = f"asked for bytes {start}-{end - 1}, got {length} bytes as {content_range!r}"
            raise FetchError(f"{public_url(self.url)}: {wrong}")
        if told[3] != str(self.size):
            raise FetchError(f"{public_url(self.url)}: has {told[3]} bytes, not {self.size} as the index states")


def _runs(numbers: list[int]) -> list[tuple[int, int]]:
    """Return the first and last number of each run of blocks; small gaps join runs, up to the size of a request."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        first, last = runs[-1] if runs else (number, -1)
        if runs and (number - last - 1) * BLOCK <= GAP and (number - first + 1) * BLOCK <= REQUEST:
            runs[-1] = (first, number)
        else:
            runs.append((number, number))
    return [part for first, last in runs for part in _parts(first, last)]


def _parts(first: int, last: int) -> list[tuple[int, int]]:
    step = REQUEST // BLOCK
    return [(start, min(start + step - 1, last)) for start in range(first, last + 1, step)]


def open_remote(file: IndexFile, fetcher: Fetcher) -> Wheel:
    """Return a wheel of the index; raise FetchError if the server does not support ranges."""
    if not file.size:
        raise FetchError(f"{file.name}: the index does not state its size")
    return Wheel(file.name, RangeFile(file.url, file.size, fetcher), file.sha256)  # type: ignore[arg-type]


def open_local(path: Path) -> Wheel:
    """Return a wheel on disk."""
    return Wheel(path.name, path.open("rb"))
