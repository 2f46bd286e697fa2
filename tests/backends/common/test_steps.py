# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtspec.backends.common.convert import Calibrate, ConvertCheckpoint
from trtspec.backends.common.steps import CopyFiles, read_models
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import StepError
from trtspec.core.paths import model_repository_dir
from trtspec.store.digest import DigestCache
from trtspec.store.files import UNREAD, FileReader, Files
from trtspec.store.step import Inputs, StepProgress

LONG_AGO = 10**18


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    root.mkdir()
    for name, text in (("b", "two"), ("a", "one")):
        (root / name).write_text(text)
        os.utime(root / name, ns=(LONG_AGO, LONG_AGO))
    return root


@pytest.fixture
def digests(tmp_path: Path) -> DigestCache:
    return DigestCache(tmp_path / "digests.json")


def read(root: Path, digests: DigestCache, unread_above: int | None = None) -> Files:
    return FileReader(digests, unread_above).read(root, root.iterdir())


def test_copy_step_key_depends_on_content_not_location(root: Path, digests: DigestCache, tmp_path: Path) -> None:
    files = read(root, digests)
    assert [name for name, _ in files.digests] == ["a", "b"]
    assert files.paths == [root / "a", root / "b"]
    assert files.is_read
    key = CopyFiles("x", files).key
    root.rename(tmp_path / "moved")
    assert CopyFiles("x", read(tmp_path / "moved", digests)).key == key
    (tmp_path / "moved" / "a").write_text("ONE")
    assert CopyFiles("x", read(tmp_path / "moved", digests)).key != key


def test_uncached_files_above_the_size_limit_remain_unread(
    root: Path, digests: DigestCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.store.digest.RACY_NS", -1)  # tests cannot set a file's ctime
    assert read(root, digests, unread_above=6).is_read  # 3 + 3 bytes
    other = DigestCache(root.parent / "none.json")
    files = read(root, other, unread_above=5)
    assert all(digest.startswith(UNREAD) for _, digest in files.digests)
    assert not files.is_read
    assert read(root, digests, unread_above=0).is_read  # cached digests are not read again


def test_missing_file_is_an_error(root: Path, digests: DigestCache) -> None:
    with pytest.raises(StepError, match=f"^{root}/nosuch: cannot be read: No such file or directory$"):
        FileReader(digests).read(root, [root / "a", root / "nosuch"])


def swap(root: Path) -> None:
    """Replace a file by another one of the same size and time."""
    (root / "c").write_text("eno")
    os.utime(root / "c", ns=(LONG_AGO, LONG_AGO))
    os.replace(root / "c", root / "a")


CHANGES: list[Callable[[Path], object]] = [
    lambda root: (root / "a").write_text("one"),
    swap,
    lambda root: (root / "a").unlink(),
    lambda root: ((root / "a").unlink(), (root / "a").mkdir()),
]


@pytest.mark.parametrize("change", CHANGES)
def test_file_change_during_a_step_replaces_other_errors(
    change: Callable[[Path], object], root: Path, digests: DigestCache
) -> None:
    files = read(root, digests)
    expected = f"^{root}/a: the file changed during the build\nhint: build again$"
    with pytest.raises(StepError, match=expected), files.unchanged():
        change(root)
    with pytest.raises(StepError, match=expected), files.unchanged():
        raise ValueError("a consequence")


def test_error_without_file_change_is_propagated(root: Path, digests: DigestCache) -> None:
    with pytest.raises(ValueError, match="ours"), read(root, digests).unchanged():
        raise ValueError("ours")


def test_copy_step_copies_all_files(root: Path, digests: DigestCache, tmp_path: Path) -> None:
    step = CopyFiles("things", read(root, digests))
    out = tmp_path / "out"
    out.mkdir()
    step.run(out, Inputs({}), StepProgress())
    assert {path.name: path.read_text() for path in out.iterdir()} == {"a": "one", "b": "two"}
    assert step.name == "copy-things"


def conversion(files: Files, **changes: Any) -> ConvertCheckpoint:
    fields: dict[str, Any] = {
        "role": "target",
        "source": files,
        "family_version": "",
        "dtype": "bfloat16",
        "mapping": ParallelMapping(),
        "scheme": Scheme(),
        "calibration": (),
        "heads": (),
        "allow_nonfinite": False,
        "vocab_size": 0,
        "nbytes": 6,
    }
    return ConvertCheckpoint(**fields | changes)


def calibration(files: Files, **changes: Any) -> Calibrate:
    fields: dict[str, Any] = {
        "role": "target",
        "source": files,
        "tokenizer": files,
        "prompts": files,
        "samples": 128,
        "max_len": 512,
        "nbytes": 6,
    }
    return Calibrate(**fields | changes)


def test_conversion_key_depends_on_every_option(root: Path, digests: DigestCache) -> None:
    files = read(root, digests)
    step = conversion(files)
    assert (step.name, step.total_bytes) == ("convert-target", 6)
    assert step.key == conversion(files, nbytes=7).key
    others: list[dict[str, Any]] = [
        {"role": "draft"},
        {"family_version": "toy 1.0"},
        {"dtype": "float16"},
        {"mapping": ParallelMapping(2)},
        {"mapping": ParallelMapping(1, 2)},
        {"mapping": ParallelMapping(embedding=False)},
        {"scheme": Scheme("fp8")},
        {"scheme": Scheme(kv_cache="fp8")},
        {"scheme": Scheme(exclude=())},
        {"allow_nonfinite": True},
        {"calibration": (calibration(files),)},
        {"calibration": (calibration(files, samples=1),)},
    ]
    assert len({step.key, *(conversion(files, **other).key for other in others)}) == len(others) + 1


def test_conversion_depends_on_its_calibration_step(root: Path, digests: DigestCache) -> None:
    files = read(root, digests)
    measured = calibration(files)
    assert (measured.name, measured.total_bytes) == ("calibrate-target", 6)
    assert conversion(files, calibration=(measured,)).dependencies == (measured,)
    assert measured.key == calibration(files, nbytes=7).key


def test_model_digests_cover_every_config_and_no_byte_code() -> None:
    models = dict(read_models())
    assert list(models) == sorted(models)
    for path in model_repository_dir().rglob("config.pbtxt"):
        assert len(models[path.relative_to(model_repository_dir()).as_posix()]) == 64
    assert not any("__pycache__" in path for path in models)
