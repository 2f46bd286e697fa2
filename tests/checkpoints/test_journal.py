# SPDX-License-Identifier: Apache-2.0
"""Tasks in the journal are on the disk, even after disk errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtspec.checkpoints import stream
from trtspec.checkpoints.stream import ConversionJournal

WAIT_S = 30
HEAD = "trtspec.journal/2 stamp\n"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    return tmp_path / "notes"


@pytest.fixture(autouse=True)
def fails_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Simulate a disk error as Linux reports it: once for each open file, after which calls succeed."""
    monkeypatch.setattr(stream, "COMMIT_EVERY_S", 0.0)
    synced: list[int] = []

    def sync(descriptor: int) -> None:
        synced.append(descriptor)
        if len(synced) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", sync)
    return synced


def finish_the_rest(noted: ConversionJournal) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        noted.finish("two")
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("then", "raised"), [(lambda noted: None, OSError), (finish_the_rest, ZeroDivisionError)], ids=["ends", "goes on"]
)
def test_journal_records_nothing_after_a_disk_error(
    file: int,
    notes: Path,
    fails_once: list[int],
    then: Callable[[ConversionJournal], object],
    raised: type[Exception],
) -> None:
    with pytest.raises(raised), ConversionJournal(notes, [file], "stamp") as noted:  # noqa: PT012
        noted.finish("one")
        noted._thread.join(WAIT_S)
        assert not noted._thread.is_alive()
        then(noted)
    assert (notes.read_text(), fails_once) == (HEAD, [file])


def test_journal_reports_a_disk_error_at_the_end(file: int, notes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "COMMIT_EVERY_S", 3600.0)
    with pytest.raises(OSError, match="Input/output error"), ConversionJournal(notes, [file], "stamp") as noted:
        noted.finish("one")
    assert notes.read_text() == HEAD


def test_journal_that_is_not_utf_8_is_restarted(file: int, notes: Path) -> None:
    notes.write_bytes(b"\xff\xfe\x00\ntask\n")
    assert ConversionJournal(notes, [file], "stamp").done == frozenset()
    assert notes.read_text() == HEAD
