# SPDX-License-Identifier: Apache-2.0
"""Migrate recipes between versions with trtllm-build, which differ only in their options."""

from __future__ import annotations

from trtspec.backends.common.migration import Migration
from trtspec.backends.common.trtllm_versions import find_version_spec, minors_with, version_specs
from trtspec.recipe.schema import Recipe


def migrate(migration: Migration, recipe: Recipe) -> None:
    """Migrate a recipe to another version with trtllm-build."""
    spec = find_version_spec(migration.version)
    for option in recipe.engine.extra:
        if option not in spec.options:
            elsewhere = ", ".join(minors_with(option)) or "no supported one"
            migration.drop(f"engine.extra.{option}", f"not in trtllm-build {spec.minor}; versions with it: {elsewhere}")
    before = version_specs().get(".".join((recipe.engine.version or "").split(".")[:2]))
    for option in sorted(spec.options.keys() - (before.options.keys() if before else spec.options.keys())):
        migration.note("kept", f"engine.extra.{option}", f"new in {spec.minor}; its default is used")
