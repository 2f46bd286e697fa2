# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests._support.manifests import resolved
from trtspec.core import files
from trtspec.core.errors import StepError, TrtspecError
from trtspec.store import artifact as manifest_module
from trtspec.store import artifact as publish
from trtspec.store import entry as entry_module
from trtspec.store.artifact import Manifest, StepRecord, load_manifest, publish_artifact, verify_files
from trtspec.store.executor import Unobserved, execute
from trtspec.store.plan import StepPlan
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.store.store import Store

Make = Callable[..., tuple[dict[str, Path], Manifest]]
OLD = {"one": "1", "deep/two": "22", "deep/three": "333"}
NEW = {"one": "I", "deep/two": "22", "four": "4444"}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "build" / "tiny"


@pytest.fixture(params=["exchange", "renames"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Parametrize over both ways to replace one artifact with another."""
    if request.param == "renames":
        monkeypatch.setattr(files, "swap_directories", lambda one, other: False)
    return str(request.param)


def contents(out: Path) -> dict[str, str]:
    paths = (path for path in out.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(out)): path.read_text() for path in paths}


def hidden(out: Path) -> list[str]:
    return sorted(path.name for path in out.parent.iterdir() if path != out)


def test_published_artifact_has_hard_links_and_a_manifest(out: Path, make: Make) -> None:
    files, manifest = make(OLD)
    assert publish_artifact(out, files, manifest) == "published"
    assert contents(out) == OLD
    assert load_manifest(out) == manifest
    assert verify_files(out, manifest) == []
    assert all((out / path).samefile(source) for path, source in files.items())
    assert hidden(out) == [".tiny.lock"]


def test_files_are_synced_before_the_artifact_is_renamed_into_place(
    out: Path, make: Make, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_artifact(out, *make(OLD))
    moved = synced.index("rename")
    root = min(synced[:moved], key=len)
    assert sorted(path.removeprefix(root) for path in synced[:moved]) == ["", "/deep", "/manifest.json"]
    assert synced[moved + 1 :] == [str(out.parent)]
    synced.clear()
    monkeypatch.setattr(os, "link", refuse_link(errno.EXDEV))
    publish_artifact(out, *make({"five": "5"}))
    assert synced[0].endswith("/five"), "a copy is new to the disk"


def test_republishing_unchanged_files_writes_and_hashes_nothing(
    out: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_artifact(out, *make(OLD))
    before = out.stat(), (out / "manifest.json").stat()
    monkeypatch.setattr(manifest_module, "file_segments", None)
    assert publish_artifact(out, *make(OLD)) == "unchanged"
    assert (out.stat(), (out / "manifest.json").stat()) == before


def test_publishing_different_files_replaces_the_artifact(out: Path, make: Make, way: str) -> None:
    publish_artifact(out, *make(OLD))
    assert publish_artifact(out, *make(NEW, step="b")) == "published"
    assert contents(out) == NEW
    assert load_manifest(out) == make(NEW, step="b")[1]
    assert hidden(out) == [".tiny.lock"]


def test_empty_directory_and_link_are_accepted_as_output(out: Path, make: Make, tmp_path: Path) -> None:
    out.mkdir(parents=True)
    assert publish_artifact(out, *make(OLD)) == "published"
    (tmp_path / "link").symlink_to(out)
    assert publish_artifact(tmp_path / "link", *make(NEW)) == "published"
    assert (tmp_path / "link").is_symlink()
    assert contents(out) == NEW


def refuse_link(code: int) -> Callable[[Path, Path], None]:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    return refuse


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_files_are_copied_where_hard_links_fail(
    out: Path, make: Make, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "link", refuse_link(code))
    files, manifest = make(OLD)
    assert publish_artifact(out, files, manifest) == "published"
    assert contents(out) == OLD
    assert not (out / "one").samefile(files["one"])
    assert (out / "one").stat().st_mode & 0o777 == 0o444
    assert publish_artifact(out, files, manifest) == "unchanged"
    (out / "one").chmod(0o644)
    (out / "one").write_text("X")
    assert publish_artifact(out, files, manifest) == "published"
    assert contents(out) == OLD


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: (path.unlink(), path.write_text("x"))])
def test_damaged_artifact_is_published_again(out: Path, make: Make, harm: Callable[[Path], object]) -> None:
    publish_artifact(out, *make(OLD))
    harm(out / "one")
    assert publish_artifact(out, *make(OLD)) == "published"
    assert contents(out) == OLD


@pytest.mark.parametrize("damage", [b'{"schema": "trtspec.manifest/1", "rec', b'{"schema": "trtspec.manifest/9"}'])
def test_artifact_with_a_damaged_manifest_is_replaced(out: Path, make: Make, damage: bytes) -> None:
    publish_artifact(out, *make(OLD))
    (out / "manifest.json").write_bytes(damage)
    assert publish_artifact(out, *make(OLD)) == "published"
    assert load_manifest(out) == make(OLD)[1]


@pytest.mark.parametrize("name", ["thesis.txt", "manifest.json"])
def test_directory_that_is_not_an_artifact_is_not_overwritten(out: Path, make: Make, name: str) -> None:
    out.mkdir(parents=True)
    (out / name).write_text("{}")
    with pytest.raises(TrtspecError, match=r"/tiny: not an artifact; refusing to overwrite\nhint: mov"):
        publish_artifact(out, *make(OLD))
    assert (out / name).read_text() == "{}"
    assert hidden(out) == [".tiny.lock"]


def test_file_at_the_output_path_is_not_overwritten(out: Path, make: Make) -> None:
    out.parent.mkdir()
    out.write_text("mine")
    with pytest.raises(TrtspecError, match="not an artifact; refusing"):
        publish_artifact(out, *make(OLD))
    assert out.read_text() == "mine"


@pytest.mark.parametrize("name", ["deep/notes.txt", "linked"])
def test_user_files_in_an_artifact_prevent_its_replacement(out: Path, make: Make, tmp_path: Path, name: str) -> None:
    publish_artifact(out, *make(OLD))
    (out / name).symlink_to(tmp_path) if name == "linked" else (out / name).write_text("mine")
    assert publish_artifact(out, *make(OLD)) == "unchanged"
    with pytest.raises(TrtspecError, match=f"contains files that are not its own: {name}\nhint: move them away"):
        publish_artifact(out, *make(NEW))
    assert load_manifest(out) == make(OLD)[1]
    (out / name).unlink()
    assert publish_artifact(out, *make(NEW)) == "published"


def test_reports_are_retained_only_while_the_steps_are_unchanged(out: Path, make: Make, way: str) -> None:
    publish_artifact(out, *make(OLD))
    (out / "reports/deep").mkdir(parents=True)
    (out / "reports/deep/bench.json").write_text("fast")
    (out / "deep/__pycache__").mkdir()
    (out / "deep/__pycache__/model.pyc").touch()
    assert publish_artifact(out, *make(NEW)) == "published"
    assert contents(out) == {**NEW, "reports/deep/bench.json": "fast"}
    assert publish_artifact(out, *make(NEW)) == "unchanged"
    assert publish_artifact(out, *make(NEW, step="b")) == "published"
    assert contents(out) == NEW


def test_report_that_is_part_of_the_artifact_is_replaced(out: Path, make: Make) -> None:
    publish_artifact(out, *make({"reports/build.json": "old"}))
    assert publish_artifact(out, *make({"reports/build.json": "new"})) == "published"
    assert contents(out) == {"reports/build.json": "new"}


def test_manifest_that_lists_other_files_raises_value_error(out: Path, make: Make) -> None:
    with pytest.raises(ValueError, match="the manifest and the files to publish differ"):
        publish_artifact(out, make(OLD)[0], make(NEW)[1])


@pytest.mark.parametrize("refused", ["_link_or_copy", "sync_directories", "replace_directory"])
def test_full_disk_leaves_the_old_artifact_intact(
    out: Path, make: Make, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    publish_artifact(out, *make(OLD))
    monkeypatch.setattr(publish, refused, refuse)
    with pytest.raises(
        StepError, match=r"/tiny: cannot publish the artifact: No space left on device: /.*\nhint: the old"
    ):
        publish_artifact(out, *make(NEW))
    assert contents(out) == OLD
    assert hidden(out) == [".tiny.lock"]


def test_failed_second_rename_restores_the_old_artifact(out: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    publish_artifact(out, *make(OLD))
    rename = os.rename

    def fail_once(source: Path, target: Path) -> None:
        if ".tmp-" in str(source):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(target))
        rename(source, target)

    monkeypatch.setattr(files, "swap_directories", lambda one, other: False)
    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(StepError, match="Input/output error"):
        publish_artifact(out, *make(NEW))
    assert contents(out) == OLD
    assert hidden(out) == [".tiny.lock"]


def test_output_path_that_cannot_be_created_is_reported(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StepError, match=r"cannot publish the artifact: (Not a directory|File exists): .*/file"):
        publish_artifact(tmp_path / "file" / "tiny", *make(OLD))


POINTS = ["publish.before-manifest", "publish.before-swap", "publish.after-swap"]
KILLS = [(way, point) for way in ("first", "exchange", "renames") for point in POINTS]
KILLS.append(("renames", "publish.between-renames"))


@pytest.mark.parametrize(("way", "failpoint"), KILLS, indirect=["way"])
def test_killed_publication_is_never_partially_visible_and_is_cleaned_up(
    out: Path, make: Make, way: str, failpoint: str, die_at: Callable[..., int]
) -> None:
    if way != "first":
        publish_artifact(out, *make(OLD))
    assert die_at(failpoint, lambda: publish_artifact(out, *make(NEW, step="b"))) == -9
    if out.exists():
        assert contents(out) == (NEW if failpoint == "publish.after-swap" else OLD)
        assert verify_files(out, load_manifest(out)) == []
    else:
        assert way == "first" or failpoint == "publish.between-renames"
    publish_artifact(out, *make(NEW, step="b"))
    assert contents(out) == NEW
    assert hidden(out) == [".tiny.lock"]


def test_artifact_hidden_by_a_kill_between_renames_is_restored(
    out: Path, make: Make, monkeypatch: pytest.MonkeyPatch, die_at: Callable[..., int]
) -> None:
    publish_artifact(out, *make(OLD))
    monkeypatch.setattr(files, "swap_directories", lambda one, other: False)
    die_at("publish.between-renames", lambda: publish_artifact(out, *make(NEW)))
    assert publish_artifact(out, *make(OLD)) == "unchanged"
    assert contents(out) == OLD


def test_cleanup_leaves_directories_with_other_names(out: Path, make: Make) -> None:
    out.parent.mkdir()
    others = [
        ".tiny.tmp-abc",
        ".tiny.tmp-0123456789abcdef0",
        ".tiny.tmp-b.tmp-0123456789abcdef",
        "tiny.tmp-0123456789abcdef",
        ".tinyXtmp-" + "0" * 16,
    ]
    for name in others:
        (out.parent / name).mkdir()
    publish_artifact(out, *make(OLD))
    assert hidden(out) == sorted([*others, ".tiny.lock"])


def test_reader_always_finds_a_manifest_during_republication(out: Path, make: Make) -> None:
    for name in ("one", "other"):
        (out.parent / name).mkdir(parents=True)
    if not files.swap_directories(out.parent / "one", out.parent / "other"):
        pytest.skip("this system cannot swap two directories in one move")
    both = [make(OLD), make(NEW, step="b")]
    publish_artifact(out, *both[0])
    done, gaps = threading.Event(), []

    def watch() -> None:
        while not done.is_set():
            if not (out / "manifest.json").exists():
                gaps.append(1)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for turn in range(1, 6):
            publish_artifact(out, *both[turn % 2])
    finally:
        done.set()
        watcher.join(30)
    assert not gaps


@dataclass(frozen=True)
class Many(Step):
    VERSION = 1
    count: int

    @property
    def name(self) -> str:
        return "many"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        for number in range(self.count):
            (out / f"{number}").write_text(str(number))


@pytest.mark.slow
def test_unchanged_artifact_of_2000_files_is_checked_without_hashing(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publish 2,000 files from the store, and check an unchanged artifact quickly from file stats alone."""
    store, plan = Store(tmp_path / "store"), StepPlan([Many(2000)])

    def run(expected: str) -> float:
        started = time.process_time()
        [result] = execute(plan, store, Unobserved())
        records = result.entry.files
        files = {record.path: result.entry.files_dir / record.path for record in records}
        step = StepRecord(name=result.name, key=result.key)
        backend = {"name": "embedded", "why": ""}
        manifest = Manifest(recipe=resolved(), steps=(step,), files=records, tools={}, gpu={}, backend=backend)
        assert publish_artifact(out, files, manifest) == expected
        return time.process_time() - started

    run("published")
    assert store.restamp(Many(2000).key)
    monkeypatch.setattr(entry_module, "file_segments", lambda paths: [])
    monkeypatch.setattr(manifest_module, "file_segments", None)
    assert min(run("unchanged") for _ in range(3)) < 0.3
