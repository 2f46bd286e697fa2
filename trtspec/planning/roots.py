# SPDX-License-Identifier: Apache-2.0
"""Roots of the store: recipes, artifacts and pushed artifacts whose steps a cleanup keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.store.artifact import load_manifest
from trtspec.store.artifact_paths import MANIFEST
from trtspec.store.registries.repository import is_location

OnRead = Callable[[int, int], None]


def root_keys(roots: Sequence[str], on_read: OnRead = lambda done, total: None) -> frozenset[str]:
    """Return the keys of the steps of all roots.

    A root is a recipe, of which all variants count, an artifact's directory, or the location of a pushed artifact.
    Raises TrtspecError if the keys of a root cannot be determined, so that a cleanup removes nothing by mistake.
    """
    return frozenset(key for root in roots for key in _keys(root, on_read))


def _keys(root: str, on_read: OnRead) -> list[str]:
    if is_location(root):
        from trtspec.store.registries.pull import read_manifest

        return [step.key for step in read_manifest(root).steps]
    if (Path(root) / MANIFEST).is_file():
        return [step.key for step in load_manifest(Path(root)).steps]
    return _recipe_keys(root, on_read)


def _recipe_keys(root: str, on_read: OnRead) -> list[str]:
    import trtspec
    from trtspec.planning.pipeline import plan_build

    keys = []
    for loaded in trtspec.load_recipes(root):
        build = plan_build(loaded, read_all=True, on_read=on_read)
        if not build.keys_are_final:
            message = f"the step keys of {loaded.recipe.name} are not known on this machine"
            raise TrtspecError(message, where=root, hint="name its artifact instead: --keep build/NAME")
        keys += [step.key for step in build.plan.steps]
    return keys
