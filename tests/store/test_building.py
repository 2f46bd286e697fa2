# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.writing import Append, Write, build, fail, leftovers
from trtspec.core.errors import SourceChanged, StepError, TrtspecError
from trtspec.store.store import Store


def test_files_are_synced_before_the_entry_is_renamed_into_place(store: Store, step: Write, synced: list[str]) -> None:
    build(store, step)
    moved = synced.index("rename")
    workspace = str(next(Path(path).parent for path in synced if path.endswith("/files")))
    before = [path.removeprefix(workspace).lstrip("/") for path in synced[:moved]]
    assert sorted(before[:5]) == ["files", "files/deep", "files/deep/er", "files/deep/er/one", "files/two"]
    assert re.fullmatch(r"\.entry\.json\.[0-9a-f]{16}\.tmp", before[5])
    assert before[6:] == [""]
    assert synced[moved + 1] == str(store.root / "entries" / step.key[:2])


def raise_(error: BaseException) -> Callable[[Path], object]:
    def trouble(out: Path) -> None:
        raise error

    return trouble


@pytest.mark.parametrize(
    "error", [TrtspecError("no"), ValueError("bug"), FileNotFoundError(2, "bug"), KeyboardInterrupt(), SystemExit()]
)
def test_other_exceptions_propagate_without_leftovers(store: Store, tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        build(store, Write("x", tmp_path / "runs", trouble=raise_(error)))
    assert caught.value is error
    assert not leftovers(store)
    assert store.entries() == []


def test_step_output_that_is_not_a_file_is_rejected(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StepError, match=r"invalid output of write-x: files/pipe is neither a file nor a dir"):
        build(store, Write("x", tmp_path / "runs", trouble=lambda out: os.mkfifo(out / "pipe")))
    assert not leftovers(store)


KILLS = ["store.before-entry", "store.before-rename", "store.after-rename"]


@pytest.mark.parametrize("failpoint", KILLS)
def test_killed_build_leaves_no_visible_entry_and_is_cleaned_up(
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


FULL_DISK = """
    from pathlib import Path
    import sys
    from dataclasses import dataclass
    from trtspec.core.errors import StepError
    from trtspec.store.step import Step, Inputs
    from trtspec.store.store import Store

    @dataclass(frozen=True)
    class Fill(Step):
        VERSION = 1
        size: int
        name = "fill"
        def run(self, out, inputs, progress):
            (out / "file").write_bytes(bytes(self.size))

    store = Store(Path(sys.argv[1]))
    small = store.obtain(Fill(1000))
    try:
        store.obtain(Fill(2 << 20))
    except StepError as error:
        print(error)
    print(store.verify(), [path.name for path in (store.root / "tmp").iterdir()], len(store.entries()))
    print(store.obtain(Fill(2000)).built)
"""


@pytest.mark.slow
def test_full_disk_is_reported_and_nothing_is_published(tmp_path: Path) -> None:
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


def test_resumable_step_resumes_where_it_failed(store: Store) -> None:
    partial = store.root / "partial" / Append().key
    for done in (1, 2):
        with pytest.raises(StepError, match="no more"):
            store.obtain(Append(fail))
        assert (partial / "notes" / "done").read_text() == "x" * done
        assert store.peek(Append().key).why == "never built"
    obtained = store.obtain(Append())
    assert obtained.built
    assert [file.path for file in obtained.entry.files] == ["file0", "file1", "file2"]
    assert sorted(path.name for path in obtained.entry.directory.iterdir()) == ["entry.json", "files"]
    assert not partial.exists()


def test_resumable_step_with_a_changed_source_restarts(store: Store) -> None:
    with pytest.raises(SourceChanged):
        store.obtain(Append(lambda: raise_(SourceChanged("another"))(Path())))
    runs = list[str]()
    store.obtain(Append(lambda: runs.append("run")))
    assert len(runs) == 3


@pytest.mark.parametrize("point", ["store.before-entry", "store.before-rename"])
def test_resumable_step_killed_after_sealing_is_resumed(
    store: Store, die_at: Callable[[str, Callable[[], object]], int], point: str
) -> None:
    assert die_at(point, lambda: store.obtain(Append())) == -9
    files = store.root / "partial" / Append().key / "files"
    assert {path.stat().st_mode & 0o777 for path in files.iterdir()} == {0o444}
    obtained = store.obtain(Append())
    assert obtained.built
    assert len(obtained.entry.files) == 3
    assert store.get(Append().key).entry
