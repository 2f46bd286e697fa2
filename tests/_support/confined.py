# SPDX-License-Identifier: Apache-2.0
"""Commands in forks that lack something: permissions, long files, a file system with room or one that is written to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests._support import forked

TIMEOUT_S = 60
MAIN = "from trtspec.cli.app import main; main(sys.argv[1:])"
# Takes CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, bits 1 and 2, from what is effective and permitted.
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
    """Run a command to which permissions apply, whoever runs the tests."""
    return _run(DROP, *arguments)


def limited(file_bytes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command whose files may not grow beyond a size, which stands for a disk that is full."""
    return _run(LIMIT, file_bytes, *arguments)


def mounted(place: Path, options: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command where `place` is a small file system of its own, which only the command and its children see."""
    return _run(MOUNT, place, options, *arguments)


def _run(confine: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.run([sys.executable, "-c", confine + MAIN, *arguments], TIMEOUT_S)
