# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3
from filelock import BaseFileLock

from tests.store.writing import Write, build, count, leftovers, overwrite
from trtspec.store import entry as entry_module
from trtspec.store.layout import Layout
from trtspec.store.store import Store


def test_entry_contains_the_files_the_step_wrote(store: Store, step: Write) -> None:
    assert store.get(step.key).why == "never built"
    assert store.get(step.key).status == "miss"
    assert build(store, step)
    entry = store.get(step.key).entry
    assert entry
    assert (entry.key, entry.name, entry.step_class) == (step.key, "write-abc", "Write")
    assert entry.created == "1970-01-01T00:00:00+00:00"
    assert entry.directory == store.root / "entries" / step.key[:2] / step.key
    assert [(file.path, file.size) for file in entry.files] == [("deep/er/one", 3), ("two", 3000)]
    assert entry.files[0].segments == (blake3(b"abc").hexdigest(),)
    assert {(entry.files_dir / file.path).stat().st_mode & 0o777 for file in entry.files} == {0o444}
    assert not leftovers(store)


def test_second_build_runs_no_step_and_hashes_no_file(
    store: Store, step: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(store, step)
    monkeypatch.setattr(entry_module, "file_segments", lambda paths: [])
    assert not build(store, step)
    assert store.get(step.key).status == store.peek(step.key).status == "hit"
    assert count(step) == 1


def test_build_rebuilds_a_damaged_entry(store: Store, step: Write) -> None:
    build(store, step)
    overwrite(store.root / "entries" / step.key[:2] / step.key / "files/two", 2000)
    assert build(store, step)


def test_entries_are_listed_removed_and_garbage_collected(store: Store, tmp_path: Path) -> None:
    steps = [Write(text, tmp_path / "runs") for text in ("a", "b", "c")]
    assert store.entries() == []
    assert store.verify() == []
    assert store.gc(set()) == []
    for step in steps:
        build(store, step)
    assert [entry.key for entry in store.entries()] == sorted(step.key for step in steps)
    assert sum(entry.total_bytes for entry in store.entries()) == 3 * 1001
    assert store.remove(steps[0].key)
    assert not store.remove(steps[0].key)
    assert store.gc({steps[1].key}) == [steps[2].key]
    assert [entry.name for entry in store.entries()] == ["write-b"]
    assert [path.stem for path in (store.root / "stamps").iterdir()] == [steps[1].key]
    assert not leftovers(store)


@pytest.mark.slow
def test_concurrent_processes_build_an_entry_once(
    store: Store, tmp_path: Path, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    slow = Write("slow", tmp_path / "runs", pause_s=0.2)
    assert [finish(pid) for pid in [start(lambda: build(store, slow)) for _ in range(4)]] == [0] * 4
    assert count(slow) == 1
    assert not leftovers(store)


def test_second_reader_of_a_damaged_entry_uses_the_rebuilt_one(
    store: Store, step: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second reader finds the entry that the first one rebuilt while holding the lock, and keeps it."""
    build(store, step)
    overwrite(store.root / "entries" / step.key[:2] / step.key / "files/two")

    class Late(Layout):
        def lock(self, key: str, timeout_s: float = -1) -> BaseFileLock:
            build(Store(self.root), step)
            return super().lock(key, timeout_s)

    monkeypatch.setattr(store, "_layout", Late(store.root))
    assert store.get(step.key).status == "hit"
    assert count(step) == 2
