# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trtspec.errors import StepError, TrtspecError
from trtspec.files import file_sha256
from trtspec.graph import entry as entry_module
from trtspec.graph.sealed import seal
from trtspec.graph.step import Inputs, Progress, Step, notes_of
from trtspec.graph.store import Store


class Unshown:
    def advance(self, n_bytes: int) -> None: ...


@dataclass(frozen=True)
class Write(Step):
    """Writes two files and counts its runs in a file elsewhere."""

    VERSION = 1
    text: str
    runs: Path = field(metadata={"key": False})
    pause_s: float = field(default=0, metadata={"key": False})
    trouble: Callable[[Path], object] | None = field(default=None, metadata={"key": False})

    @property
    def name(self) -> str:
        return f"write-{self.text}"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        with self.runs.open("a") as file:
            file.write("x")
        (out / "deep" / "er").mkdir(parents=True)
        (out / "deep" / "er" / "one").write_text(self.text)
        time.sleep(self.pause_s)
        if self.trouble:
            self.trouble(out)
        (out / "two").write_text(self.text * 1000)


@pytest.fixture
def step(tmp_path: Path) -> Write:
    return Write("abc", tmp_path / "runs")


def build(store: Store, step: Step) -> bool:
    entry, built = store.build(step, Inputs({}), Unshown())
    assert (entry.files_dir / "deep/er/one").read_text() == entry.name.removeprefix("write-")
    return built


def count(step: Write) -> int:
    return step.runs.stat().st_size if step.runs.exists() else 0


def leftovers(store: Store) -> list[Path]:
    return [path for path in (store.root / "tmp").rglob("*") if path.exists()]


def test_an_entry_is_what_the_step_wrote(store: Store, step: Write) -> None:
    assert store.get(step.key).why == "never built"
    assert store.get(step.key).status == "miss"
    assert build(store, step)
    entry = store.get(step.key).entry
    assert entry
    assert (entry.key, entry.name, entry.step_class) == (step.key, "write-abc", "Write")
    assert entry.created == "1970-01-01T00:00:00+00:00"
    assert entry.directory == store.root / "entries" / step.key[:2] / step.key
    assert [(file.path, file.size) for file in entry.files] == [("deep/er/one", 3), ("two", 3000)]
    assert entry.files[0].sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert {(entry.files_dir / file.path).stat().st_mode & 0o777 for file in entry.files} == {0o444}
    assert not leftovers(store)


def test_everything_is_on_the_disk_before_the_entry_is_in_place(store: Store, step: Write, synced: list[str]) -> None:
    build(store, step)
    moved = synced.index("rename")
    workspace = str(next(Path(path).parent for path in synced if path.endswith("/files")))
    before = [path.removeprefix(workspace).lstrip("/") for path in synced[:moved]]
    assert sorted(before[:2]) == ["files/deep/er/one", "files/two"]
    assert before[2:] == ["files/deep/er", "files/deep", "files", "entry.tmp", ""]
    assert synced[moved + 1] == str(store.root / "entries" / step.key[:2])


