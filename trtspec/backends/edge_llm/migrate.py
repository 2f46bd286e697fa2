# SPDX-License-Identifier: Apache-2.0
"""Migrate recipes from trtllm-build, whose last version is 1.2.1, to Edge-LLM's builder, which supports other GPUs."""

from __future__ import annotations

from trtspec.backends.common.migration import Migration
from trtspec.backends.edge_llm.versions import releases
from trtspec.core.gpus import GPUS
from trtspec.recipe.schema import Recipe


def migrate(migration: Migration, recipe: Recipe) -> None:
    """Migrate a recipe to Edge-LLM."""
    for option in recipe.engine.extra:
        migration.drop(f"engine.extra.{option}", "an option of trtllm-build")
    engine = migration.document["engine"]
    if "extra" in engine and not engine["extra"]:
        del engine["extra"]
    migration.drop("engine.build.image", "Edge-LLM's commands run without a container")
    migration.drop("engine.build.timing_cache", "Edge-LLM's builder does not support it")
    if "build" in engine and not engine["build"]:
        del engine["build"]
    migration.drop("engine.max_num_tokens", "Edge-LLM's builder derives it from the lengths")
    migration.drop("serving.fast_logits", "draft and target run in one runtime")
    _gpu(migration, recipe)
    _method(migration, recipe)
    for path in ("target.parallel", "speculation.draft.parallel"):
        migration.drop(path, "Edge-LLM runs on one GPU")
    for section in ("gates", "serving"):
        if section in migration.document:
            migration.note("kept", section, "unchanged")


def _gpu(migration: Migration, recipe: Recipe) -> None:
    gpu, release = GPUS.get((recipe.engine.gpu or "").lower()), releases()[migration.version]
    if gpu and release.platforms_for(gpu.sm):
        migration.note("kept", "engine.gpu", f"Edge-LLM {release.version} supports {gpu.name}")
        return
    fitting = ", ".join(each.name for each in GPUS.values() if release.platforms_for(each.sm))
    migration.drop("engine.gpu", f"Edge-LLM {release.version} does not support {recipe.engine.gpu}")
    migration.note("open", "engine.gpu", f"the target device: {fitting}")


def _method(migration: Migration, recipe: Recipe) -> None:
    method, release = recipe.speculation.method, releases()[migration.version]
    if method == "none":
        return
    if method in release.methods:
        migration.note("kept", "speculation.method", f"{method} is Edge-LLM's --spec-type {release.methods[method]}")
        return
    migration.document["speculation"] = {"method": "eagle3", "draft_len": 4}
    why = f"Edge-LLM does not support {method}; it supports {', '.join(release.methods)}"
    migration.note("changed", "speculation.method", why)
    migration.note("open", "speculation.draft.model", "an EAGLE-3 drafter for this target")
