# SPDX-License-Identifier: Apache-2.0
"""Steps with unread sources: they are hashed during the run and published under the key of their bytes."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from trtspec.core.errors import SourceChanged, StepError, TrtspecError
from trtspec.core.files import failpoint
from trtspec.core.hashing import HashlibBackend
from trtspec.store import files as files_module
from trtspec.store.digest import DigestCache
from trtspec.store.executor import StepResult, Unobserved, execute
from trtspec.store.files import ConcurrentHasher, FileReader, Files
from trtspec.store.plan import StepPlan
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir
from trtspec.store.store import Store

PIECE = 1000


@dataclass(frozen=True)
class Upper(Step):
    """A resumable step that reads a file piece by piece, and writes it."""

    VERSION = 1
    RESUMABLE = True
    source: Files
    meanwhile: Callable[[int], object] = field(default=lambda done: None, metadata={"key": False})
    tells: bool = field(default=True, metadata={"key": False})

    @property
    def name(self) -> str:
        return "upper"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        [path], target = self.source.paths, out / "upper"
        notes = notes_dir(out) / "done"
        done = int(notes.read_text()) if notes.exists() else 0
        with path.open("rb") as source, target.open("r+b" if done else "wb") as copy:
            source.seek(done), copy.seek(done)
            while piece := source.read(PIECE):
                copy.write(piece.upper())
                copy.flush()
                done += len(piece)
                notes.write_text(str(done))
                self.meanwhile(done)
                if self.tells:
                    progress.advance(len(piece))
                failpoint("upper.piece")


@dataclass(frozen=True)
class After(Step):
    """A step that depends on one with sources."""

    VERSION = 1
    upper: Upper

    @property
    def name(self) -> str:
        return "after"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        (out / "size").write_text(str((inputs[self.upper] / "upper").stat().st_size))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "hf" / "weights"
    path.parent.mkdir()
    path.write_bytes(os.urandom(20) + b"abcdefg" * 3000)
    os.utime(path, (1, 1))  # an old modification time
    return path


@pytest.fixture
def digests(store: Store) -> DigestCache:
    return store.digests


def files(source: Path, digests: DigestCache, *, read: bool = False) -> Files:
    return FileReader(digests, None if read else 0).read(source.parent, [source])


def run(step: Step, store: Store) -> StepResult:
    return execute(StepPlan([step]), store, Unobserved())[-1]


def test_entry_is_published_under_the_key_of_its_source_bytes(
    source: Path, store: Store, digests: DigestCache, tmp_path: Path
) -> None:
    step = Upper(files(source, digests))
    assert not step.source.is_read
    result = run(step, store)
    final = Upper(files(source, DigestCache(tmp_path / "other.json"), read=True))
    assert (result.key, result.status) == (final.key, "built")
    assert store.peek(final.key).entry
    assert not store.peek(step.key).entry
    assert (result.entry.files_dir / "upper").read_bytes() == source.read_bytes().upper()
    assert store.all_resumable_bytes() == 0
    assert run(Upper(files(source, digests)), store).status == "hit"  # the digest is cached


def test_output_is_synced_before_it_is_renamed_into_place(
    source: Path, store: Store, digests: DigestCache, synced: list[str]
) -> None:
    step = Upper(files(source, digests))
    key = run(step, store).key
    workspace, moved = store.root / "partial" / step.key, synced.index("rename")
    names = [os.path.relpath(path, workspace) for path in synced[:moved] if path.startswith(str(workspace))]
    assert [re.sub(r"[0-9a-f]{16}", "*", name) for name in names] == ["files/upper", "files", ".entry.json.*.tmp", "."]
    assert synced[moved + 1] == str(store.root / "entries" / key[:2])


def test_dependent_step_is_published_under_its_final_key(source: Path, store: Store, digests: DigestCache) -> None:
    results = execute(StepPlan([After(Upper(files(source, digests)))]), store, Unobserved())
    final = After(Upper(files(source, digests, read=True)))
    assert [each.key for each in results] == [final.upper.key, final.key]
    assert (results[1].entry.files_dir / "size").read_text() == str(source.stat().st_size)


def test_build_protects_its_final_keys_from_removal(source: Path, store: Store, digests: DigestCache) -> None:
    """Another process that clears the store between two steps does not remove the second step's inputs."""
    other, removed = Store(store.root), list[bool]()

    @dataclass(frozen=True)
    class Cleared(After):
        def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
            removed.append(other.remove(self.upper.key))
            super().run(out, inputs, progress)

    plan = StepPlan([Cleared(Upper(files(source, digests)))])
    with store.holding([step.key for step in plan.steps], "recipe"):
        results = execute(plan, store, Unobserved())
        assert removed == [False]
        assert [other.remove(result.key) for result in results] == [False, False]
    assert [other.remove(result.key) for result in results] == [True, True]


