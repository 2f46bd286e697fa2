# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import socket
from pathlib import Path

import pytest
from pydantic import ValidationError

from trtspec.core import files
from trtspec.core.files import (
    UnreadableFile,
    copy_tree,
    create_file,
    open_regular,
    read_bounded,
    replace_file,
    reserve_space,
    sync_directories,
    write_all,
)
from trtspec.core.hashing import file_sha256
from trtspec.store.file_records import FileRecord


def test_file_sha256_reads_the_whole_file_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(data := os.urandom((1 << 20) + 5))
    pieces: list[int] = []
    assert file_sha256(path, pieces.append) == hashlib.sha256(data).hexdigest()
    assert pieces == [1 << 20, 5]


@pytest.mark.parametrize("code", [None, errno.EOPNOTSUPP, errno.EINVAL])
def test_space_is_reserved_or_only_the_size_is_set(
    code: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: int) -> None:
        raise OSError(code, "no such thing here")

    if code:
        monkeypatch.setattr(os, "posix_fallocate", refuse)
    with (tmp_path / "file").open("wb") as file:
        reserve_space(file.fileno(), 100_000)
    assert (tmp_path / "file").read_bytes() == bytes(100_000)


def test_full_disk_fails_when_space_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="full"):
        reserve_space(file.fileno(), 100_000)


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "a/../../x", "a/../b", "", ".", "./a", "a//b", "a/", "..", "a\0"]
)
def test_recorded_path_outside_its_directory_is_rejected(path: str) -> None:
    with pytest.raises(ValidationError) as refused:
        FileRecord(path=path, size=0, segments=())
    assert f"{path!r} does not stay inside its directory" in str(refused.value)


@pytest.mark.parametrize("path", ["a", "a/b", "..a/b..", ".hidden", "a\\b", "ä"])
def test_relative_path_inside_its_directory_is_accepted(path: str) -> None:
    assert FileRecord(path=path, size=0, segments=()).path == path


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"size": -1}, "greater than or equal to 0"),
        ({"segments": ["0" * 63]}, "should match pattern"),
        ({"segments": ["A" * 64]}, "should match pattern"),
        ({"segments": []}, "0 segments are recorded; a file of 3 bytes has 1"),
        ({"size": 0}, "1 segments are recorded; a file of 0 bytes has 0"),
        ({"size": 10**40}, "1 segments are recorded; a file of 10,000,000,000,0"),  # not counted one by one
        ({"mode": 1}, "Extra inputs are not permitted"),
    ],
)
def test_invalid_file_record_is_rejected(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        FileRecord.model_validate({"path": "a", "size": 3, "segments": ["0" * 64]} | changes)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Record syncs and renames in order, by path below the test's directory."""
    noted: list[str] = []
    replace = os.replace

    def fsync(descriptor: int) -> None:
        noted.append(os.path.relpath(os.readlink(f"/proc/self/fd/{descriptor}"), tmp_path))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda *names, **places: (replace(*names, **places), noted.append("replace"))[0])
    return noted


def test_directories_and_the_given_files_are_synced(tmp_path: Path, events: list[str]) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/file").touch()
    sync_directories(tmp_path)
    assert sorted(events) == [".", "a", "a/b"]
    events.clear()
    sync_directories(tmp_path, [tmp_path / "a/file"])
    assert sorted(events) == [".", "a", "a/b", "a/file"]


def test_file_is_synced_before_it_is_renamed(tmp_path: Path, events: list[str]) -> None:
    (tmp_path / "file").write_bytes(b"old")
    replace_file(tmp_path / "file", b"new")
    assert re.fullmatch(r"\.file\.[0-9a-f]{16}\.tmp", events[0])
    assert events[1:] == ["replace", "."]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}


def test_failed_copy_reports_the_system_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_replace_file_replaces_a_link_and_leaves_its_target(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"theirs")
    (tmp_path / "report.json").symlink_to(tmp_path / "victim")
    replace_file(tmp_path / "report.json", b"ours")
    assert (tmp_path / "victim").read_bytes() == b"theirs"
    assert not (tmp_path / "report.json").is_symlink()


