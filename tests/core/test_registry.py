# SPDX-License-Identifier: Apache-2.0
"""Extensions are found in trtspec's folder first, then among installed packages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from trtspec.core.errors import TrtspecError
from trtspec.core.registry import did_you_mean, discover, discover_all, find_extension

PACKAGE, ATTRIBUTE = "trtspec.methods", "METHOD"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory for installed packages, on sys.path during the test."""
    monkeypatch.syspath_prepend(str(tmp_path))
    discover_all.cache_clear()
    yield tmp_path
    discover_all.cache_clear()


def install(site: Path, entry: str) -> None:
    """Install a package `extra` whose module defines METHOD and which has the entry point `entry`."""
    (site / "extra.py").write_text("METHOD = 'brought'\n")
    metadata = site / "extra-2.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 2.0\n")
    (metadata / "entry_points.txt").write_text(f"[{PACKAGE}]\n{entry}\n")


def refused(*expected: str) -> None:
    with pytest.raises(TrtspecError) as caught:
        find_extension(PACKAGE, ATTRIBUTE, "extra", "speculation method")
    for text in expected:
        assert text in str(caught.value)


def test_entry_point_is_found_after_built_in_extensions(site: Path) -> None:
    install(site, "extra = extra:METHOD")
    assert find_extension(PACKAGE, ATTRIBUTE, "extra", "speculation method") == "brought"
    assert [*discover_all(PACKAGE, ATTRIBUTE)] == [*discover(PACKAGE, ATTRIBUTE), "extra"]


def test_unknown_name_lists_the_available_extensions(site: Path) -> None:
    install(site, "extras = extra:METHOD")
    refused("unknown speculation method 'extra'; known: dflash, draft_target, ", "extras\nhint: did you mean 'extras'?")


def test_entry_point_with_a_built_in_name_is_rejected(site: Path) -> None:
    install(site, "none = extra:METHOD")
    where = "entry point 'none' of extra 2.0 in the group trtspec.methods: "
    refused(f"{where}'none' is already registered\nhint: choose another name")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("extra = nowhere:METHOD", "cannot load nowhere:METHOD: No module named 'nowhere'"),
        ("extra = extra:OTHER", "cannot load extra:OTHER: module 'extra' has no attribute 'OTHER'"),
    ],
)
def test_broken_entry_point_is_reported_by_name(entry: str, reason: str, site: Path) -> None:
    install(site, entry)
    refused(f"entry point 'extra' of extra 2.0 in the group trtspec.methods: {reason}", "repair or uninstall")


def test_entry_points_are_not_read_for_built_in_names(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: asked.append(group) or ())
    assert find_extension(PACKAGE, ATTRIBUTE, "none", "speculation method").summary == "the target alone"
    assert asked == []
    discover_all.cache_clear()
    with pytest.raises(TrtspecError, match="unknown speculation method 'nine'"):
        find_extension(PACKAGE, ATTRIBUTE, "nine", "speculation method")
    assert asked == [PACKAGE]
    discover_all.cache_clear()


def test_only_similar_names_are_suggested() -> None:
    assert did_you_mean("ngrm", ["ngram", "eagle"]) == "did you mean 'ngram'?"
    assert did_you_mean("x", ["ngram", "eagle"]) is None
