# SPDX-License-Identifier: Apache-2.0
"""OCI image layouts: directories with several tags, and tar files; both are untrusted input."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import re
import tarfile
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.store.registries.artifacts import DRAFT, contents, make_artifact
from tests.store.registries.memory import check_memory, large_artifact
from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.core.files import SequentialWriter
from trtspec.core.hashing import PIECE_BYTES, SegmentsDigest, bytes_segments
from trtspec.store.artifact import manifest_sha256
from trtspec.store.file_records import FileRecord
from trtspec.store.registries.blobs import BlobSource
from trtspec.store.registries.listing import list_artifacts
from trtspec.store.registries.locations.file import parse_address, read_members
from trtspec.store.registries.pull import pull_artifact
from trtspec.store.registries.push import push_artifact

KINDS = pytest.mark.parametrize("name", ["layout", "layout.tar"])


@KINDS
def test_pull_restores_what_was_pushed(built: Path, tmp_path: Path, name: str) -> None:
    address = f"file:{tmp_path}/{name}:v1"
    pushed = push_artifact(built, address)
    pulled = pull_artifact(address, lambda *_: tmp_path / "out")
    assert (pulled.digest, pulled.manifest) == (pushed.digest, pushed.manifest)
    assert contents(pulled.artifact) == contents(built)
    (listed,) = list_artifacts(address)
    assert (listed.tag, listed.name, listed.digest) == ("v1", "tiny", pushed.digest)
    pull_artifact(f"file://{tmp_path}/{name}:v1", lambda *_: tmp_path / "again")


@KINDS
def test_short_writes_lose_nothing(built: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full or remote disk may write less than it was given; the rest is written, not only hashed."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:300_000], offset))
    push_artifact(built, address := f"file:{tmp_path}/{name}:v1")
    assert contents(pull_artifact(address, lambda *_: tmp_path / "out").artifact) == contents(built)


def test_directory_keeps_several_tags_and_shares_blobs(built: Path, tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    push_artifact(built, f"file:{layout}:v1")
    other = make_artifact(tmp_path / "other", draft_seed=1)
    assert push_artifact(other, f"file:{layout}:v2").sent_bytes == 2 << 20
    assert [each.tag for each in list_artifacts(f"file:{layout}")] == ["v1", "v2"]
    push_artifact(other, f"file:{layout}:v1")
    assert len({each.digest for each in list_artifacts(f"file:{layout}")}) == 1
    assert json.loads((layout / "oci-layout").read_bytes()) == {"imageLayoutVersion": "1.0.0"}


def test_tar_is_replaced_as_a_whole(built: Path, tmp_path: Path) -> None:
    path = tmp_path / "layout.tar"
    push_artifact(built, f"file:{path}:v1")
    before = path.read_bytes()
    (built / DRAFT).write_bytes(b"changed")
    with pytest.raises(DigestMismatch):
        push_artifact(built, f"file:{path}:v2")
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir() if "tmp" in each.name] == []
    with tarfile.open(path) as archive:  # a tar file that others read
        assert {"oci-layout", "index.json"} <= {*archive.getnames()}


@KINDS
def test_flipped_bit_is_refused(tmp_path: Path, name: str) -> None:
    built = make_artifact(tmp_path / "built", 5000, 2000)
    address, path = f"file:{tmp_path}/{name}:v1", tmp_path / name
    push_artifact(built, address)
    files = [path] if path.is_file() else sorted(path.rglob("blobs/sha256/*"))
    generator = random.Random(3)
    for number in range(30):
        changed = files[number % len(files)]
        data = bytearray(good := changed.read_bytes())
        if not data:
            continue
        data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        changed.write_bytes(data)
        try:
            out = tmp_path / f"out{number}"  # files that an earlier pull has kept are not read again
            pull_artifact(address, lambda *_, out=out: out)
        except TrtspecError:
            assert not out.exists()
        else:  # a bit that has no meaning, in a tar header's unused fields or padding
            assert path.is_file()
            assert contents(out) == contents(built)
        changed.write_bytes(good)


def test_link_in_a_layout_is_not_followed(built: Path, tmp_path: Path) -> None:
    address = f"file:{tmp_path}/layout:v1"
    push_artifact(built, address)
    for path in (tmp_path / "layout" / "blobs" / "sha256").iterdir():
        path.rename(tmp_path / path.name)
        path.symlink_to(tmp_path / path.name)
    with pytest.raises(TrtspecError):
        pull_artifact(address, lambda *_: tmp_path / "out")


def test_malformed_layouts_are_refused(tmp_path: Path) -> None:
    for name, data in (("a.tar", b"x" * 5000), ("b.tar", b""), ("c.tar", b"\0" * 1024)):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(TrtspecError):
            pull_artifact(f"file:{tmp_path}/{name}:v1", lambda *_: tmp_path / "out")
    with pytest.raises(TrtspecError, match="does not exist"):
        pull_artifact(f"file:{tmp_path}/none.tar:v1", lambda *_: tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrtspecError, match=r"index\.json is missing"):
        pull_artifact(f"file:{tmp_path}/empty:v1", lambda *_: tmp_path / "out")


def test_tar_with_a_large_extended_header_takes_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "large.tar"
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 40
    with path.open("wb") as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.truncate(1 << 41)
    assert read_members(path) == {}
    monkeypatch.setattr("trtspec.store.registries.locations.file.MAX_MEMBERS", 10)
    (tmp_path / "many.tar").write_bytes(tarfile.TarInfo("x").tobuf() * 11)
    with pytest.raises(TrtspecError, match="more than 10 members"):
        read_members(tmp_path / "many.tar")


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("a/b:v1", ("a/b", "v1")),
        ("a/b", ("a/b", "latest")),
        ("///a/b.tar:x", ("/a/b.tar", "x")),
        ("/a:b/c", ("/a:b/c", "latest")),
        (f"a@sha256:{'0' * 64}", ("a", f"sha256:{'0' * 64}")),
        ("~/a:v1", ("/home/user/a", "v1")),
    ],
)
def test_addresses(rest: str, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/user")
    path, tag = parse_address(rest)
    assert (str(path), tag) == expected


@pytest.mark.parametrize(
    "rest",
    ["", "/", "//host/a:v1", "a:", "a:\N{LATIN SMALL LETTER E WITH ACUTE}", "a:v 1", "a@sha256:12", "a@sha256:12:v1"],
)
def test_malformed_addresses(rest: str) -> None:
    with pytest.raises(TrtspecError, match="is not file:PATH:TAG"):
        parse_address(rest)


def test_artifact_is_pulled_by_its_digest_but_not_pushed_to_one(built: Path, tmp_path: Path) -> None:
    pushed = push_artifact(built, f"file:{tmp_path}/layout:v1")
    address = f"file:{tmp_path}/layout@{pushed.digest}"
    assert pull_artifact(address, lambda *_: tmp_path / "out").manifest == pushed.manifest
    with pytest.raises(TrtspecError, match="to a tag, not to a digest"):
        push_artifact(built, address)


def test_layout_is_not_mixed_with_other_files(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(built.iterdir())
    with pytest.raises(TrtspecError, match="the directory contains"):
        push_artifact(built, f"file:{built}:v1")
    assert sorted(built.iterdir()) == before
    (tmp_path / "layout").mkdir()
    (tmp_path / "layout" / ".gitignore").touch()
    monkeypatch.chdir(tmp_path / "layout")
    push_artifact(built, "file:.:v1")
    assert (tmp_path / ".layout.lock").exists()
    (tmp_path / "nowhere").symlink_to(tmp_path / "absent")
    for address in (f"file:{tmp_path}/nowhere:v1", f"file:{tmp_path}/nowhere/a.tar:v1"):
        with pytest.raises(TrtspecError, match="cannot be created"):
            push_artifact(built, address)


def push_until_rename(built: Path, address: str, name: str) -> None:
    """Push in a child process, which ends as if it was killed when it renames a file to a name that matches."""
    rename, replace = os.rename, os.replace

    def ending(call: Any, source: Any, target: Any, **options: Any) -> None:
        if re.fullmatch(name, os.path.basename(target)):
            os._exit(9)
        call(source, target, **options)

    if (child := os.fork()) == 0:
        os.rename, os.replace = partial(ending, rename), partial(ending, replace)
        push_artifact(built, address)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.parametrize("name", ["index.json", "oci-layout", "document", "file"])
def test_temporary_file_of_a_killed_writer_is_deleted_by_the_next_one(tmp_path: Path, name: str) -> None:
    built, layout = make_artifact(tmp_path / "built", 3000, 1000), tmp_path / "layout"
    documents = {"document": manifest_sha256(built), "file": hashlib.sha256((built / DRAFT).read_bytes()).hexdigest()}
    push_until_rename(built, f"file:{layout}:v1", documents.get(name, name))
    assert [*layout.rglob(".*")]
    push_artifact(built, f"file:{layout}:v1")
    assert not [*layout.rglob(".*")]


@pytest.mark.parametrize("name", ["layout", "layout.tar"])
def test_full_disk_is_named_and_publishes_nothing(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(self: SequentialWriter, data: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    address = f"file:{tmp_path}/{name}:v1"
    monkeypatch.setattr(SequentialWriter, "write", fail)
    with pytest.raises(TrtspecError, match=f"{re.escape(address)}: no space left .*\n.*then push again"):
        push_artifact(built, address)
    assert not [each for each in tmp_path.rglob("*") if ".upload-" in each.name or ".tmp-" in each.name]


def test_file_that_is_read_again_while_its_end_is_hashed_is_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated upload reads into the buffers of pieces that are not hashed yet."""
    data = random.Random(0).randbytes(8 * PIECE_BYTES)
    (tmp_path / "file").write_bytes(data)
    record = FileRecord(path="file", size=len(data), segments=bytes_segments(data))
    update = SegmentsDigest.update

    def slow(self: SegmentsDigest, piece: bytes | memoryview) -> None:
        time.sleep(0.05)
        update(self, piece)

    monkeypatch.setattr(SegmentsDigest, "update", slow)
    with BlobSource(tmp_path / "file", record, lambda nbytes: None) as source:
        assert len(b"".join(islice(map(bytes, source.pieces(0, len(data))), 4))) == 4 * PIECE_BYTES
        assert b"".join(map(bytes, source.pieces(0, 4 * PIECE_BYTES))) == data[: 4 * PIECE_BYTES]
        assert source.sha256() == hashlib.sha256(data).hexdigest()


@pytest.mark.slow
@KINDS
def test_memory_is_bounded(tmp_path: Path, name: str) -> None:
    check_memory(large_artifact(tmp_path / "large", 64, files=4), f"file:{tmp_path}/{name}:v1", tmp_path / "out")
