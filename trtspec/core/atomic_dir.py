# SPDX-License-Identifier: Apache-2.0
"""Puts a directory at its place whole: whoever looks there sees the old one or the new one, never a part.

    .NAME.lock            held while one is put there
    .NAME.tmp-<random>    the new one while it is filled; after the swap, the old one while it is deleted
    .NAME.old-<random>    the old one, on a file system that cannot swap, until the new one is in place

What one that was killed leaves is put right by the next that comes.
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
from trtspec.core.files import exchange, file_lock, sync


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep others away from `out`, and delete first what one that was killed left there."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with file_lock(out.with_name(f".{out.name}.lock")):
        clean_up(out)
        yield


def sibling(out: Path, kind: str) -> Path:
    """Return a new name beside `out`."""
    return out.with_name(f".{out.name}.{kind}-{secrets.token_hex(8)}")


def is_free(out: Path) -> bool:
    """Return whether nothing, or an empty directory, lies there."""
    return not out.exists() or (out.is_dir() and not any(out.iterdir()))


def put_in_place(temporary: Path, out: Path) -> None:
    """Leave the new directory at `out` and the old one, if any, at a name that `clean_up` deletes."""
    failpoint("publish.before-swap")
    if is_free(out):
        os.rename(temporary, out)
    elif not exchange(temporary, out):
        os.rename(out, sibling(out, "old"))
        failpoint("publish.between-renames")
        os.rename(temporary, out)
    failpoint("publish.after-swap")
    sync(out.parent)


def clean_up(out: Path) -> None:
    """Delete what this or one that was killed left; bring the old one back where no new one came."""
    left = re.compile(rf"\.{re.escape(out.name)}\.(tmp|old)-[0-9a-f]{{16}}")
    for path in sorted(out.parent.iterdir()):
        match = left.fullmatch(path.name)
        if match and match[1] == "old" and not out.exists():
            os.rename(path, out)
        elif match:
            shutil.rmtree(path, ignore_errors=True)  # what resists is met again the next time
