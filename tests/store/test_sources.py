# SPDX-License-Identifier: Apache-2.0
"""Steps with sources outside the store: read once, then found by content, and noticed when they change."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trtspec.core.errors import SourceChanged, StepError
from trtspec.core.files import failpoint
from trtspec.core.hashing import GrowingDigest, Segments
from trtspec.store import files as files_module
from trtspec.store.digest import DigestCache
from trtspec.store.executor import StepResult, Unobserved, execute
from trtspec.store.files import FileReader, Files, hash_meanwhile, read_sources
from trtspec.store.plan import StepPlan
from trtspec.store.step import Inputs, Step, StepProgress, notes_dir
from trtspec.store.store import Store

PIECE = 1000


@dataclass(frozen=True)
class Upper(Step):
    """A resumable step that reads a file piece by piece, and writes it."""

    VERSION = 1
    RESUMABLE = True
    HASHES_SOURCES = True
    source: Files
    meanwhile: Callable[[int], object] = field(default=lambda done: None, metadata={"key": False})

    @property
    def name(self) -> str:
        return "upper"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        [path], target = self.source.paths, out / "upper"
        notes = notes_dir(out) / "done"
        done = int(notes.read_text()) if notes.exists() else 0
        with (
            read_sources([self.source], inputs) as digests,
            path.open("rb") as source,
            target.open("r+b" if done else "wb") as copy,
        ):
            source.seek(done), copy.seek(done)
            while piece := source.read(PIECE):
                copy.write(piece.upper())
                copy.flush()
                if path in digests:
                    digests[path].add(done, memoryview(piece))
                done += len(piece)
                notes.write_text(str(done))
                self.meanwhile(done)
                progress.advance(len(piece))
                failpoint("upper.piece")


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


def files(source: Path, digests: DigestCache, unread_above: int | None = None) -> Files:
    return FileReader(digests, unread_above).read(source.parent, [source])


either = pytest.mark.parametrize("unread_above", [None, 0], ids=["read", "unread"])


def run(step: Step, store: Store) -> StepResult:
    return execute(StepPlan([step]), store, Unobserved())[-1]


def test_unread_source_is_identified_by_its_identity(source: Path, digests: DigestCache) -> None:
    unread = FileReader(digests, 0).read(source.parent, [source])
    assert not unread.is_read
    assert unread.digests[0][1].startswith("unread ")
    assert Upper(unread).key != Upper(files(source, digests)).key


def test_source_is_read_once_and_found_by_content(
    source: Path, store: Store, digests: DigestCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.store.digest.RACY_NS", -1)  # tests cannot set a change time
    first = run(Upper(files(source, digests)), store)
    assert (first.status, (first.entry.files_dir / "upper").read_bytes()) == ("built", source.read_bytes().upper())
    copy = tmp_path / "copy" / "weights"
    copy.parent.mkdir()
    copy.write_bytes(source.read_bytes())
    second = run(Upper(files(copy, digests), lambda done: pytest.fail("it was built again")), store)
    assert (second.key, second.status) == (first.key, "hit")
    monkeypatch.setattr(files_module, "file_digests", lambda paths, on_bytes: [pytest.fail("read") for _ in paths])
    assert run(Upper(files(source, DigestCache(store.root.with_name("digests.json")))), store).status == "hit"
    monkeypatch.undo()
    copy.write_bytes(copy.read_bytes()[::-1])  # same size, different content
    assert run(Upper(files(copy, digests)), store).status == "built"


@pytest.mark.parametrize("pieces", [1, 0], ids=["added", "not-added"])
def test_key_of_a_step_with_an_unread_source_is_known_when_it_has_run(
    source: Path, store: Store, digests: DigestCache, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    if not pieces:  # a step may leave out bytes, which are read at its end
        monkeypatch.setattr(GrowingDigest, "add", lambda *_: None)
    unread = Upper(files(source, digests, 0))
    result = run(unread, store)
    assert result.key == result.step.key == Upper(files(source, digests)).key != unread.key
    assert [entry.key for entry in store.entries()] == [result.key]
    another = run(Upper(files(source, DigestCache(Path("none.json")), 0)), store)  # as if nobody had looked before
    assert (another.key, [entry.key for entry in store.entries()]) == (result.key, [result.key])
    assert store.all_resumable_bytes() == 0


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


@dataclass(frozen=True)
class Count(Step):
    """A step that reads a file by other means than a digest's, and does `meanwhile` before."""

    VERSION = 1
    HASHES_SOURCES = True
    source: Files
    meanwhile: Callable[[], object] = field(default=lambda: None, metadata={"key": False})

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        with hash_meanwhile([self.source], inputs):
            self.meanwhile()
            (out / "count").write_text(str(len(self.source.paths[0].read_bytes())))


