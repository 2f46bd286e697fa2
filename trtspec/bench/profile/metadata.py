# SPDX-License-Identifier: Apache-2.0
"""What `profile` and `tune` say of themselves: of which target, by which prompts, when, with what and where."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtspec import __version__
from trtspec.bench.artifact import artifact_prompts
from trtspec.bench.machine import describe_machine
from trtspec.bench.profile.options import Asked
from trtspec.bench.saved_documents import keep_of_target, prompts_sha256
from trtspec.bench.target_fingerprint import planned_sha256, target_of
from trtspec.core.errors import TrtspecError
from trtspec.planning.pipeline import plan_build
from trtspec.recipe.load import LoadedRecipe
from trtspec.store.manifest import Manifest, load_manifest


def about(kind: str, asked: Asked, loaded: LoadedRecipe, root: Path | None) -> dict[str, Any]:
    """Return the head of a document; `root` is an artifact that was measured, None where only an address is known.

    `prompt_set` is what the prompts were drawn from. A target that nobody knows is None.
    """
    manifest = load_manifest(root) if root else None
    prompts = artifact_prompts(root, asked.prompts)
    return {
        "kind": kind,
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "target": _target(loaded, manifest) if manifest else None,
        "machine": describe_machine(),
        "versions": {**(manifest.tools if manifest else {}), "trtspec": __version__},
        "prompt_set": {"count": len(prompts), "sha256": prompts_sha256(prompt.text for prompt in prompts)},
    }


def keep(document: Mapping[str, Any], name: str) -> None:
    """Keep a document by its target, where that is known, for the artifacts that are built of it later."""
    if target := document["target"]:
        keep_of_target(target["sha256"], name, document)


def _target(loaded: LoadedRecipe, measured: Manifest) -> dict[str, str]:
    """Return the target of the artifact that the recipe makes, whose engine need not be the one that measured."""
    try:
        build = plan_build(loaded)
    except TrtspecError:  # its own engine cannot be built for here
        return target_of(measured)
    if not build.is_read:
        return target_of(measured)
    recipe = build.recipe.without_places()
    steps = ((step.name, step.key) for step in build.plan.steps)
    return {"model": recipe.target.model, "sha256": planned_sha256(recipe, build.target_key, steps)}
