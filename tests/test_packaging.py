# SPDX-License-Identifier: Apache-2.0
"""The package's metadata agrees with the code and the documentation."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests._support.pages import ROOT
from trtspec import __version__
from trtspec.core.interpreter import OLDEST
from trtspec.core.paths import plugins_dir
from trtspec.kernels.build import SOURCES

FOR_DEVELOPERS = {"dev", "docs", "test"}


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    """The content of pyproject.toml."""
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
    document: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return document


def test_version_of_the_package_is_the_one_in_the_code(pyproject: dict[str, Any]) -> None:
    assert pyproject["project"]["version"] == __version__


def test_install_page_lists_every_extra(pyproject: dict[str, Any]) -> None:
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs" / "install.md").read_text(), re.MULTILINE)
    assert set(listed) == set(pyproject["project"]["optional-dependencies"]) - FOR_DEVELOPERS


def test_wheels_are_tried_on_every_supported_python(pyproject: dict[str, Any]) -> None:
    pythons = [f"cp3{minor}-manylinux*" for minor in range(OLDEST[1], 14)]
    assert pyproject["tool"]["cibuildwheel"]["build"] == pythons


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda path: path.name)
def test_workflow_is_valid_by_the_vendors_schema(workflow: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(workflow)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_cmake_computes_the_digest_of_the_same_sources() -> None:
    text = (plugins_dir() / "cmake" / "wheel.cmake").read_text()
    (patterns,) = re.findall(r"GLOB_RECURSE files [^\n]*\n(.*?)\)", text, re.DOTALL)
    assert sorted(patterns.split()) == sorted(SOURCES)
