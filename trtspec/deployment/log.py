# SPDX-License-Identifier: Apache-2.0
"""Reading of server logs: the last lines, and following; in chunks, for logs of any size."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from trtspec.core.errors import DeployError
from trtspec.deployment.base import deployment_target
from trtspec.deployment.journal import DeploymentJournal

PIECE_BYTES = 64 << 10
POLL_S = 0.2
FORMER = 5  # number of former logs kept


def fetch_log_path(name: str) -> Path:
    """Return the path of a deployment's log, fetched from its target."""
    journal = DeploymentJournal(name)
    deployment_target(name).fetch_log(journal)
    return journal.log


def rotate(path: Path) -> None:
    """Rename the previous server's log to `server.log.1`, and so on; delete the oldest."""
    for number in range(FORMER, 0, -1):
        former = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
        with suppress(FileNotFoundError):
            former.replace(path.with_name(f"{path.name}.{number}"))


def read_log(path: Path, lines: int) -> Iterator[bytes]:
    """Yield the last lines of a log, in chunks."""
    with _opened(path) as file:
        file.seek(_start_of_last(file, lines))
        yield from _rest(file)


def last_lines(path: Path, lines: int, max_bytes: int) -> list[str]:
    """Return the last lines of a log within its last `max_bytes`; the first line may be truncated."""
    with _opened(path) as file:
        end = file.seek(0, os.SEEK_END)
        file.seek(max(_start_of_last(file, lines), end - max_bytes))
        text = file.read(max_bytes).decode(errors="replace")
    return text.removesuffix("\n").split("\n") if text else []


def follow_log(name: str, lines: int) -> Iterator[bytes]:
    """Yield the last lines of a deployment's log and then new output, until its server has ended."""
    journal = DeploymentJournal(name)
    if (record := journal.known()).target != "local":
        raise DeployError(f"the log of {name} is on {record.target}", hint="follow it there, or omit --follow")
    with _opened(fetch_log_path(name)) as file:
        file.seek(_start_of_last(file, lines))
        is_running = True
        while is_running:
            is_running = journal.known().is_running  # checked before reading, so that the last output is read too
            yield from _rest(file)
            time.sleep(POLL_S if is_running else 0)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DeployError("the deployment's log is not on this machine", where=str(path)) from None


def _rest(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(PIECE_BYTES):
        yield piece


def _start_of_last(file: BinaryIO, lines: int) -> int:
    """Return the offset of the last `lines` lines; reads backwards from the end only as far as needed."""
    end = place = file.seek(0, os.SEEK_END)
    wanted = lines + _ends_with_newline(file, end)  # newlines to find, including the preceding line's
    while place > 0 and lines:
        begin = max(0, place - PIECE_BYTES)
        file.seek(begin)
        piece = file.read(place - begin)
        if (found := piece.count(b"\n")) >= wanted:
            return begin + _nth_last(piece, wanted) + 1
        wanted, place = wanted - found, begin
    return 0 if lines else end


def _ends_with_newline(file: BinaryIO, end: int) -> bool:
    file.seek(max(0, end - 1))
    return file.read(1) == b"\n"


def _nth_last(piece: bytes, number: int) -> int:
    place = len(piece)
    for _ in range(number):
        place = piece.rindex(b"\n", 0, place)
    return place
