# SPDX-License-Identifier: Apache-2.0
"""What a stub leaves that is killed at the wrong moment: a lock of the memory that it shares, which nobody gives back.

    python -m tests.triton.orphaned PREFIX

takes every lock in the regions of /dev/shm whose names begin so, and ends with them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

ROBUST_SHARED = 0x90  # glibc's pthread_mutex_t.__kind: ROBUST_NORMAL_NP, and the bit of one that processes share
MUTEX = struct.Struct("iIiIi")  # lock, count, owner, nusers, kind
MUTEX_BYTES, ALIGNED = 40, 8
LIBC = ctypes.CDLL(None)


def take_all(prefix: str) -> int:
    """Take the free locks of all regions and return how many those are; the regions stay mapped."""
    return sum(take(region) for region in sorted(Path("/dev/shm").glob(f"{prefix}*")))


def take(region: Path) -> int:
    with region.open("r+b") as file:
        shared = mmap.mmap(file.fileno(), 0)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    return sum(LIBC.pthread_mutex_trylock(ctypes.c_void_p(begin + at)) == 0 for at in locks(shared))


def locks(shared: mmap.mmap) -> Iterator[int]:
    """Yield where free locks lie."""
    for at in range(0, len(shared) - MUTEX_BYTES, ALIGNED):
        if shared[at + 16] == ROBUST_SHARED and MUTEX.unpack_from(shared, at) == (0, 0, 0, 0, ROBUST_SHARED):
            yield at


if __name__ == "__main__":
    sys.stdout.write(f"{take_all(sys.argv[1])}\n")
    sys.stdout.flush()
    os._exit(0)
