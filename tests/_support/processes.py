# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def words_of(pid: int) -> str:
    """Return what a process was started with, words ended by NULs; nothing where it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""