def test_a_second_build_runs_nothing_and_reads_no_file(
    store: Store, step: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(store, step)
    monkeypatch.setattr(entry_module, "file_sha256", None)
    assert not build(store, step)
    assert store.get(step.key).status == store.peek(step.key).status == "hit"
    assert count(step) == 1


def test_the_first_reading_without_stamps_hashes_and_the_next_does_not(
    store: Store, step: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(store, step)
    (store.root / "stamps" / f"{step.key}.json").unlink()
    assert store.peek(step.key).status == "hit"
    assert not any((store.root / "stamps").iterdir()), "peek writes nothing"
    store.get(step.key)
    monkeypatch.setattr(entry_module, "file_sha256", None)
    assert store.get(step.key).status == "hit"


def overwrite(path: Path, position: int = 0) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)
        file.seek(position)
        file.write(bytes([byte[0] ^ 1]))


def chop(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, 2)


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("../../two")


def move_away(path: Path) -> None:
    path.rename(path.with_suffix(".away"))


DAMAGES: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "flipped byte": ("files/deep/er/one", overwrite, "files/deep/er/one: sha256 differs"),
    "truncated": ("files/deep/er/one", chop, "files/deep/er/one has 2 bytes, 3 were recorded"),
    "missing": ("files/deep/er/one", Path.unlink, "files/deep/er/one is missing"),
    "symlink": ("files/deep/er/one", link, "files/deep/er/one is neither a file nor a directory"),
    "extra": ("files/deep/extra", Path.touch, "files/deep/extra does not belong there"),
    "no files": ("files", move_away, "files/ is missing"),
    "files elsewhere": ("files", lambda path: (move_away(path), path.symlink_to("files.away")), "files is a symlink"),
    "no document": ("entry.json", Path.unlink, "entry.json is missing or damaged"),
    "half a document": ("entry.json", chop, "entry.json is missing or damaged"),
    "flipped size": ("entry.json", lambda path: overwrite(path, path.read_bytes().index(b"3000")), "entry.json is"),
    "flipped time": ("entry.json", lambda path: overwrite(path, path.read_bytes().index(b"1970")), "entry.json is"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_seen_by_all_and_rebuilt(store: Store, step: Write, damage: str) -> None:
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


def test_build_alone_sees_the_damage_too(store: Store, step: Write) -> None:
    build(store, step)
    overwrite(store.root / "entries" / step.key[:2] / step.key / "files/two", 2000)
    assert build(store, step)


def rewrite_document(store: Store, built: str, /, **changes: object) -> None:
    """Write a document with a sound seal, as somebody who knows the format could."""
    path = store.root / "entries" / built[:2] / built / "entry.json"
    body = json.loads(path.read_bytes())
    del body["digest"], body["schema"]
    path.write_bytes(seal("trtspec.entry/1", {**body, **changes}))


@pytest.mark.parametrize("path", ["../two", "/etc/passwd", "deep/../two", "", "deep//er", "./two", "two/", "a\0b"])
def test_a_path_that_leaves_the_entry_is_refused(store: Store, step: Write, path: str) -> None:
    build(store, step)
    rewrite_document(store, step.key, files=[{"path": path, "size": 1, "sha256": "0" * 64}])
    assert f"{path!r} does not stay inside its directory" in store.peek(step.key).why


def test_an_entry_of_another_key_or_form_is_refused(store: Store, step: Write) -> None:
    build(store, step)
    rewrite_document(store, step.key, key="0" * 64)
    assert store.peek(step.key).why == f"corrupt: entry.json is that of {'0' * 64}"
    rewrite_document(store, step.key, directory="/etc", surplus=1)
    assert store.peek(step.key).why == "corrupt: entry.json: Extra inputs are not permitted"


def test_a_key_is_not_a_path(store: Store) -> None:
    with pytest.raises(TrtspecError, match=r"'\.\./x' is not the key of a step: those are 64 hex digits"):
        store.remove("../x")


def test_no_file_is_hashed_in_the_tick_it_was_written_in(
    store: Store, step: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    ages = []

    def hash_and_note(path: Path) -> str:
        ages.append(time.time_ns() - path.stat().st_mtime_ns)
        return file_sha256(path)

    monkeypatch.setattr(entry_module, "file_sha256", hash_and_note)
    build(store, step)
    assert len(ages) == 2
    assert min(ages) >= 20_000_000


def test_restamp_after_hard_links(store: Store, step: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry, _ = store.build(step, Inputs({}), Unshown())
    time.sleep(0.02)
    os.link(entry.files_dir / "two", tmp_path / "linked")
    assert store.restamp(step.key)
    monkeypatch.setattr(entry_module, "file_sha256", None)
    assert store.get(step.key).status == "hit"


@pytest.mark.parametrize("harm", [overwrite, chop, Path.unlink, link])
def test_restamp_accepts_nothing_else(store: Store, step: Write, harm: Callable[[Path], object]) -> None:
    entry, _ = store.build(step, Inputs({}), Unshown())
    harm(entry.files_dir / "deep/er/one")
    assert not store.restamp(step.key)
    assert store.peek(step.key).status == "miss"
    assert not store.restamp("0" * 64)


def test_housekeeping(store: Store, tmp_path: Path) -> None:
    steps = [Write(text, tmp_path / "runs") for text in ("a", "b", "c")]
    assert store.entries() == []
    assert store.verify() == []
    assert store.gc(set()) == []
    for step in steps:
        build(store, step)
    assert [entry.key for entry in store.entries()] == sorted(step.key for step in steps)
    assert store.size() == 3 * 1001
    assert store.remove(steps[0].key)
    assert not store.remove(steps[0].key)
    assert store.gc({steps[1].key}) == [steps[2].key]
    assert [entry.name for entry in store.entries()] == ["write-b"]
    assert [path.stem for path in (store.root / "stamps").iterdir()] == [steps[1].key]
    assert not leftovers(store)


def refuse(code: int, filename: str | None = None) -> Callable[[Path], object]:
    def trouble(out: Path) -> None:
        raise OSError(code, os.strerror(code), filename)

    return trouble


@pytest.mark.parametrize(
    ("code", "filename", "said"),
    [
        (28, None, "no space left on {root} while building write-x; nothing was published"),
        (28, "/other/disk", "no space left on /other/disk while building write-x; nothing was published"),
        (122, None, "the disk quota is used up on {root} while building write-x; nothing was published"),
        (5, None, "the disk fails to read or write {root} while building write-x; nothing was published"),
    ],
)
def test_what_the_machine_refuses_is_said_in_words(
    store: Store, tmp_path: Path, code: int, filename: str | None, said: str
) -> None:
    with pytest.raises(StepError) as caught:
        build(store, Write("x", tmp_path / "runs", trouble=refuse(code, filename)))
    assert caught.value.message == said.format(root=store.root)
    assert "TRTSPEC_CACHE" in str(caught.value)
    assert not leftovers(store)
    assert build(store, Write("x", tmp_path / "runs"))


def raise_(error: BaseException) -> Callable[[Path], object]:
    def trouble(out: Path) -> None:
        raise error

    return trouble


@pytest.mark.parametrize(
    "error", [TrtspecError("no"), ValueError("bug"), FileNotFoundError(2, "bug"), KeyboardInterrupt(), SystemExit()]
)
def test_every_other_exception_passes_and_leaves_nothing(store: Store, tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        build(store, Write("x", tmp_path / "runs", trouble=raise_(error)))
    assert caught.value is error
    assert not leftovers(store)
    assert store.entries() == []


def test_a_step_may_write_files_only(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"write-x wrote what cannot be kept: files/pipe is neither a file nor a dir"):
        build(store, Write("x", tmp_path / "runs", trouble=lambda out: os.mkfifo(out / "pipe")))
    assert not leftovers(store)


def test_a_store_that_cannot_be_made_is_said(step: Write, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / "store")
    assert store.peek(step.key).why == store.get(step.key).why == "never built"
    with pytest.raises(
        TrtspecError, match=r"/file/store: no store can be made: Not a directory\nhint: set TRTSPEC_CACHE"
    ):
        build(store, step)


KILLS = ["store.before-entry", "store.before-rename", "store.after-rename"]


@pytest.mark.parametrize("failpoint", KILLS)
def test_killed_builds_leave_nothing_visible_and_are_cleaned_up(
    store: Store, step: Write, failpoint: str, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    published = failpoint == "store.after-rename"
    assert finish(start(lambda: build(store, step), failpoint)) == -9
    assert store.peek(step.key).status == ("hit" if published else "miss")
    assert len(store.entries()) == published
    assert bool(leftovers(store)) != published
    assert build(store, step) != published
    assert not leftovers(store)
    assert store.verify() == []


def test_a_build_killed_inside_the_step_is_collected_by_the_next_build_of_anything(
    store: Store, tmp_path: Path, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    def die(out: Path) -> None:
        os.kill(os.getpid(), 9)

    dying = Write("a", tmp_path / "runs", trouble=die)
    assert finish(start(lambda: build(store, dying))) == -9
    assert leftovers(store)
    assert build(store, Write("b", tmp_path / "runs"))
    assert not leftovers(store)


def test_an_eviction_killed_half_way_is_finished_later(
    store: Store, step: Write, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    build(store, step)
    overwrite(store.root / "entries" / step.key[:2] / step.key / "files/two")
    assert finish(start(lambda: store.get(step.key), "store.before-delete")) == -9
    assert store.peek(step.key).why == "never built"
    assert build(store, step)
    assert not leftovers(store)


def test_two_processes_build_once(
    store: Store, tmp_path: Path, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    slow = Write("slow", tmp_path / "runs", pause_s=0.2)
    assert [finish(pid) for pid in [start(lambda: build(store, slow)) for _ in range(4)]] == [0] * 4
    assert count(slow) == 1
    assert not leftovers(store)


def test_the_workspace_of_a_living_process_is_left_alone(
    store: Store, tmp_path: Path, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    slow = Write("slow", tmp_path / "runs", pause_s=0.3)
    pid = start(lambda: build(store, slow))
    deadline = time.monotonic() + 5
    while not count(slow) and time.monotonic() < deadline:
        time.sleep(0.005)
    build(store, Write("quick", tmp_path / "other"))
    assert finish(pid) == 0
    assert len(store.entries()) == 2


def test_two_readers_of_a_damaged_entry_throw_away_one(store: Store, step: Write) -> None:
    """The second reader finds, under the lock, what a first one has rebuilt meanwhile, and keeps it."""
    build(store, step)
    overwrite(store.root / "entries" / step.key[:2] / step.key / "files/two")

    class Late(Store):
        def _lock(self, key: str, timeout_s: float = -1) -> object:  # type: ignore[override]
            build(Store(self.root), step)
            return super()._lock(key, timeout_s)

    assert Late(store.root).get(step.key).status == "hit"
    assert count(step) == 2


FULL_DISK = """
    from pathlib import Path
    import sys
    from dataclasses import dataclass
    from trtspec.errors import StepError
    from trtspec.graph.step import Step, Inputs
    from trtspec.graph.store import Store

    @dataclass(frozen=True)
    class Fill(Step):
        VERSION = 1
        size: int
        name = "fill"
        def run(self, out, inputs, progress):
            (out / "file").write_bytes(bytes(self.size))

    store = Store(Path(sys.argv[1]))
    small = store.build(Fill(1000), Inputs({}), None)
    try:
        store.build(Fill(2 << 20), Inputs({}), None)
    except StepError as error:
        print(error)
    print(store.verify(), [path.name for path in (store.root / "tmp").iterdir()], len(store.entries()))
    print(store.build(Fill(2000), Inputs({}), None)[1])
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    mounted = [
        "unshare",
        "-rm",
        "sh",
        "-c",
        'mount -t tmpfs -o size=1m none "$1" && shift && exec "$@"',
        "sh",
        tmp_path,
    ]
    try:
        allowed = subprocess.run([*mounted, "true"], capture_output=True, text=True, timeout=10, check=False)
    except FileNotFoundError:
        pytest.skip("no unshare command on this machine")
    if allowed.returncode:
        pytest.skip(f"no file system can be mounted here: {allowed.stderr.strip()}")
    command = [*mounted, sys.executable, "-c", textwrap.dedent(FULL_DISK), tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    said, hint, after, built = done.stdout.splitlines()
    assert said == f"no space left on {tmp_path} while building fill; nothing was published"
    assert hint.startswith("hint: ")
    assert after == "[] [] 1"
    assert built == "True"


@dataclass(frozen=True)
class Append(Step):
    """A resumable step: each run adds a file, and notes it, until there are three."""

    VERSION = 1
    RESUMABLE = True
    trouble: Callable[[], object] | None = field(default=None, metadata={"key": False})

    @property
    def name(self) -> str:
        return "append"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        assert all(path.stat().st_mode & 0o200 for path in out.iterdir())  # root could write to them all the same
        notes = notes_of(out) / "done"
        while (done := len(notes.read_text()) if notes.exists() else 0) < 3:
            (out / f"file{done}").write_text(str(done))
            notes.write_text("x" * (done + 1))
            if self.trouble:
                self.trouble()


def fail() -> None:
    raise StepError("no more")


def test_a_resumable_step_goes_on_where_it_failed(store: Store) -> None:
    partial = store.root / "partial" / Append().key
    for done in (1, 2):
        with pytest.raises(StepError, match="no more"):
            store.build(Append(fail), Inputs({}), Unshown())
        assert (partial / "notes" / "done").read_text() == "x" * done
        assert store.peek(Append().key).why == "never built"
    entry, built = store.build(Append(), Inputs({}), Unshown())
    assert built
    assert [file.path for file in entry.files] == ["file0", "file1", "file2"]
    assert sorted(path.name for path in entry.directory.iterdir()) == ["entry.json", "files"]
    assert not partial.exists()


@pytest.mark.parametrize("point", ["store.before-entry", "store.before-rename"])
def test_a_resumable_step_killed_when_it_was_sealed_is_written_to_again(
    store: Store, die_at: Callable[[str, Callable[[], object]], int], point: str
) -> None:
    assert die_at(point, lambda: store.build(Append(), Inputs({}), Unshown())) == -9
    files = store.root / "partial" / Append().key / "files"
    assert {path.stat().st_mode & 0o777 for path in files.iterdir()} == {0o444}
    entry, built = store.build(Append(), Inputs({}), Unshown())
    assert built
    assert len(entry.files) == 3
    assert store.get(Append().key).entry


def test_gc_throws_away_what_could_be_resumed_unless_it_is_being_written(store: Store) -> None:
    with pytest.raises(StepError):
        store.build(Append(fail), Inputs({}), Unshown())
    partial = store.root / "partial" / Append().key
    with store._lock(Append().key):
        Store(store.root).gc(keep=set())
        assert partial.exists()
    store.gc(keep=set())
    assert not partial.exists()
