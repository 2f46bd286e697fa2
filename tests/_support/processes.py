# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def words_of(pid: int) -> str:
    """Return the command line of a process, words terminated by NULs; empty if the process is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""
