# SPDX-License-Identifier: Apache-2.0
"""Simulate a stub killed while it holds locks in shared memory.

    python -m tests.serving.triton.orphaned PREFIX

takes every free lock in the regions of /dev/shm whose names begin with PREFIX, and exits without releasing them.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

ROBUST_SHARED = 0x90  # glibc's pthread_mutex_t.__kind: ROBUST_NORMAL_NP with the bit for process-shared
MUTEX = struct.Struct("iIiIi")  # lock, count, owner, nusers, kind
MUTEX_BYTES, ALIGNED = 40, 8
LIBC = ctypes.CDLL(None)


def mapped(region: Path) -> mmap.mmap:
    with region.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def take(shared: mmap.mmap) -> int:
    """Take the free locks of a region and return their number."""
    begin = ctypes.addressof(ctypes.c_char.from_buffer(shared))
    return sum(LIBC.pthread_mutex_trylock(ctypes.c_void_p(begin + at)) == 0 for at in locks(shared))


def locks(shared: mmap.mmap) -> Iterator[int]:
    """Yield the offsets of free locks."""
    for at in range(0, len(shared) - MUTEX_BYTES, ALIGNED):
        lock, _, owner, _, kind = MUTEX.unpack_from(shared, at)
        if (lock, owner, kind) == (0, 0, ROBUST_SHARED):
            yield at


def main() -> None:
    regions = [mapped(region) for region in sorted(Path("/dev/shm").glob(f"{sys.argv[1]}*"))]
    sys.stdout.write(f"{sum(map(take, regions))}\n")
    sys.stdout.flush()
    os._exit(0)  # keep all regions mapped, otherwise the kernel does not find the locks


if __name__ == "__main__":
    main()
