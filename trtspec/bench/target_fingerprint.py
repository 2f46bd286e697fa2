# SPDX-License-Identifier: Apache-2.0
"""Which target was measured, whatever drafts for it: equal digests say the same text."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.store.digest import digest_of
from trtspec.store.manifest import Manifest


def target_of(manifest: Manifest) -> dict[str, str]:
    """Return an artifact's target as documents name it."""
    return {"model": manifest.recipe.target.model, "sha256": target_sha256(manifest)}


def target_sha256(manifest: Manifest) -> str:
    """Return what tells the target of an artifact from others."""
    return planned_sha256(manifest.recipe, manifest.target_key, ((each.name, each.key) for each in manifest.steps))


def planned_sha256(recipe: ResolvedRecipe, target_key: str, steps: Iterable[tuple[str, str]]) -> str:
    """Return the same of an artifact before it is built, by the name and key of each of its steps.

    Where nothing is converted, that is the recipe's section of it, the steps that copied it, and the engine.
    """
    if target_key:
        return target_key
    keys, engine = [key for name, key in steps if name.endswith("target")], recipe.engine
    return digest_of(
        "trtspec.target/1", [recipe.target.model_dump(mode="json"), keys, [engine.backend, engine.version]]
    )
