# SPDX-License-Identifier: Apache-2.0
"""A trained draft is published atomically, even if the process is killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from trtspec.core import files
from trtspec.core.errors import TrtspecError
from trtspec.training.draft_steps import RECORD
from trtspec.training.evaluation import TrainResult, check_draft_path, publish


@dataclass(frozen=True)
class Trained(TrainResult):
    """Return a result without a verdict."""

    def as_dict(self) -> dict[str, object]:
        return {"name": self.name}


@pytest.fixture
def make(tmp_path: Path) -> Callable[[str], TrainResult]:
    """Return a function that returns a draft with these weights."""

    def make(weights: str) -> TrainResult:
        trained = tmp_path / "store" / weights
        trained.mkdir(parents=True, exist_ok=True)
        (trained / "model.safetensors").write_text(weights)
        (trained / "model.safetensors").chmod(0o400)
        return Trained(weights, "eagle3", tmp_path / "drafts" / "mine", trained, None, {}, 0)  # type: ignore[arg-type]

    return make


def contents(out: Path) -> tuple[str, str]:
    return (out / "model.safetensors").read_text(), json.loads((out / RECORD).read_text())["name"]


@pytest.mark.parametrize("exchanges", [True, False])
@pytest.mark.parametrize("point", ["publish.before-swap", "publish.between-renames", "publish.after-swap"])
def test_killed_publication_loses_no_draft(
    make: Callable[[str], TrainResult],
    die_at: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    point: str,
    exchanges: bool,
) -> None:
    if not exchanges:
        monkeypatch.setattr(files, "swap_directories", lambda one, other: False)
    old, new = make("old"), make("new")
    publish(old)
    died = die_at(point, lambda: publish(new))
    assert died == (0 if exchanges and point == "publish.between-renames" else -9)
    publish(make("newest"))
    assert contents(old.out) == ("newest", "newest")
    assert sorted(path.name for path in old.out.parent.iterdir()) == [".mine.lock", "mine"]


def test_interrupted_rename_is_recovered(make: Callable[[str], TrainResult]) -> None:
    old = make("old")
    publish(old)
    old.out.rename(files.temporary_sibling(old.out, "old"))
    with files.exclusive_writer(old.out):
        assert contents(old.out) == ("old", "old")


def test_foreign_directory_is_not_replaced(make: Callable[[str], TrainResult]) -> None:
    out = make("new").out
    out.mkdir(parents=True)
    with pytest.raises(TrtspecError, match="not a trained draft; refusing to overwrite"):
        check_draft_path(out)
