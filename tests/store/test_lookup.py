# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.store.writing import Write, build, count, leftovers, overwrite
from trtspec.core.hashing import Segments, file_segments
from trtspec.store import entry as entry_module
from trtspec.store.digest import dump_checksummed
from trtspec.store.store import Store


def test_lookup_without_stamps_hashes_once(store: Store, step: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    build(store, step)
    (store.root / "stamps" / f"{step.key}.json").unlink()
    assert store.peek(step.key).status == "hit"
    assert not any((store.root / "stamps").iterdir()), "peek writes nothing"
    store.get(step.key)
    monkeypatch.setattr(entry_module, "file_segments", hash_nothing)
    assert store.get(step.key).status == "hit"


def hash_nothing(paths: Sequence[Path]) -> list[Segments]:
    assert not paths
    return []


def chop(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, 2)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("../../two")


def move_away(path: Path) -> None:
    path.rename(path.with_suffix(".away"))


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "flipped byte": ("files/deep/er/one", overwrite, "files/deep/er/one: bytes 0 to 2 differ"),
    "truncated": ("files/deep/er/one", chop, "files/deep/er/one has 2 bytes, 3 were recorded"),
    "missing": ("files/deep/er/one", Path.unlink, "files/deep/er/one is missing"),
    "symlink": ("files/deep/er/one", link, "files/deep/er/one is neither a file nor a directory"),
    "extra": ("files/deep/extra", Path.touch, "files/deep/extra is not part of the entry"),
    "no files": ("files", move_away, "files/ is missing"),
    "files elsewhere": ("files", lambda path: (move_away(path), path.symlink_to("files.away")), "files is a symlink"),
    "no document": ("entry.json", Path.unlink, "entry.json is missing, damaged or of another version"),
    "half a document": ("entry.json", chop, "entry.json is missing, damaged or of another version"),
    "flipped size": ("entry.json", lambda path: overwrite(path, path.read_bytes().index(b"3000")), "entry.json is"),
    "flipped time": ("entry.json", lambda path: overwrite(path, path.read_bytes().index(b"1970")), "entry.json is"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entry_is_reported_evicted_and_rebuilt(store: Store, step: Write, damage: str) -> None:
    place, harm, why = DAMAGES[damage]
    build(store, step)
    harm(store.root / "entries" / step.key[:2] / step.key / place)
    assert store.peek(step.key).why.startswith(f"corrupt: {why}")
    assert store.verify()[0].startswith(f"{step.key}: {why}")
    lookup = store.get(step.key)
    assert lookup.entry is None
    assert lookup.why.startswith(f"corrupt: {why}")
    assert lookup.why.endswith(", evicted")
    assert store.get(step.key).why == "never built"
    assert build(store, step)
    assert count(step) == 2
    assert store.verify() == []
    assert not leftovers(store)


def rewrite_document(store: Store, built: str, /, **changes: object) -> None:
    """Write a document with a valid digest, as a forger who knows the format could."""
    path = store.root / "entries" / built[:2] / built / "entry.json"
    body = json.loads(path.read_bytes())
    del body["digest"], body["schema"]
    path.write_bytes(dump_checksummed("trtspec.entry/3", {**body, **changes}))


@pytest.mark.parametrize("path", ["../two", "/etc/passwd", "deep/../two", "", "deep//er", "./two", "two/", "a\0b"])
def test_entry_with_a_path_outside_its_directory_is_rejected(store: Store, step: Write, path: str) -> None:
    build(store, step)
    rewrite_document(store, step.key, files=[{"path": path, "size": 1, "segments": ["0" * 64]}])
    assert f"{path!r} does not stay inside its directory" in store.peek(step.key).why


def test_entry_with_another_key_or_unknown_keys_is_rejected(store: Store, step: Write) -> None:
    build(store, step)
    rewrite_document(store, step.key, key="0" * 64)
    assert store.peek(step.key).why == f"corrupt: entry.json has the key {'0' * 64}"
    rewrite_document(store, step.key, directory="/etc", surplus=1)
    assert store.peek(step.key).why == "corrupt: entry.json: surplus: unknown key"


def test_files_are_hashed_only_20_ms_after_they_are_written(
    store: Store, step: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages = []

    def hash_and_note(paths: Sequence[Path]) -> list[Segments]:
        ages.extend(time.time_ns() - path.stat().st_mtime_ns for path in paths)
        return file_segments(paths)

    monkeypatch.setattr(entry_module, "file_segments", hash_and_note)
    build(store, step)
    assert len(ages) == 2
    assert min(ages) >= 20_000_000


def test_restamp_after_a_hard_link_avoids_hashing(
    store: Store, step: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = store.obtain(step).entry
    time.sleep(0.02)
    os.link(entry.files_dir / "two", tmp_path / "linked")
    assert store.restamp(step.key)
    monkeypatch.setattr(entry_module, "file_segments", hash_nothing)
    assert store.get(step.key).status == "hit"


@pytest.mark.parametrize("harm", [overwrite, chop, Path.unlink, link])
def test_restamp_rejects_any_other_change(store: Store, step: Write, harm: Callable[[Path], object]) -> None:
    entry = store.obtain(step).entry
    harm(entry.files_dir / "deep/er/one")
    assert not store.restamp(step.key)
    assert store.peek(step.key).status == "miss"
    assert not store.restamp("0" * 64)
