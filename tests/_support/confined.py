# SPDX-License-Identifier: Apache-2.0
"""Commands in forks with restrictions: permissions, file sizes, or a small or read-only file system."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests._support import forked

TIMEOUT_S = 60
MAIN = "from trtspec.cli.app import main; main(sys.argv[1:])"
# Drops CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, bits 1 and 2, from the effective and permitted sets.
DROP = """
import ctypes, sys
header, sets = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
libc = ctypes.CDLL(None)
assert libc.capget(header, sets) == 0
for effective_or_permitted in (0, 1):
    sets[effective_or_permitted] &= ~0b110
assert libc.capset(header, sets) == 0
"""
LIMIT = """
import resource, sys
most = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
"""
# CLONE_NEWNS is 0x20000.
MOUNT = """
import ctypes, subprocess, sys
place, options = sys.argv.pop(1), sys.argv.pop(1)
assert ctypes.CDLL(None).unshare(0x20000) == 0
for mount in ("--make-rprivate /", f"-t tmpfs -o size=64k small {place}", f"-o remount,{options} {place}"):
    subprocess.run(["mount", *mount.split()], check=True)
"""


def as_anybody(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command that is subject to permissions even if root runs the tests."""
    return _run(DROP, *arguments)


def limited(file_bytes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command with a file size limit, to simulate a full disk."""
    return _run(LIMIT, file_bytes, *arguments)


def mounted(place: Path, options: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command with a small file system at `place`, visible only to the command and its children."""
    return _run(MOUNT, place, options, *arguments)


def _run(confine: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-c", confine + MAIN, *arguments], TIMEOUT_S)
