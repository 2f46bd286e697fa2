# SPDX-License-Identifier: Apache-2.0
"""Room for what a plan will write: bytes by file system, and whether they are free there.

Knows the sizes of steps from their headers, not how they are written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.store.plan import StepStatus
from trtspec.store.store import Store


@dataclass(frozen=True)
class DiskNeed:
    """What will be written below `path` and what is free there, in bytes; `what` names it for people."""

    what: str
    path: Path
    needed_bytes: int
    free_bytes: int

    @property
    def message(self) -> str:
        """Return both numbers in words."""
        room = f"{amount(self.needed_bytes)} are to be written, {amount(self.free_bytes)} are free"
        return f"no room for the {self.what} at {self.path}: {room}"

    @property
    def is_met(self) -> bool:
        """Return whether there is room."""
        return self.needed_bytes <= self.free_bytes


def plan_disk(status: Sequence[StepStatus], store: Store, out: Path) -> list[DiskNeed]:
    """Return what steps that are not in the store will write there, and what `out` takes where it cannot link to it."""
    missing = sum(_left(each, store) for each in status if each.status == "miss")
    needs = [disk_need("store", store.root, missing)]
    if _device(out) != _device(store.root):
        needs.append(disk_need("artifact", out, sum(_whole(each, store) for each in status)))
    return needs


def _left(status: StepStatus, store: Store) -> int:
    return max(0, status.step.output_bytes - store.resumable_bytes(status.key))


def _whole(status: StepStatus, store: Store) -> int:
    entry = store.peek(status.key).entry if status.status == "hit" else None
    return entry.total_bytes if entry else status.step.output_bytes


def disk_need(what: str, path: Path, needed_bytes: int) -> DiskNeed:
    """Return what will be written below `path`, which need not be there yet, beside what is free."""
    return DiskNeed(what, path, needed_bytes, shutil.disk_usage(_nearest(path)).free)


def _device(path: Path) -> int:
    return os.stat(_nearest(path)).st_dev


def _nearest(path: Path) -> Path:
    """Return what exists of a path that may be made yet."""
    path = Path(os.path.realpath(path))
    return next(each for each in (path, *path.parents) if each.is_dir())


def amount(nbytes: float) -> str:
    """Return bytes as people read them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"
