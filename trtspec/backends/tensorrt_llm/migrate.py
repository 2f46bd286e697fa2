# SPDX-License-Identifier: Apache-2.0
"""Recipes that move between versions that have trtllm-build: only options come and go."""

from __future__ import annotations

from trtspec.backends.common.migration import Migration
from trtspec.backends.common.trtllm_versions import minors_with, version_spec_of, version_specs
from trtspec.recipe.schema import Recipe


def migrate(migration: Migration, recipe: Recipe) -> None:
    """Move a recipe."""
    spec = version_spec_of(migration.version)
    for option in recipe.engine.extra:
        if option not in spec.options:
            elsewhere = ", ".join(minors_with(option)) or "none that is known"
            migration.drop(f"engine.extra.{option}", f"trtllm-build {spec.minor} lacks it; versions: {elsewhere}")
    before = version_specs().get(".".join((recipe.engine.version or "").split(".")[:2]))
    for option in sorted(spec.options.keys() - (before.options.keys() if before else spec.options.keys())):
        migration.note("kept", f"engine.extra.{option}", f"new in {spec.minor}; its default is left as it is")
