# SPDX-License-Identifier: Apache-2.0
"""Manifests do not contain paths; `verify` still finds the source."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.bench.sources import find_source
from trtspec.core.errors import TrtspecError
from trtspec.store.artifact import load_manifest
from trtspec.store.artifact_cache import find_source_location, record_source_locations

Build = Callable[[Path, str], Path]


@pytest.fixture
def build(pair_master: Path, trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Build a copy of the pair in a separate directory with a separate store."""

    def make(place: Path, recipe: str) -> Path:
        shutil.copytree(pair_master, place)
        monkeypatch.setenv("TRTSPEC_CACHE", str(place / "cache"))
        monkeypatch.chdir(place)
        done = trtspec("build", recipe.format(place=place), "--out", place / "out")
        assert done.code == 0, done.err
        return place / "out"

    return make


def found(artifact: Path, source: Path | None = None) -> Path:
    return find_source(artifact, load_manifest(artifact), source)


@pytest.mark.slow
def test_same_inputs_give_the_same_manifest_in_any_directory(build: Build, workplace: Path) -> None:
    one = build(workplace / "one", "recipe.yaml")
    other = build(workplace / "deep" / "other", "{place}/recipe.yaml")
    assert (one / "manifest.json").read_bytes() == (other / "manifest.json").read_bytes()
    assert str(workplace) not in (one / "manifest.json").read_text()
    assert load_manifest(one).recipe.target.model == "./target"
    assert load_manifest(one).recipe.gates.prompts == "./prompts.jsonl"


@pytest.mark.slow
def test_source_is_found_after_the_artifact_moved(recipe: Path, artifact: Path) -> None:
    assert found(artifact) == recipe.parent / "target"
    assert found(artifact.rename(recipe.parent / "moved")) == recipe.parent / "target"


@pytest.mark.slow
def test_artifact_of_another_machine_requires_the_source_option(
    recipe: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(recipe.parent / "other"))
    with pytest.raises(TrtspecError) as caught:
        found(artifact)
    assert str(caught.value) == (
        f"{artifact}: the source of the target cannot be read: the artifact was built elsewhere, and its manifest "
        "records no source location\nhint: give its location with --source DIR"
    )
    assert found(artifact, recipe.parent / "target") == recipe.parent / "target"


def test_existing_source_is_preferred_among_equal_sources(artifact: Path, recipe: Path, workplace: Path) -> None:
    record_source_locations(load_manifest(artifact), {"target": str(workplace / "gone")})
    assert find_source_location(load_manifest(artifact), "target") == str(recipe.parent / "target")
    shutil.rmtree(recipe.parent / "target")
    assert find_source_location(load_manifest(artifact), "target") == str(workplace / "gone")


@pytest.mark.slow
def test_damaged_or_unwritable_source_record_is_ignored(artifact: Path, workplace: Path) -> None:
    (record,) = (workplace / "cache" / "origins").iterdir()
    record.write_text("{")
    assert find_source_location(load_manifest(artifact), "target") is None
    shutil.rmtree(record.parent)
    record.parent.write_text("in the way")
    record_source_locations(load_manifest(artifact), {"target": "/anywhere"})
    assert find_source_location(load_manifest(artifact), "target") is None
