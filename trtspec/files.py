# SPDX-License-Identifier: Apache-2.0
"""Files that can be trusted: how one is recorded, and how it reaches the disk for good.

Knows neither the store nor artifacts, which both stand on it, and no pydantic: what serves imports this.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, TypeVar

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_CANNOT_RESERVE = {errno.EINVAL, errno.EOPNOTSUPP}
_CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}

T = TypeVar("T")
R = TypeVar("R")


UNREAD = "unread"  # in place of the SHA-256 of a file that nobody has read
Absent = tuple[str, int, int]  # SHA-256 or UNREAD, bytes and mtime in ns of a file that is not here


class UnfitFile(OSError):
    """What is there is not to be read; `strerror` says why."""


def unreadable(error: OSError) -> str:
    """Return in words why a file was not read."""
    return str(error.strerror) if isinstance(error, UnfitFile) else f"cannot be read: {error.strerror}"


def open_regular(path: Path) -> BinaryIO:
    """Open a file to be read; raises OSError, UnfitFile where it is a directory, a pipe or a device."""
    # an ordinary open of a pipe would wait until somebody writes into it
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnfitFile(None, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a regular file; raises OSError, UnfitFile where it has more than `max_bytes`."""
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise UnfitFile(None, f"larger than {max_bytes:,} bytes", str(path))
    return data


def identity_of(path: Path) -> str:
    """Return what changes with each writing to a file, as far as the system can tell."""
    stat = path.stat()
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def stamp_of(paths: Sequence[Path]) -> str:
    """Return what changes when a file is replaced, were it by the same bytes: what was read meanwhile may differ."""
    return hashlib.sha256(repr([(path.name, identity_of(path)) for path in paths]).encode()).hexdigest()


def private_directory(path: Path) -> Path:
    """Make a directory that only this user sees into, or close one that is there; what is above it stays as it is."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def private_file(path: Path) -> BinaryIO:
    """Open a file of this user alone to be written anew; one that is there, or a link, is replaced."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def in_threads(work: Callable[[T], R], items: Sequence[T], threads: int | None = None) -> list[R]:
    """Return `work` of each item, in order: hashing, reading and waiting leave Python's lock to others.

    After an error nothing is begun any more. Without `threads` there is one for each core.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a directory's list of names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directories(root: Path) -> None:
    """Wait until the names of everything below `root` are on the disk; the files themselves are the caller's."""
    for directory, _, _ in os.walk(root, topdown=False):
        sync(Path(directory))


def copy_tree(source: Path, out: Path, *, without: str = "", follow_links: bool = True) -> None:
    """Copy a directory but for what is called `without`; the first OSError ends it, as it was.

    Of shutil's nothing but the words would be left.
    """
    out.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.name == without:
            continue
        if path.is_dir() and (follow_links or not path.is_symlink()):
            copy_tree(path, out / path.name, without=without, follow_links=follow_links)
        else:
            shutil.copy2(path, out / path.name, follow_symlinks=follow_links)


def reserve(descriptor: int, nbytes: int) -> None:
    """Give a file its size and room on the disk, so that a full one is found before the work; else its size alone."""
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:  # file systems of other machines have no such thing
        if error.errno not in _CANNOT_RESERVE:
            raise
        os.ftruncate(descriptor, nbytes)


def replace_file(path: Path, data: bytes, temporary: Path) -> None:
    """Put `data` at `path` whole or not at all; `temporary` is a name of the caller's on the same file system."""
    temporary.write_bytes(data)
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def exchange(one: Path, other: Path) -> bool:
    """Let two directories change names in one move; False where the system has no such move."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if not libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        return True
    if ctypes.get_errno() in _CANNOT_EXCHANGE:
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))
