# SPDX-License-Identifier: Apache-2.0
"""Bounded reads of untrusted files, atomic and durable writes of files and directories, file identity, copies, locks.

The store and artifacts are built on this module. pydantic is imported lazily, because servers import this module and do
not need pydantic.

A directory is replaced atomically: readers see the old one or the new one, never a partial one. If a writer is killed,
the next writer deletes its temporary files.

    .NAME.lock            locked during the replacement
    .NAME.tmp-<random>    the new directory while it is filled; after the swap, the old one while it is deleted
    .NAME.old-<random>    the old directory until the new one is in place, on a file system that cannot swap
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar, cast

if TYPE_CHECKING:
    from filelock import BaseFileLock


def failpoint(name: str) -> None:
    """Kill this process without clean-up if the environment variable TRTSPEC_FAILPOINT is `name`; for crash tests."""
    if os.environ.get("TRTSPEC_FAILPOINT") == name:
        os.kill(os.getpid(), signal.SIGKILL)


_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_ROOT = 0
_SYNC_FILE_RANGE_WRITE = 2
_FICLONE = 0x40049409
_CANNOT_RESERVE = {errno.EINVAL, errno.EOPNOTSUPP}
_CANNOT_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}

WRITEBACK_BYTES = 8 << 20
SYNC_THREADS = 8

T = TypeVar("T")
R = TypeVar("R")


UNREAD = "unread"  # placeholder for the digest of a file that has not been read
AbsentFile = tuple[str, int, int]  # digest or UNREAD, bytes and mtime in ns of an absent file


class UnreadableFile(OSError):
    """A file that trtspec refuses to read; `strerror` is the reason."""


def describe_read_error(error: OSError) -> str:
    """Return the reason why a file could not be read, for use in a message."""
    return str(error.strerror) if isinstance(error, UnreadableFile) else f"cannot be read: {error.strerror}"


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading.

    Raises UnreadableFile for a directory, pipe, socket or device, and OSError if the file cannot be opened. With
    `follow=False`, which is meant for untrusted directories, a symbolic link at `path` also raises UnreadableFile.
    """
    return os.fdopen(_open_regular(path, follow=follow), "rb")


