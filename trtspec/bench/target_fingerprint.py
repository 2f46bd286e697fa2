# SPDX-License-Identifier: Apache-2.0
"""Identify the measured target independently of the drafter; equal digests mean equal text."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.store.digest import compute_digest
from trtspec.store.manifest import Manifest


def describe_target(manifest: Manifest) -> dict[str, str]:
    """Return an artifact's target as recorded in documents."""
    return {"model": manifest.recipe.target.model, "sha256": target_sha256(manifest)}


def target_sha256(manifest: Manifest) -> str:
    """Return the digest that identifies the target of an artifact."""
    return planned_target_sha256(
        manifest.recipe, manifest.target_key, ((each.name, each.key) for each in manifest.steps)
    )


def planned_target_sha256(recipe: ResolvedRecipe, target_key: str, steps: Iterable[tuple[str, str]]) -> str:
    """Return the target digest of an artifact that is not built yet, from the name and key of each of its steps.

    If the target is not converted, the digest covers its recipe section, the steps that copy it, and the engine.
    """
    if target_key:
        return target_key
    keys, engine = [key for name, key in steps if name.endswith("target")], recipe.engine
    return compute_digest(
        "trtspec.target/1", [recipe.target.model_dump(mode="json"), keys, [engine.backend, engine.version]]
    )
