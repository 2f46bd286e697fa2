# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.writing import Write, build, leftovers
from trtspec.core.errors import StepError, TrtspecError
from trtspec.store.store import Store


def test_key_that_is_a_path_is_rejected(store: Store) -> None:
    with pytest.raises(TrtspecError, match=r"'\.\./x' is not a step key: expected 64 hex digits"):
        store.remove("../x")


def refuse(code: int, filename: str | None = None) -> Callable[[Path], object]:
    def trouble(out: Path) -> None:
        raise OSError(code, os.strerror(code), filename)

    return trouble


@pytest.mark.parametrize(
    ("code", "filename", "said"),
    [
        (28, None, "no space left on {root} while building write-x; nothing was published"),
        (28, "/other/disk", "no space left on /other/disk while building write-x; nothing was published"),
        (122, None, "disk quota exceeded on {root} while building write-x; nothing was published"),
        (5, None, "disk I/O error at {root} while building write-x; nothing was published"),
    ],
)
def test_os_error_is_reported_with_a_readable_message(
    store: Store, tmp_path: Path, code: int, filename: str | None, said: str
) -> None:
    with pytest.raises(StepError) as caught:
        build(store, Write("x", tmp_path / "runs", trouble=refuse(code, filename)))
    assert caught.value.message == said.format(root=store.root)
    assert "TRTSPEC_CACHE" in str(caught.value)
    assert not leftovers(store)
    assert build(store, Write("x", tmp_path / "runs"))


def test_full_disk_during_a_copy_names_the_destination(store: Store, tmp_path: Path) -> None:
    """The message must not name the copied file, although `shutil` names it first."""

    def copy(out: Path) -> None:
        raise OSError(28, os.strerror(28), "/models/target/tokenizer.json", None, str(out / "tokenizer.json"))

    with pytest.raises(StepError, match=f"no space left on {store.root} while building"):
        build(store, Write("x", tmp_path / "runs", trouble=copy))


def test_store_that_cannot_be_created_is_reported(step: Write, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = Store(tmp_path / "file" / "store")
    assert store.peek(step.key).why == store.get(step.key).why == "never built"
    with pytest.raises(
        TrtspecError, match=r"/file/store: cannot create the store: Not a directory\nhint: set TRTSPEC_CACHE"
    ):
        build(store, step)
