# SPDX-License-Identifier: Apache-2.0
"""Atomic replacement of a directory: readers see the old one or the new one, never a partial one.

    .NAME.lock            held during the replacement
    .NAME.tmp-<random>    the new directory while it is filled; after the swap, the old one while it is deleted
    .NAME.old-<random>    the old directory until the new one is in place, on a file system that cannot swap

The next writer cleans up after a writer that was killed.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtspec.core.failpoint import failpoint
from trtspec.core.files import file_lock, fsync_path, swap_directories


@contextmanager
def exclusive_writer(out: Path) -> Iterator[None]:
    """Lock `out` against other writers and delete what killed writers left next to it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(out.with_name(f".{out.name}.lock")):
        remove_leftovers(out)
        yield


def temporary_sibling(out: Path, kind: str) -> Path:
    """Return a new random name in the directory of `out`."""
    return out.with_name(f".{out.name}.{kind}-{secrets.token_hex(8)}")


def is_free(out: Path) -> bool:
    """Return whether `out` does not exist or is an empty directory."""
    return not out.exists() or (out.is_dir() and not any(out.iterdir()))


def replace_directory(temporary: Path, out: Path) -> None:
    """Move the new directory to `out` and the old one, if any, to a name that `remove_leftovers` deletes."""
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
    """Delete temporary directories of `out`; restore the old directory if the new one was never put in place."""
    left = re.compile(rf"\.{re.escape(out.name)}\.(tmp|old)-[0-9a-f]{{16}}")
    for path in sorted(out.parent.iterdir()):
        match = left.fullmatch(path.name)
        if match and match[1] == "old" and not out.exists():
            os.rename(path, out)
        elif match:
            shutil.rmtree(path, ignore_errors=True)  # the next clean-up tries again