def _open_regular(path: Path, *, follow: bool) -> int:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # a blocking open of a pipe would wait for a writer
    try:
        descriptor = os.open(path, flags if follow else flags | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise UnreadableFile(None, "a symbolic link, which is not followed here", str(path)) from None
        if error.errno in (errno.ENXIO, errno.ENODEV):  # a socket, or a device without a driver
            raise UnreadableFile(None, "not a regular file", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnreadableFile(None, "not a regular file", str(path))
    return descriptor


def read_bounded(path: Path, max_bytes: int, *, follow: bool = True) -> bytes:
    """Return the bytes of a regular file of at most `max_bytes` bytes.

    Raises UnreadableFile for a larger file or one that grows during the read; otherwise raises like `open_regular`,
    which also explains `follow`.
    """
    descriptor = _open_regular(path, follow=follow)
    try:
        size = os.fstat(descriptor).st_size
        if size > max_bytes:
            raise UnreadableFile(None, f"larger than {max_bytes:,} bytes", str(path))
        data = bytearray()
        while piece := os.read(descriptor, size + 1 - len(data)):
            data += piece
            if len(data) > size:
                raise UnreadableFile(None, "it grew while it was being read", str(path))
        return bytes(data)
    finally:
        os.close(descriptor)


def read_typed(form: type[T], path: Path, max_bytes: int) -> T:
    """Parse a JSON file into the dataclass `form`; raises OSError as `read_bounded`, ValueError as `parse_typed`."""
    return parse_typed(form, read_bounded(path, max_bytes))


def parse_typed(form: type[T], data: bytes) -> T:
    """Parse a JSON object into the dataclass `form`, without type coercion.

    Raises ValueError for invalid JSON, missing keys and values of other types. Unknown keys are ignored, so that later
    versions can add keys.
    """
    try:
        found: T = _reader(cast(Any, form)).validate_json(data, strict=True)
    except ValueError as error:
        first = error.errors()[0] if hasattr(error, "errors") else {"loc": (), "msg": str(error)}
        place = ".".join(map(str, first["loc"]))
        raise ValueError(f"{place}: {first['msg']}" if place else str(first["msg"])) from None
    return found


@cache
def _reader(form: Any) -> Any:
    from pydantic import TypeAdapter  # lazy: servers import this module and do not use it

    return TypeAdapter(form)


def file_identity(path: Path) -> str:
    """Return a string of the file's device, inode, size, mtime and ctime; it changes whenever the file is written."""
    stat = path.stat()
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"


def is_guarded(path: Path) -> bool:
    """Return True if only this user or root owns and may write the file.

    Parent directories are not checked. Replacing the file through them is detectable, because the new file has another
    inode and change time.
    """
    status = path.stat()
    if status.st_uid not in (_ROOT, os.geteuid()) or status.st_mode & stat.S_IWOTH:
        return False
    return not status.st_mode & stat.S_IWGRP or _is_private_group(status.st_gid)


@cache
def _is_private_group(gid: int) -> bool:
    """Return True if the group is root's or this user's own and contains no other user."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return group.gr_name in (user, "root") and {*group.gr_mem} <= {user, "root"}


def changed_ns(path: Path) -> int:
    """Return the later of a file's mtime and ctime in nanoseconds; a writer can set only the mtime to any value."""
    status = path.stat()
    return max(status.st_mtime_ns, status.st_ctime_ns)


def files_fingerprint(paths: Sequence[Path]) -> str:
    """Return a SHA-256 over the names and identities of files, which detects files that change during a read.

    The fingerprint changes even if a file is replaced by one with the same bytes.
    """
    return hashlib.sha256(repr([(path.name, file_identity(path)) for path in paths]).encode()).hexdigest()


def private_directory(path: Path) -> Path:
    """Create a directory with mode 0700, or set that mode on an existing directory; parents keep their mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.chmod(0o700)
    return path


def private_file(path: Path) -> BinaryIO:
    """Create a file with mode 0600 and open it for writing, after deleting an existing file or link of that name."""
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def map_in_threads(work: Callable[[T], R], items: Sequence[T], threads: int | None = None) -> list[R]:
    """Return `[work(item) for item in items]`, computed by `threads` threads (default: one per core).

    Only work that releases the GIL, such as hashing or I/O, gains from this. After an error, no further item is
    started.
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


def fsync_path(path: Path) -> None:
    """Flush a file's bytes, or a directory's entries, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directories(root: Path, files: Sequence[Path] = ()) -> None:
    """Flush the entries of all directories in the tree at `root`, and the bytes of `files`, to the disk.

    The disk flushes its cache once for all calls of fsync that wait at the same time, so threads make them.
    """
    map_in_threads(fsync_path, [*files, *(Path(each) for each, _, _ in os.walk(root))], SYNC_THREADS)


def copy_tree(source: Path, out: Path, *, without: str = "", follow_links: bool = True) -> None:
    """Copy a directory tree to the new directory `out`, except entries named `without`.

    Unlike shutil.copytree, which collects errors and keeps only their messages, it stops at the first OSError.
    """
    out.mkdir(parents=True)
    for path in sorted(source.iterdir()):
        if path.name == without:
            continue
        if path.is_dir() and (follow_links or not path.is_symlink()):
            copy_tree(path, out / path.name, without=without, follow_links=follow_links)
        else:
            shutil.copy2(path, out / path.name, follow_symlinks=follow_links)


def reserve_space(descriptor: int, nbytes: int) -> None:
    """Set a file's size and, if supported, allocate its disk space, so that a full disk is detected early."""
    try:
        os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:  # network file systems do not support it
        if error.errno not in _CANNOT_RESERVE:
            raise
        os.ftruncate(descriptor, nbytes)


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of `data` at byte `offset` of an open file, without moving the file position."""
    rest = memoryview(data).cast("B")
    while rest.nbytes:
        done = os.pwrite(descriptor, rest, offset)
        if done <= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rest, offset = rest[done:], offset + done


class SequentialWriter:
    """Writes an open file from byte `position` on; the disk writes while more bytes arrive.

    Linux starts to write a file only after seconds, so a final fsync would wait for nearly all of its bytes.
    """

    def __init__(self, descriptor: int, position: int = 0) -> None:
        self.position = position
        self._descriptor, self._started = descriptor, position

    def write(self, data: bytes | memoryview) -> None:
        """Write all of `data` at the position, and move it."""
        write_all(self._descriptor, data, self.position)
        self.position += len(data)
        if self.position - self._started >= WRITEBACK_BYTES:
            _start_writeback(self._descriptor, self._started, self.position - self._started)
            self._started = self.position


def _start_writeback(descriptor: int, begin: int, nbytes: int) -> None:
    """Make the kernel start to write a range of a file to the disk, without waiting; the caller still needs fsync."""
    if (call := _sync_file_range()) is not None:
        call(descriptor, begin, nbytes, _SYNC_FILE_RANGE_WRITE)  # after an error, fsync writes the bytes


@cache
def _sync_file_range() -> Any:
    """Return the system call sync_file_range(2), or None on other systems than Linux."""
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if call is not None:
        call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return call


def share_blocks(source: int, target: int) -> bool:
    """Give the open empty file `target` the content of `source` without copying; return whether that was possible.

    Btrfs, XFS and some network file systems can, within one file system: both files then share their blocks until one
    of them is written (FICLONE, ioctl_ficlonerange(2)).
    """
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:  # whatever the reason, the caller copies
        return False
    return True


def can_share_blocks(source: Path, directory: Path) -> bool:
    """Return whether a new file in `directory` could share the blocks of `source`; this leaves no file behind."""
    try:
        with open_regular(source) as original:
            trial = os.open(directory, os.O_TMPFILE | os.O_WRONLY)  # Linux has it, and only Linux has FICLONE
            try:
                return share_blocks(original.fileno(), trial)
            finally:
                os.close(trial)
    except (OSError, AttributeError):
        return False


def replace_file(
    path: Path, data: bytes, *, mode: int = 0o666, nbytes: int = 0, follow: bool = True, durable: bool = True
) -> None:
    """Atomically replace the file `path` with `data`, zero-extended to at least `nbytes` bytes.

    The temporary file in the same directory has a random name and is created exclusively, so an attacker cannot plant a
    link under that name. A link at `path` is replaced, not followed. With `follow=False`, the parent directory must not
    be a link either. With `durable=False`, the new content may be lost in a power failure. `mode` is subject to the
    umask. Raises OSError with `path` as its file name.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    with _naming(path):
        directory = os.open(path.parent, flags if follow else flags | os.O_NOFOLLOW)
        try:
            _replace_in(directory, path.name, data, mode, nbytes, durable=durable)
            if durable:
                os.fsync(directory)
        finally:
            os.close(directory)


def _replace_in(directory: int, name: str, data: bytes, mode: int, nbytes: int, *, durable: bool) -> None:
    temporary = temporary_name(name)
    create = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, create, mode, dir_fd=directory)
    try:
        try:
            write_all(descriptor, data, 0)
            if nbytes > len(data):
                os.ftruncate(descriptor, nbytes)
            if durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise


def temporary_name(name: str) -> str:
    """Return an unpredictable name for the temporary file that will be renamed to `name`."""
    return f".{name[:80]}.{secrets.token_hex(8)}.tmp"


def create_file(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Create a file with content `data`; raise FileExistsError if `path` exists, even as a dangling link."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        write_all(descriptor, data, 0)
    finally:
        os.close(descriptor)


def file_lock(path: Path, timeout_s: float = -1) -> BaseFileLock:
    """Return an unacquired inter-process lock at `path`; OSErrors while it is acquired contain the path."""
    return _named_lock()(path, timeout_s)


@cache
def _named_lock() -> type[BaseFileLock]:
    from filelock import FileLock

    class NamedLock(FileLock):
        def _acquire(self) -> None:
            with _naming(Path(self.lock_file)):
                super()._acquire()

    return NamedLock


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add `path` to each OSError of the block, because calls relative to a directory descriptor do not report it."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from None


def swap_directories(one: Path, other: Path) -> bool:
    """Atomically exchange two directories; return False if the kernel or file system does not support it.

    Raises OSError for any other failure.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        return False
    if not libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        return True
    if ctypes.get_errno() in _CANNOT_EXCHANGE:
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))


@contextmanager
def exclusive_writer(out: Path) -> Iterator[None]:
    """Lock the directory `out` against other writers within the block, after cleaning up after killed writers."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(out.with_name(f".{out.name}.lock")):
        remove_leftovers(out)
        yield


def temporary_sibling(out: Path, kind: str) -> Path:
    """Return an unused random path next to `out`; `kind` is "tmp" or "old" (see the module's docstring)."""
    return out.with_name(f".{out.name}.{kind}-{secrets.token_hex(8)}")


def is_free(out: Path) -> bool:
    """Return True if `out` does not exist or is an empty directory."""
    return not out.exists() or (out.is_dir() and not any(out.iterdir()))


def replace_directory(temporary: Path, out: Path) -> None:
    """Move the directory `temporary` to `out`, replacing a directory there; call it within `exclusive_writer`.

    The replaced directory keeps a temporary name, which `remove_leftovers` deletes.
    """
    failpoint("publish.before-swap")
    if is_free(out):
        os.rename(temporary, out)
    elif not swap_directories(temporary, out):
        os.rename(out, temporary_sibling(out, "old"))
        failpoint("publish.between-renames")
        os.rename(temporary, out)
    failpoint("publish.after-swap")
    fsync_path(out.parent)


def remove_leftovers(out: Path) -> None:
    """Delete the temporary directories of `out`; restore the old directory first if a killed writer left none."""
    left = re.compile(rf"\.{re.escape(out.name)}\.(tmp|old)-[0-9a-f]{{16}}")
    for path in sorted(out.parent.iterdir()):
        match = left.fullmatch(path.name)
        if match and match[1] == "old" and not out.exists():
            os.rename(path, out)
        elif match:
            shutil.rmtree(path, ignore_errors=True)  # the next clean-up tries again