def test_source_is_hashed_while_the_step_runs(
    source: Path, store: Store, digests: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, finish = threading.Event(), GrowingDigest.finish

    def finish_and_tell(self: GrowingDigest, descriptor: int, path: Path) -> Segments:
        segments = finish(self, descriptor, path)
        hashed.set()
        return segments

    monkeypatch.setattr(GrowingDigest, "finish", finish_and_tell)
    unread = Count(files(source, digests, 0), lambda: hashed.wait(10) or pytest.fail("the step waits for the hash"))
    assert run(unread, store).key == Count(files(source, digests)).key != unread.key


@pytest.mark.parametrize("change", [overwrite, replace, lambda path: os.truncate(path, 10), os.unlink])
def test_source_that_changes_while_it_is_hashed_is_rejected(
    source: Path, store: Store, digests: DigestCache, change: Callable[[Path], object]
) -> None:
    with pytest.raises(SourceChanged, match="the file changed during the build"):
        run(Count(files(source, digests, 0), lambda: change(source)), store)
    assert store.entries() == []


def test_failure_of_a_step_ends_its_hashing(source: Path, store: Store, digests: DigestCache) -> None:
    before = {*threading.enumerate()}
    with pytest.raises(ZeroDivisionError):
        run(Count(files(source, digests, 0), lambda: 1 / 0), store)
    assert store.entries() == []
    assert not [thread for thread in {*threading.enumerate()} - before if thread.name.startswith("ThreadPoolExecutor")]


def test_output_is_synced_before_it_is_renamed_into_place(
    source: Path, store: Store, digests: DigestCache, synced: list[str]
) -> None:
    step = Upper(files(source, digests))
    key = run(step, store).key
    workspace, moved = store.root / "partial" / step.key, synced.index("rename")
    names = [os.path.relpath(path, workspace) for path in synced[:moved] if path.startswith(str(workspace))]
    names = [re.sub(r"[0-9a-f]{16}", "*", name) for name in names]
    assert [*sorted(names[:2]), *names[2:]] == ["files", "files/upper", ".entry.json.*.tmp", "."]
    assert synced[moved + 1] == str(store.root / "entries" / key[:2])


@pytest.mark.parametrize("change", [overwrite, replace, lambda path: os.truncate(path, 10), os.unlink])
@pytest.mark.parametrize("at", [PIECE, 20 * PIECE])
@either
def test_source_that_changes_during_the_step_is_rejected(
    source: Path,
    store: Store,
    digests: DigestCache,
    change: Callable[[Path], object],
    at: int,
    unread_above: int | None,
) -> None:
    step = Upper(files(source, digests, unread_above), lambda done: change(source) if done == at else None)
    with pytest.raises(SourceChanged, match="the file changed during the build"):
        run(step, store)
    assert store.entries() == []
    assert not (store.root / "partial" / step.key / "notes").exists()


@either
def test_source_changed_after_a_kill_is_read_from_the_start(
    source: Path,
    store: Store,
    digests: DigestCache,
    die_at: Callable[[str, Callable[[], object]], int],
    unread_above: int | None,
) -> None:
    killed = Upper(files(source, digests, unread_above))
    assert die_at("upper.piece", lambda: run(killed, store)) == -signal.SIGKILL
    assert store.resumable_bytes(killed.key)
    overwrite(source)
    result = run(Upper(files(source, digests, unread_above)), store)
    assert (result.entry.files_dir / "upper").read_bytes() == source.read_bytes().upper()
    assert result.key == Upper(files(source, digests)).key != killed.key


@pytest.mark.slow
@either
def test_killed_step_resumes_until_it_is_complete(
    source: Path,
    store: Store,
    digests: DigestCache,
    die_at: Callable[[str, Callable[[], object]], int],
    unread_above: int | None,
) -> None:
    deaths = 0
    while die_at("upper.piece", lambda: run(Upper(files(source, digests, unread_above)), store)) == -signal.SIGKILL:
        deaths += 1
    assert deaths == -(-source.stat().st_size // PIECE)  # each process completes one piece
    [entry] = store.entries()
    assert (entry.files_dir / "upper").read_bytes() == source.read_bytes().upper()
    assert entry.key == Upper(files(source, digests)).key


@pytest.mark.parametrize("moment", ["store.before-entry", "store.before-rename", "store.after-rename"])
@either
def test_step_killed_around_publication_recovers_without_leftovers(
    moment: str,
    source: Path,
    store: Store,
    digests: DigestCache,
    die_at: Callable[[str, Callable[[], object]], int],
    unread_above: int | None,
) -> None:
    assert die_at(moment, lambda: run(Upper(files(source, digests, unread_above)), store)) == -signal.SIGKILL
    again = Store(store.root)  # its cache has the digests that the killed process saved
    is_published = again.has_shapes([Upper(files(source, again.digests, 0))])
    assert is_published == (moment == "store.after-rename")
    result = run(Upper(files(source, again.digests, None if is_published else unread_above)), again)
    assert (result.entry.files_dir / "upper").read_bytes() == source.read_bytes().upper()
    assert len(store.entries()) == 1
    assert store.all_resumable_bytes() == 0


@pytest.fixture
def blob(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
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


def test_hub_file_is_compared_with_its_name_once(
    blob: Callable[[str], Path], source: Path, digests: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.store.digest.RACY_NS", -1)  # tests cannot set a change time
    here = files(source, digests).digests
    linked = blob(hashlib.sha256(source.read_bytes()).hexdigest())
    assert files(linked, digests).digests == here  # keys do not depend on where a file came from
    monkeypatch.setattr(files_module, "digest_and_sha256", lambda path, on_bytes: pytest.fail("read again"))
    assert files(linked, digests).digests == here


def test_file_that_differs_from_its_hub_digest_is_rejected(blob: Callable[[str], Path], digests: DigestCache) -> None:
    linked, said = blob("ab" * 32), f"the file is damaged: its SHA-256 is [0-9a-f]{{64}}, the hub lists {'ab' * 32}"
    for _ in range(2):
        with pytest.raises(StepError, match=said):
            files(linked, digests)


@pytest.mark.parametrize("name", ["a" * 40, "A" * 64, "weights"])
def test_blob_name_that_is_not_a_sha256_is_ignored(
    blob: Callable[[str], Path], digests: DigestCache, name: str
) -> None:
    assert files(blob(name), digests).is_read


def test_link_to_a_blob_from_outside_the_hub_cache_is_ignored(
    source: Path, digests: DigestCache, tmp_path: Path
) -> None:
    stored = tmp_path / "blobs" / ("ab" * 32)
    stored.parent.mkdir()
    source.rename(stored)
    source.symlink_to(stored)
    assert files(source, digests).is_read
