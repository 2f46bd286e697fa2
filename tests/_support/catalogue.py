# SPDX-License-Identifier: Apache-2.0
"""Contexts of the catalogue's recipes on another engine, with checkpoints that have only headers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests._support.shapes import make_checkpoints
from trtspec.backends.base import find_backend
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.safetensors import read_header
from trtspec.core.paths import recipes_dir
from trtspec.planning.check.recipe import check_recipe
from trtspec.recipe.load import load_recipe


def copy_catalogue(root: Path) -> Path:
    """Write the recipes and their checkpoints below `root`, and return the recipes' directory; the hub is root/hub."""
    recipes = root / "recipes"
    recipes.mkdir(parents=True)
    for path in recipes_dir().glob("*.yaml"):
        (recipes / path.name).write_text(path.read_text())
    for folder in ("prompts", "models"):
        (recipes / folder).symlink_to(recipes_dir() / folder)
    make_checkpoints(recipes, root / "hub")
    return recipes


# Checkpoints are read again for each engine and release; their headers are the most of it.
_read_header: Any = cache(read_header)


def catalogue_contexts(root: Path, backend: str, version: str, gpu: str) -> dict[str, PlanContext]:
    """Return the contexts, by name, of the recipes in `copy_catalogue(root)` that an engine can run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_CACHE", str(root / "hub"))
        patch.setenv("TRTSPEC_CACHE", str(root / "cache"))
        patch.setattr("trtspec.checkpoints.source.read_header", _read_header)
        patch.setattr("trtspec.planning.check.recipe.warn_if_slower", lambda context: ())
        changes = [f"engine.backend={backend}", f"engine.version={version}", f"engine.gpu={gpu}"]
        loaded = [load_recipe(path, changes) for path in sorted((root / "recipes").glob("*.yaml"))]
        checked = {each.recipe.name: check_recipe(each) for each in loaded}
    return {name: result.context for name, result in checked.items() if result.context and not result.errors}


def minor_version(version: str) -> str:
    """Return "1.3" for "1.3.0rc27"."""
    return ".".join(version.split(".")[:2])


def contexts_of_releases(
    root: Path, backend: str, versions: Iterable[str], gpu: str
) -> dict[str, dict[str, PlanContext]]:
    """Return `catalogue_contexts` by release; releases of a minor version differ only in the backend's own checks."""
    check = find_backend(backend).check
    found: dict[str, dict[str, PlanContext]] = {}
    versions = [*versions]
    newest = {minor_version(version): version for version in versions}  # which supports most
    checked = {minor: catalogue_contexts(root, backend, version, gpu) for minor, version in newest.items()}
    for version in versions:
        contexts = {
            name: replace(context, choice=replace(context.choice, version=version))
            for name, context in checked[minor_version(version)].items()
        }
        found[version] = {
            name: context
            for name, context in contexts.items()
            if all(each.severity != "error" for each in check(context))
        }
    return found
