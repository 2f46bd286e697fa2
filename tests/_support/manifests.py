# SPDX-License-Identifier: Apache-2.0
"""Resolved recipes for manifests written by tests."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from trtspec.recipe.resolve import ResolvedRecipe, resolve_recipe
from trtspec.recipe.schema import Recipe
from trtspec.store.digest import dump_checksummed_text

DEFAULT_VERSION = {"llmapi": "1.2.1"}  # of backends whose deployment depends on it


def resolved(name: str = "tiny", backend: str = "embedded", **sections: Any) -> ResolvedRecipe:
    """Return a resolved recipe whose target does not exist."""
    document = {"schema": "trtspec.recipe/1", "name": name, "target": {"model": "./target"}, **sections}
    return resolve_recipe(
        Recipe.model_validate(document),
        target_dtype="bfloat16",
        draft_dtype=None,
        backend=backend,
        backend_why="a test",
        version=sections.get("engine", {}).get("version") or DEFAULT_VERSION.get(backend, ""),
        draft_len=0,
        max_draft_tokens=0,
        options={},
        acceptance="exact",
        has_draft_model=False,
    )


def read_manifest(artifact: Path) -> dict[str, Any]:
    """Return an artifact's manifest without its digest."""
    document: dict[str, Any] = json.loads((artifact / "manifest.json").read_bytes())
    del document["digest"]
    return document


def write_manifest(artifact: Path, document: dict[str, Any]) -> None:
    """Replace an artifact's manifest with another one and its valid digest, as an attacker could."""
    path = artifact / "manifest.json"
    path.unlink()  # it may be a read-only link into the store
    path.write_bytes(dump_checksummed_text(document))


def resealed(text: str) -> str:
    """Return the text of an edited manifest with a valid digest."""
    body = text[: text.rindex(',\n "digest": ')]
    digest = hashlib.sha256(f"{body}\n}}\n".encode()).hexdigest()
    return f'{body},\n "digest": "{digest}"\n}}\n'
