# SPDX-License-Identifier: Apache-2.0
"""Transfers of several files at once: progress, and the end of all of them if one fails or the user interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import TypeVar

from trtspec.core.hashing import PIECE_BYTES
from trtspec.store.registries.http_client import TransferStopped
from trtspec.store.registries.repository import Repository

THREADS = 4

OnProgress = Callable[[str, int, int], None]

T = TypeVar("T")
R = TypeVar("R")


def buffer_bytes(sizes: Iterable[int]) -> int:
    """Return the size of each buffer for files of these sizes: the buffers of all concurrent files take 3 MiB together.

    One file has buffers of 1 MiB, two of 512 KiB, and more of 256 KiB.
    """
    large = sum(size > PIECE_BYTES for size in sizes)
    return PIECE_BYTES >> (max(1, min(large, THREADS)) - 1).bit_length()


class Meter:
    """Progress of a transfer over all threads; counting raises TransferStopped once the transfer is stopped."""

    def __init__(self, what: str, total: int, stopped: Event, on_progress: OnProgress) -> None:
        self._what, self._total, self._stopped, self._on_progress = what, total, stopped, on_progress
        self._done = 0
        self._lock = Lock()

    def __call__(self, nbytes: int) -> None:
        if self._stopped.is_set():
            raise TransferStopped
        with self._lock:
            self._done += nbytes
            self._on_progress(self._what, min(self._done, self._total), self._total)


def transfer_all(work: Callable[[T], R], items: Sequence[T], stopped: Event, repository: Repository) -> list[R]:
    """Return `[work(item) for item in items]`, computed by THREADS threads; the first failure ends all."""
    failures: list[BaseException] = []

    def guarded(item: T) -> R:
        try:
            return work(item)
        except BaseException as error:
            failures.append(error)
            stopped.set()
            repository.interrupt()
            raise

    with ThreadPoolExecutor(THREADS) as pool:
        try:
            return [future.result() for future in [pool.submit(guarded, item) for item in items]]
        except BaseException as error:
            stopped.set()
            repository.interrupt()
            pool.shutdown(wait=False, cancel_futures=True)
            raise (failures[0] if failures and isinstance(error, Exception) else error) from None
