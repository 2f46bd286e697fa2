# SPDX-License-Identifier: Apache-2.0
"""Sources that are found without preparation, and the errors for those that are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtspec.checkpoints.pickles import unpickled_dir
from trtspec.checkpoints.resolve import locate_source, prepare_source
from trtspec.checkpoints.source import snapshot_dir
from trtspec.core.errors import CheckpointError
from trtspec.recipe.schema import Target

COMMIT = "0123456789abcdef" * 2 + "01234567"
PINS = {"pytorch_model.bin": "0" * 64}


def model(path: Path | str, **keys: Any) -> Target:
    return Target.model_validate({"model": str(path), **keys})


@pytest.fixture
def snapshot(workplace: Path) -> Path:
    """An empty snapshot of org/model in the hub cache."""
    root = snapshot_dir("org/model", COMMIT)
    root.mkdir(parents=True)
    return root


def missing(source: Target, message: str, hint: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        locate_source(source)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_directory_is_located_as_itself_without_preparation(workplace: Path) -> None:
    assert locate_source(model(workplace)) == workplace
    prepare_source(model(workplace), lambda *_: pytest.fail("there is nothing to do"))


class TestAHubId:
    def test_hub_id_not_in_the_cache_is_an_error(self, workplace: Path) -> None:
        message = f"org/model at commit {COMMIT} is not in the hub cache"
        missing(model("org/model", revision=COMMIT), message, "trtspec build downloads it")

    @pytest.mark.parametrize("there", [[], ["config.json"], ["config.json", "a.safetensors"], ["a.safetensors"]])
    def test_incomplete_hub_id_is_an_error(self, snapshot: Path, there: list[str]) -> None:
        for name in there:
            (snapshot / name).touch()
        weight_map = {"a": "a.safetensors", "b": "b.safetensors"}
        (snapshot / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
        message = f"org/model at commit {COMMIT} is incomplete in the hub cache"
        missing(model("org/model", revision=COMMIT), message, "trtspec build downloads the rest")

    def test_hub_id_in_the_cache_is_located_without_preparation(self, snapshot: Path) -> None:
        for name in ("config.json", "model.safetensors"):
            (snapshot / name).touch()
        source = model("org/model", revision=COMMIT)
        assert locate_source(source) == snapshot
        prepare_source(source, lambda *_: pytest.fail("there is nothing to do"))


class TestPickles:
    def test_unconverted_pickles_are_an_error(self, workplace: Path) -> None:
        source = model(workplace, allow_pickle=True, sha256=PINS)
        hint = "trtspec build converts the pickles pinned by sha256 to safetensors"
        missing(source, "its weights are pickles that were not converted yet", hint)

    def test_converted_pickles_are_located_without_preparation(self, workplace: Path) -> None:
        unpickled_dir(workplace, PINS).mkdir(parents=True)
        source = model(workplace, allow_pickle=True, sha256=PINS)
        assert locate_source(source) == unpickled_dir(workplace, PINS)
        prepare_source(source, lambda *_: pytest.fail("there is nothing to do"))

    def test_hub_id_without_a_pinned_pickle_is_incomplete(self, snapshot: Path) -> None:
        for name in ("config.json", "model.safetensors"):
            (snapshot / name).touch()
        source = model("org/model", revision=COMMIT, allow_pickle=True, sha256=PINS)
        message = f"org/model at commit {COMMIT} is incomplete in the hub cache"
        missing(source, message, "trtspec build downloads the rest")
