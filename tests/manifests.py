# SPDX-License-Identifier: Apache-2.0
"""Resolved recipes for manifests that tests write."""

from __future__ import annotations

from typing import Any

from trtspec.recipe.resolve import Decisions, ResolvedRecipe, resolve_recipe
from trtspec.recipe.schema import Recipe


def resolved(name: str = "tiny", backend: str = "embedded", **sections: Any) -> ResolvedRecipe:
    """Return a recipe with nothing left open, of a target that nobody looks for."""
    document = {"schema": "trtspec.recipe/1", "name": name, "target": {"model": "./target"}, **sections}
    decisions = Decisions(
        target_dtype="bfloat16",
        draft_dtype=None,
        backend=backend,
        backend_why="a test",
        version="",
        draft_len=0,
        max_draft_tokens=0,
        options={},
        acceptance="exact",
        has_draft_model=False,
    )
    return resolve_recipe(Recipe.model_validate(document), decisions)
