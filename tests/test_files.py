# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path

import pytest
from pydantic import ValidationError

from trtspec.file_records import FileRecord
from trtspec.files import copy_tree, replace_file, reserve, sync_directories
from trtspec.hashing import file_sha256


def test_file_sha256_reads_the_whole_file_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := os.urandom((1 << 20) + 5))
    pieces: list[int] = []
    assert file_sha256(path, pieces.append) == hashlib.sha256(data).hexdigest()
    assert pieces == [1 << 20, 5]


@pytest.mark.parametrize("code", [None, errno.EOPNOTSUPP, errno.EINVAL])
def test_room_is_reserved_or_the_size_alone_is_set(
    code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(code, "no such thing here")

    if code:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    with (tmp_path / "file").open("wb") as file:
        reserve(file.fileno(), 100_000)
    assert (tmp_path / "file").read_bytes() == bytes(100_000)


def test_a_full_disk_is_told_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="full"):
        reserve(file.fileno(), 100_000)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "a/../b", "", ".", "./a", "a//b", "a/", "..", "a\0"]
)
def test_a_recorded_path_stays_inside(path: str) -> None:
    with pytest.raises(ValidationError) as refused:
        FileRecord(path=path, size=0, sha256="0" * 64)
    assert f"{path!r} does not stay inside its directory" in str(refused.value)


@pytest.mark.parametrize("path", ["a", "a/b", "..a/b..", ".hidden", "a\\b", "ä"])
def test_any_other_name_may_be_recorded(path: str) -> None:
    assert FileRecord(path=path, size=0, sha256="0" * 64).path == path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": -1}, "greater than or equal to 0"),
        ({"sha256": "0" * 63}, "should match pattern"),
        ({"sha256": "A" * 64}, "should match pattern"),
        ({"mode": 1}, "Extra inputs are not permitted"),
    ],
)
def test_a_record_of_another_form(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        FileRecord.model_validate({"path": "a", "size": 0, "sha256": "0" * 64} | changes)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Note what is brought to the disk and what is renamed, in order, by path below the test's directory."""
    noted: list[str] = []
    replace = os.replace

    def fsync(descriptor: int) -> None:
        noted.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda one, other: (replace(one, other), noted.append("replace"))[0])
    return noted


def test_a_directory_is_synced_after_those_in_it(tmp_path: Path, events: list[str]) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").touch()
    sync_directories(tmp_path)
    assert events == ["a/b", "a", "."]


def test_a_file_is_on_the_disk_before_it_is_in_place(tmp_path: Path, events: list[str]) -> None:
    (tmp_path / "file").write_bytes(b"old")
    replace_file(tmp_path / "file", b"new", tmp_path / "temporary")
    assert events == ["temporary", "replace", "."]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}


def test_a_copy_that_ends_says_what_the_machine_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    (source / "deep" / "left-out").mkdir(parents=True)
    (source / "deep" / "one").write_text("1")
    copy_tree(source, tmp_path / "copy", without="left-out")
    assert [path.name for path in sorted((tmp_path / "copy").rglob("*"))] == ["deep", "one"]

    def full(path: Path, out: Path, **how: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out))

    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(OSError, match="No space left") as caught:
        copy_tree(source, tmp_path / "other")
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "other" / "deep" / "one"))