def test_key_is_protected_before_it_is_published(
    source: Path, store: Store, digests: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, step, held = Store(store.root), Upper(files(source, digests)), list[bool]()
    final = Upper(files(source, DigestCache(store.root / "none.json"), read=True)).key
    rename = os.rename

    def look(old: Path, new: Path) -> None:
        if old.exists() and new.name == final:
            held.append(final in other.uses.held())
        rename(old, new)

    monkeypatch.setattr(os, "rename", look)
    with store.holding([step.key], "recipe"):
        run(step, store)
    assert held == [True]


def test_existing_entry_of_a_source_with_equal_bytes_is_reused(
    source: Path, store: Store, digests: DigestCache
) -> None:
    first = run(Upper(files(source, digests)), store)
    copy = source.parent.parent / "copy" / "weights"
    copy.parent.mkdir()
    copy.write_bytes(source.read_bytes())
    store.gc({first.key})  # also removes the marker of similar builds
    second = run(Upper(files(copy, digests)), store)
    assert (second.key, second.status, second.entry.created) == (first.key, "hit", first.entry.created)
    assert store.all_resumable_bytes() == 0


def test_copied_source_is_hashed_before_building_and_reuses_the_entry(
    source: Path, store: Store, digests: DigestCache, tmp_path: Path
) -> None:
    first = run(Upper(files(source, digests)), store)
    again = tmp_path / "again" / "weights"
    again.parent.mkdir()
    again.write_bytes(source.read_bytes())
    second = run(Upper(files(again, digests), lambda done: pytest.fail("it was built again")), store)
    assert (second.key, second.status) == (first.key, "hit")
    again.write_bytes(again.read_bytes()[::-1])  # same size, different content
    assert run(Upper(files(again, digests)), store).status == "built"


def overwrite(path: Path) -> None:
    """Change a byte and hide the change as far as a user can."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(30)
        file.write(b"X")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path) -> None:
    """Replace the file with another of the same size and time."""
    before, other = path.stat(), path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(other, path)


@pytest.mark.parametrize("change", [overwrite, replace, lambda path: os.truncate(path, 10), os.unlink])
@pytest.mark.parametrize("at", [PIECE, 20 * PIECE])
def test_source_that_changes_during_the_step_is_rejected(
    source: Path, store: Store, digests: DigestCache, change: Callable[[Path], object], at: int
) -> None:
    step = Upper(files(source, digests), lambda done: change(source) if done == at else None)
    with pytest.raises((TrtspecError, FileNotFoundError)):
        run(step, store)
    assert store.entries() == []
    assert digests.lookup(source) is None if source.exists() else True


def test_source_changed_after_a_kill_is_read_from_the_start(
    source: Path, store: Store, digests: DigestCache, die_at: Callable[[str, Callable[[], object]], int]
) -> None:
    unread = Upper(files(source, digests))
    assert die_at("upper.piece", lambda: run(unread, store)) == -signal.SIGKILL
    assert store.resumable_bytes(unread.key)
    overwrite(source)
    result = run(Upper(files(source, digests)), store)
    assert (result.entry.files_dir / "upper").read_bytes() == source.read_bytes().upper()
    assert result.key == Upper(files(source, digests, read=True)).key


@pytest.mark.slow
def test_killed_step_resumes_until_it_is_complete(
    source: Path, store: Store, digests: DigestCache, die_at: Callable[[str, Callable[[], object]], int]
) -> None:
    deaths = 0
    while die_at("upper.piece", lambda: run(Upper(files(source, digests)), store)) == -signal.SIGKILL:
        deaths += 1
    assert deaths == -(-source.stat().st_size // PIECE)  # each process completes one piece
    [entry] = store.entries()
    assert (entry.files_dir / "upper").read_bytes() == source.read_bytes().upper()
    assert entry.key == Upper(files(source, digests, read=True)).key


@pytest.mark.parametrize("moment", ["store.before-entry", "store.before-rename", "store.after-rename"])
def test_step_killed_around_publication_recovers_without_leftovers(
    moment: str,
    source: Path,
    store: Store,
    digests: DigestCache,
    die_at: Callable[[str, Callable[[], object]], int],
) -> None:
    """Output is stored under a key derived from the source's times, and is found as long as the source is unread."""
    assert die_at(moment, lambda: run(Upper(files(source, digests)), store)) == -signal.SIGKILL
    again = Store(store.root)  # its cache has the digests that the killed process saved
    result = run(Upper(files(source, again.digests)), again)
    assert (result.entry.files_dir / "upper").read_bytes() == source.read_bytes().upper()
    assert result.key == Upper(files(source, again.digests, read=True)).key
    assert len(store.entries()) == 1
    assert store.all_resumable_bytes() == 0


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("lead", [1, 1 << 20])
def test_step_and_hasher_do_not_deadlock(
    source: Path, store: Store, digests: DigestCache, monkeypatch: pytest.MonkeyPatch, lead: int, tells: bool
) -> None:
    monkeypatch.setattr(files_module, "LEAD_BYTES", lead)
    monkeypatch.setattr(files_module, "available_memory", lambda: 0)
    assert run(Upper(files(source, digests), tells=tells), store).status == "built"


def test_resumed_step_does_not_wait_for_hashing_of_finished_bytes(
    source: Path, store: Store, digests: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hashing threads should only need data that the step has just read into the page cache."""
    monkeypatch.setattr(files_module, "LEAD_BYTES", 2 * PIECE)
    monkeypatch.setattr(files_module, "available_memory", lambda: 0)
    begun, resumed, in_time, told = threading.Event(), threading.Event(), list[bool](), list[int]()
    monkeypatch.setattr(HashlibBackend, "grow", lambda self, grown: (begun.set(), in_time.append(resumed.wait(10))))

    class Told(StepProgress):
        def resume(self, n_bytes: int) -> None:
            told.append(n_bytes)

    with ConcurrentHasher(Upper(files(source, digests)), digests, Told()) as beside:
        assert begun.wait(30)
        beside.resume(20 * PIECE)
        beside.advance(PIECE)
        resumed.set()
    assert all(in_time)
    assert told == [20 * PIECE]


@pytest.mark.parametrize(("memory", "waits"), [(0, True), (39 * PIECE, True), (40 * PIECE, False)])
def test_step_runs_ahead_of_hashing_only_with_enough_available_memory(
    source: Path, store: Store, digests: DigestCache, monkeypatch: pytest.MonkeyPatch, memory: int, waits: bool
) -> None:
    """Calibration reports a table of embeddings in one call, although it reads only a few rows."""
    monkeypatch.setattr(files_module, "LEAD_BYTES", PIECE)
    monkeypatch.setattr(files_module, "available_memory", lambda: memory)
    begun, ahead, seen = threading.Event(), threading.Event(), list[bool]()
    monkeypatch.setattr(HashlibBackend, "grow", lambda self, grown: (begun.set(), seen.append(ahead.wait(0.3))))
    with ConcurrentHasher(Upper(files(source, digests)), digests, StepProgress()) as beside:
        assert begun.wait(30)
        beside.advance(10 * PIECE)
        ahead.set()
    assert seen[0] is not waits


def test_failed_step_ends_the_hashing(source: Path, store: Store, digests: DigestCache) -> None:
    def fail(done: int) -> None:
        raise StepError("no more")

    with pytest.raises(StepError, match="no more"):
        run(Upper(files(source, digests), fail), store)
    assert store.entries() == []


@pytest.fixture
def blob(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """Make the source a file of the hub's cache, whose blob is named by a digest."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def make(sha256: str) -> Path:
        stored = tmp_path / "hub" / "models--a--b" / "blobs" / sha256
        stored.parent.mkdir(parents=True)
        source.rename(stored)
        linked = tmp_path / "hub" / "models--a--b" / "snapshots" / "0" / "weights"
        linked.parent.mkdir(parents=True)
        linked.symlink_to(stored)
        return linked

    return make


def test_hub_blob_name_is_used_as_the_digest(
    blob: Any, source: Path, store: Store, digests: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.store.digest.RACY_NS", -1)  # tests cannot set a change time
    linked = blob(hashlib.sha256(source.read_bytes()).hexdigest())
    step = Upper(files(linked, digests))
    assert step.source.is_read  # the plan has its final keys
    assert step.source.unproven == ("weights",)
    assert run(step, store).key == step.key
    assert digests.lookup(linked) == linked.resolve().name
    assert run(Upper(files(linked, digests)), store).status == "hit"


def test_file_that_differs_from_its_hub_digest_is_rejected(blob: Any, store: Store, digests: DigestCache) -> None:
    linked = blob("ab" * 32)
    with pytest.raises(
        StepError, match=f"the file is damaged: its SHA-256 is [0-9a-f]{{64}}, the hub lists {'ab' * 32}"
    ):
        run(Upper(files(linked, digests)), store)
    assert store.entries() == []


def test_partial_output_of_a_damaged_file_is_not_resumed(
    blob: Any, source: Path, store: Store, digests: DigestCache
) -> None:
    """The disk returned wrong data for a while: nothing that identifies the file changes."""
    good = source.read_bytes()
    linked = blob(hashlib.sha256(good).hexdigest())
    step = Upper(files(linked, digests), lambda done: damage(done) if done == PIECE else None)

    def damage(done: int) -> None:
        with (store.root / "partial" / step.key / "files" / "upper").open("r+b") as copy:
            copy.write(b"?")  # the wrong data that was read

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HashlibBackend, "grow", lambda self, grown: None)
        with pytest.raises(SourceChanged, match="the file is damaged"):
            run(step, store)
    result = run(Upper(files(linked, digests)), store)
    assert (result.entry.files_dir / "upper").read_bytes() == good.upper()


def test_damaged_file_ends_the_step_as_soon_as_it_is_hashed(
    blob: Any, source: Path, store: Store, digests: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked, hashed, pieces, wake = blob("ab" * 32), threading.Event(), list[int](), ConcurrentHasher._wake
    monkeypatch.setattr(ConcurrentHasher, "_wake", lambda self: (wake(self), hashed.set()))

    def wait_for_digest(done: int) -> None:
        pieces.append(done)
        assert hashed.wait(30)

    step = Upper(files(linked, digests), wait_for_digest)
    with pytest.raises(SourceChanged, match="the file is damaged"):
        run(step, store)
    assert pieces == [PIECE]


def test_digest_mismatch_stops_hashing_before_the_next_file(
    blob: Any, source: Path, store: Store, digests: DigestCache
) -> None:
    """A damaged file also stops the hashing of the others."""
    linked = blob("ab" * 32)
    other = linked.with_name("zzz")
    other.write_bytes(b"x" * PIECE)
    both = FileReader(digests, 0).read(linked.parent, [linked, other])
    hashed = ConcurrentHasher(Upper(both), digests, StepProgress())._files
    with pytest.raises(SourceChanged, match="the file is damaged"):
        hashed.digests(1)
    assert hashed._found[1] == ""


def test_partial_output_of_a_changed_file_is_discarded(source: Path, store: Store, digests: DigestCache) -> None:
    step = Upper(files(source, digests), lambda done: overwrite(source) if done == PIECE else None)
    with pytest.raises(SourceChanged, match="the file changed while it was being read"):
        run(step, store)
    assert not (store.root / "partial" / step.key / "notes").exists()


@pytest.mark.parametrize("name", ["a" * 40, "A" * 64, "weights"])
def test_blob_name_that_is_not_a_sha256_is_ignored(blob: Any, digests: DigestCache, name: str) -> None:
    assert not files(blob(name), digests).is_read


def test_link_to_a_blob_from_outside_the_hub_cache_is_ignored(
    source: Path, digests: DigestCache, tmp_path: Path
) -> None:
    stored = tmp_path / "blobs" / ("ab" * 32)
    stored.parent.mkdir()
    source.rename(stored)
    source.symlink_to(stored)
    assert not files(source, digests).is_read
