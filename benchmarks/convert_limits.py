# SPDX-License-Identifier: Apache-2.0
"""Measure the machine's limits for a conversion: bytes per second of reading, writing, hashing and quantizing."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from convert_source import BLOCK_BYTES, forget

from trtspec.checkpoints.arithmetic import NumpyArithmetic
from trtspec.kernels.host_kernels import CompiledArithmetic, compile_host_library

CORES = os.cpu_count() or 1
WRITE_BYTES = 1 << 20
BOUND_S = 1800


def measure_quantizing(nbytes: int = 1 << 30) -> float:
    """Return the input bytes/s of quantizing bfloat16 to FP8 with a known scale on all cores, in cached memory."""
    library = compile_host_library()
    quantize = (CompiledArithmetic(library) if library else NumpyArithmetic()).quantizer("BF16", np.float32(0.01))
    floats = np.random.default_rng(0).standard_normal((512, 1 << 10), dtype=np.float32)
    chunk = (floats.view(np.uint32) >> 16).astype(np.uint16)

    def work(_: int) -> None:
        for _ in range(nbytes // CORES // chunk.nbytes):
            quantize(chunk)

    started = time.perf_counter()
    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(work, range(CORES)))
    return nbytes / (time.perf_counter() - started)


def measure_both(root: Path, probe: Path, nbytes: int) -> float:
    """Return the seconds of reading all cold files while `nbytes` are written to another file and synced.

    A disk that cannot do both at the same time, or shares its bandwidth, takes longer than for the slower one alone.
    """
    source_bytes = sum(path.stat().st_size for path in root.glob("model-*.safetensors"))
    forget(root)
    started = time.perf_counter()
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(measure_write, probe, nbytes)
        pool.submit(measure_read, root, source_bytes, is_forgotten=True).result()
        writing.result()
    return time.perf_counter() - started


def measure_read(root: Path, limit: int = 2 << 30, *, is_forgotten: bool = False) -> float:
    """Return the bytes/s of reading cold files with as many threads as a conversion uses."""
    if not is_forgotten:
        forget(root)
    paths = sorted(root.glob("model-*.safetensors"), key=lambda path: -path.stat().st_size)
    ranges = [(path, offset) for path in paths for offset in range(0, path.stat().st_size, BLOCK_BYTES)]
    ranges = ranges[: limit // BLOCK_BYTES]

    def work(each: tuple[Path, int]) -> int:
        with each[0].open("rb", buffering=0) as file:
            done = 0
            for offset in range(each[1], each[1] + BLOCK_BYTES, 1 << 20):
                done += len(os.pread(file.fileno(), 1 << 20, offset))
        return done

    started = time.perf_counter()
    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
        done = sum(pool.map(work, ranges))
    return done / (time.perf_counter() - started)


def measure_write(path: Path, nbytes: int) -> float:
    """Return the bytes/s of writing and syncing a file, bypassing the page cache if possible.

    Blocks that are already allocated are faster. `nbytes` must be the size of a conversion's output, because the disk
    or its virtualization layer buffers smaller writes in memory.
    """
    with open(path, "r+b" if path.exists() else "wb", buffering=0) as file:
        started = time.perf_counter()
        os.posix_fallocate(file.fileno(), 0, nbytes)
        direct = _open_direct(path)
        descriptor = file.fileno() if direct is None else direct

        def work(begin: int) -> None:
            block = mmap.mmap(-1, WRITE_BYTES)  # page-aligned
            block.write(os.urandom(WRITE_BYTES))
            for offset in range(begin, nbytes // WRITE_BYTES * WRITE_BYTES, WRITE_BYTES * CORES):
                os.pwrite(descriptor, block, offset)

        with ThreadPoolExecutor(CORES) as pool:
            list(pool.map(work, range(0, WRITE_BYTES * CORES, WRITE_BYTES)))
        os.fsync(file.fileno())
        took = time.perf_counter() - started
        if direct is not None:
            os.close(direct)
    return nbytes / took


def _open_direct(path: Path) -> int | None:
    try:
        return os.open(path, os.O_WRONLY | os.O_DIRECT)
    except OSError:
        return None


def measure_cached_read(root: Path) -> float:
    """Return the bytes/s of reading files from the page cache with one thread per core."""
    paths = sorted(root.glob("model-*.safetensors"))

    def work(path: Path) -> int:
        buffer, done = bytearray(1 << 20), 0
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                done += count
        return done

    return _rate(CORES, work, paths)


def measure_cat(root: Path) -> float:
    """Return the seconds of `cat` for a directory's weights."""
    return _seconds(["cat", *map(str, root.glob("*.safetensors"))])


def measure_cp(root: Path, copy: Path) -> float:
    """Return the seconds of `cp` and of writing the copy to the disk."""
    shutil.rmtree(copy, ignore_errors=True)
    took = _seconds(["cp", "-r", "--reflink=never", str(root), str(copy)]) + _seconds(["sync", "-f", str(copy)])
    shutil.rmtree(copy)
    return took


def _seconds(command: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=BOUND_S)
    return time.perf_counter() - started


def measure_hashing(threads: int, nbytes: int = 1 << 30) -> float:
    """Return the bytes/s of BLAKE3 with that many threads on data in the processor's caches."""
    block = os.urandom(1 << 20)

    def work(count: int) -> int:
        digest = blake3()
        for _ in range(count):
            digest.update(block)
        return count * len(block)

    return _rate(threads, work, [nbytes // len(block)] * threads)


def _rate(threads: int, work: Callable[[Any], int], items: Sequence[Any]) -> float:
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(work, items))
    return done / (time.perf_counter() - started)
