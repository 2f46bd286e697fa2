# SPDX-License-Identifier: Apache-2.0
"""An artifact's files are hashed once, and again after any change."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from trtspec.core.hashing import Segments, file_segments
from trtspec.store import artifact as artifact_module
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_cache import remember_published, verify_changed
from trtspec.store.file_records import FileRecord


@pytest.fixture
def artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("trtspec.store.digest.RACY_NS", -1)  # tests cannot set a change time
    (tmp_path / "cache").mkdir()
    root = tmp_path / "artifact"
    (root / "deep").mkdir(parents=True)
    for name in ("one", "deep/two"):
        (root / name).write_text(f"content of {name}")
        os.utime(root / name, (1, 1))
    return root


@pytest.fixture
def manifest(artifact: Path) -> Manifest:
    named = [(name, artifact / name) for name in ("one", "deep/two")]
    records = [
        FileRecord(path=name, size=path.stat().st_size, segments=file_segments([path])[0]) for name, path in named
    ]
    return Manifest.model_construct(files=tuple(records))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch, artifact: Path) -> list[str]:
    noted: list[str] = []

    def note(paths: Sequence[Path]) -> list[Segments]:
        noted.extend(str(path.relative_to(artifact)) for path in paths)
        return file_segments(paths)

    monkeypatch.setattr(artifact_module, "file_segments", note)
    return noted


def test_unchanged_file_is_hashed_once(artifact: Path, manifest: Manifest, reads: list[str]) -> None:
    assert verify_changed(artifact, manifest) == ([], 0)
    assert sorted(reads) == ["deep/two", "one"]
    assert verify_changed(artifact, manifest) == ([], 2)
    assert len(reads) == 2


def test_published_files_are_not_hashed_again(artifact: Path, manifest: Manifest, reads: list[str]) -> None:
    remember_published(artifact, manifest)
    assert verify_changed(artifact, manifest) == ([], 2)
    assert reads == []


def overwrite(path: Path) -> None:
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"C")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def put_another(path: Path) -> None:
    before, other = path.stat(), path.with_name("other")
    other.write_bytes(b"C" + path.read_bytes()[1:])
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)


@pytest.mark.parametrize("change", [overwrite, put_another])
def test_changed_file_is_found_regardless_of_its_times(
    artifact: Path, manifest: Manifest, change: Callable[[Path], None], reads: list[str]
) -> None:
    verify_changed(artifact, manifest)
    change(artifact / "deep" / "two")
    for _ in range(2):
        assert verify_changed(artifact, manifest)[0] == ["deep/two: bytes 0 to 18 differ"]
    assert reads.count("one") == 1


def test_unlisted_files_and_links_are_reported(artifact: Path, manifest: Manifest) -> None:
    verify_changed(artifact, manifest)
    (artifact / "deep" / "three").touch()
    assert verify_changed(artifact, manifest)[0] == ["deep/three: not listed in the manifest"]
    (artifact / "deep" / "three").unlink()
    (artifact / "one").rename(artifact.parent / "one")
    (artifact / "one").symlink_to(artifact.parent / "one")
    assert verify_changed(artifact, manifest)[0] == ["one: not a regular file of the artifact"]


def test_cached_digests_are_compared_with_the_given_manifest(artifact: Path, manifest: Manifest) -> None:
    verify_changed(artifact, manifest)
    forged = manifest.files[0].model_copy(update={"segments": ("ab" * 32,)})
    other = Manifest.model_construct(files=(forged, manifest.files[1]))
    assert verify_changed(artifact, other)[0] == ["one: bytes 0 to 13 differ"]


def test_copied_artifact_is_hashed_again(artifact: Path, manifest: Manifest, reads: list[str], tmp_path: Path) -> None:
    verify_changed(artifact, manifest)
    reads.clear()
    shutil.copytree(artifact, tmp_path / "cache" / "artifact")  # copies times too
    shutil.rmtree(artifact)
    shutil.copytree(tmp_path / "cache" / "artifact", artifact)
    assert verify_changed(artifact, manifest) == ([], 0)
    assert len(reads) == 2


def test_files_on_another_file_system_are_not_cached(
    artifact: Path, manifest: Manifest, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", "/dev/shm")
    if os.stat("/dev/shm").st_dev == artifact.stat().st_dev:
        pytest.skip("one file system")
    remember_published(artifact, manifest)
    for _ in range(2):
        assert verify_changed(artifact, manifest) == ([], 0)
    assert len(reads) == 4


def test_tampered_cache_is_ignored(artifact: Path, manifest: Manifest, reads: list[str], tmp_path: Path) -> None:
    verify_changed(artifact, manifest)
    memory = tmp_path / "cache" / "artifacts.json"
    memory.write_text(memory.read_text().replace(manifest.files[0].digest, "ab" * 32))
    assert verify_changed(artifact, manifest) == ([], 0)
    assert len(reads) == 4
