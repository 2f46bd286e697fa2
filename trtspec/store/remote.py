# SPDX-License-Identifier: Apache-2.0
"""The interface of a remote store, as the local store uses it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trtspec.store.file_records import FileRecord
from trtspec.store.step import Step, StepProgress

if TYPE_CHECKING:
    from trtspec.store.entry import StoreEntry

Start = Callable[[int], StepProgress]  # called with the total of bytes, returns the receiver of the progress


@dataclass(frozen=True)
class Received:
    """The verified files of an entry from a remote store; `seconds` is the time that building them took."""

    files: tuple[FileRecord, ...]
    seconds: float


class Remote(Protocol):
    """A remote store. A failure of the remote is a warning, and the build continues without it."""

    def receive(self, step: Step, files: Path, start: Start) -> Received | None:
        """Fetch and verify a step's output below `files`, or return None.

        `files` may contain the files of an interrupted call. After None it may contain anything.
        """

    def offer(self, step: Step, entry: StoreEntry, start: Start) -> None:
        """Store an entry if the remote lacks it.

        A remote that only compares raises DigestMismatch if it has another output for the step.
        """

    def find(self, keys: Collection[str]) -> frozenset[str]:
        """Return the keys whose entries the remote has."""

    def failure(self) -> str:
        """Return why the remote is not used at present, or "" if it is used."""

    def resume(self) -> None:
        """Use the remote again at once, after a failure."""

    def distrust(self, key: str) -> None:
        """Replace the entry of a key by the next output that is offered: another machine has refused it."""