def test_replace_file_fails_if_the_temporary_file_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda nbytes: "guessed")
    (tmp_path / "victim").write_bytes(b"theirs")
    (tmp_path / ".report.json.guessed.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError, match=r"report\.json"):
        replace_file(tmp_path / "report.json", b"ours")
    assert (tmp_path / "victim").read_bytes() == b"theirs"
    with pytest.raises(FileExistsError):
        create_file(tmp_path / ".report.json.guessed.tmp", b"ours")


def test_replace_file_rejects_a_link_to_a_directory_without_follow(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "reports").symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match=r"reports/verify\.json"):
        replace_file(tmp_path / "reports/verify.json", b"ours", follow=False)
    assert not list((tmp_path / "theirs").iterdir())


def test_replace_file_leaves_no_temporary_file_after_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: memoryview, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match=r"No space left.*state\.json"):
        replace_file(tmp_path / "state.json", b"new")
    assert not list(tmp_path.iterdir())


def test_replace_file_sets_the_permissions_and_the_size(tmp_path: Path) -> None:
    replace_file(tmp_path / "record", b"ours", mode=0o600, nbytes=1 << 20)
    assert (tmp_path / "record").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "record").read_bytes() == b"ours" + bytes((1 << 20) - 4)


@pytest.fixture
def short_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit each write call to three bytes, as network file systems may."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:3], offset))


def test_write_all_writes_everything_in_short_writes(tmp_path: Path, short_writes: None) -> None:
    replace_file(tmp_path / "file", bytes(range(200)))
    create_file(tmp_path / "new", bytes(range(200)))
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {bytes(range(200))}


def test_sequential_writer_starts_to_write_full_ranges_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges: list[tuple[int, int]] = []
    monkeypatch.setattr(files, "WRITEBACK_BYTES", 100)
    monkeypatch.setattr(
        files, "_sync_file_range", lambda: lambda _, begin, nbytes, flags: ranges.append((begin, nbytes))
    )
    data = bytes(range(250))
    with (tmp_path / "file").open("wb") as file:
        file.truncate(7)
        writer = files.SequentialWriter(file.fileno(), 7)
        for begin in range(0, 250, 60):
            writer.write(memoryview(data)[begin : begin + 60])
    assert (tmp_path / "file").read_bytes() == bytes(7) + data
    assert ranges == [(7, 120), (127, 120)]
    assert writer.position == 257


def test_sequential_writer_works_with_the_real_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "WRITEBACK_BYTES", 4096)
    with (tmp_path / "file").open("wb") as file:
        files.SequentialWriter(file.fileno()).write(bytes(10_000))
    assert (tmp_path / "file").read_bytes() == bytes(10_000)


def test_write_all_fails_if_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: 0)
    with (tmp_path / "file").open("wb") as file, pytest.raises(OSError, match="Input/output error"):
        write_all(file.fileno(), b"data", 0)


@pytest.mark.parametrize("kind", ["fifo", "directory", "device", "socket", "sparse", "link", "zero"])
def test_read_bounded_rejects_anything_but_a_bounded_regular_file(tmp_path: Path, kind: str) -> None:
    path, said = tmp_path / "it", "not a regular file"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path = Path("/dev/zero")
    elif kind == "zero":
        path.symlink_to("/dev/zero")
        said = "a symbolic link"
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    elif kind == "sparse":
        path.touch()
        os.truncate(path, 1 << 40)
        said = "larger than 100 bytes"
    else:
        (tmp_path / "target").write_bytes(b"theirs")
        path.symlink_to(tmp_path / "target")
        said = "a symbolic link"
    with pytest.raises(UnreadableFile, match=said):
        read_bounded(path, 100, follow=False)


def test_read_bounded_rejects_a_file_that_grows_while_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = tmp_path / "growing", os.read
    path.write_bytes(b"1234")

    def growing(descriptor: int, nbytes: int) -> bytes:
        with path.open("ab") as file:
            file.write(b"more")
        return read(descriptor, nbytes)

    monkeypatch.setattr(os, "read", growing)
    with pytest.raises(UnreadableFile, match="grew while"):
        read_bounded(path, 100)


def test_read_bounded_allocates_only_the_file_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, read = [], os.read
    monkeypatch.setattr(os, "read", lambda descriptor, nbytes: (asked.append(nbytes), read(descriptor, nbytes))[1])
    (tmp_path / "small").write_bytes(b"12")
    assert read_bounded(tmp_path / "small", 1 << 30) == b"12"
    assert max(asked) == 3


def test_open_regular_follows_a_link_unless_follow_is_false(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"data")
    (tmp_path / "link").symlink_to("target")
    with open_regular(tmp_path / "link") as file:
        assert file.read() == b"data"
    with pytest.raises(UnreadableFile, match="not followed"):
        open_regular(tmp_path / "link", follow=False)
