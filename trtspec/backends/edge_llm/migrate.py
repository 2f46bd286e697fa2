# SPDX-License-Identifier: Apache-2.0
"""Recipes that move here from trtllm-build, which ended with 1.2.1: engines of another builder, for other GPUs."""

from __future__ import annotations

from trtspec.backends.common.migration import Migration
from trtspec.backends.edge_llm.versions import releases
from trtspec.core.gpus import GPUS
from trtspec.recipe.schema import Recipe


def migrate(migration: Migration, recipe: Recipe) -> None:
    """Move a recipe."""
    for option in recipe.engine.extra:
        migration.drop(f"engine.extra.{option}", "an option of trtllm-build")
    engine = migration.document["engine"]
    if "extra" in engine and not engine["extra"]:
        del engine["extra"]
    migration.drop("engine.build.image", "Edge-LLM's commands run as they are installed")
    migration.drop("engine.build.timing_cache", "Edge-LLM's builder takes none")
    if "build" in engine and not engine["build"]:
        del engine["build"]
    migration.drop("engine.max_num_tokens", "Edge-LLM's builder derives it from the lengths")
    migration.drop("serving.fast_logits", "draft and target run in one runtime")
    _gpu(migration, recipe)
    _method(migration, recipe)
    for path in ("target.parallel", "speculation.draft.parallel"):
        migration.drop(path, "Edge-LLM serves one GPU")
    for section in ("gates", "serving"):
        if section in migration.document:
            migration.note("kept", section, "holds as it is")


def _gpu(migration: Migration, recipe: Recipe) -> None:
    gpu, release = GPUS.get((recipe.engine.gpu or "").lower()), releases()[migration.version]
    if gpu and release.platforms_of(gpu.sm):
        migration.note("kept", "engine.gpu", f"{gpu.name} is a GPU that Edge-LLM {release.version} has libraries for")
        return
    fitting = ", ".join(each.name for each in GPUS.values() if release.platforms_of(each.sm))
    migration.drop("engine.gpu", f"Edge-LLM {release.version} has nothing for {recipe.engine.gpu}")
    migration.note("open", "engine.gpu", f"the device that will run it: {fitting}")


def _method(migration: Migration, recipe: Recipe) -> None:
    method, release = recipe.speculation.method, releases()[migration.version]
    if method == "none":
        return
    if method in release.methods:
        migration.note("kept", "speculation.method", f"{method} is Edge-LLM's --spec-type {release.methods[method]}")
        return
    migration.document["speculation"] = {"method": "eagle3", "draft_len": 4}
    why = f"Edge-LLM has no {method}; it has {', '.join(release.methods)}"
    migration.note("changed", "speculation.method", why)
    migration.note("open", "speculation.draft.model", "an EAGLE-3 net for this target")
