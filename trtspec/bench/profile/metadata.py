# SPDX-License-Identifier: Apache-2.0
"""Metadata of `profile` and `tune` documents: target, prompts, time, versions and machine."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtspec.bench.artifact import artifact_prompts
from trtspec.bench.machine import describe_machine
from trtspec.bench.profile.options import ProfileRequest
from trtspec.bench.saved_documents import prompts_sha256, save_target_document
from trtspec.bench.target_fingerprint import describe_target, planned_target_sha256
from trtspec.core.errors import TrtspecError
from trtspec.core.version import __version__
from trtspec.planning.pipeline import plan_build
from trtspec.recipe.load import LoadedRecipe
from trtspec.store.manifest import Manifest, load_manifest


def document_metadata(kind: str, asked: ProfileRequest, loaded: LoadedRecipe, root: Path | None) -> dict[str, Any]:
    """Return the metadata fields; `root` is a measured artifact, or None if only a server address is known.

    `prompt_set` describes the full set from which prompts were drawn. `target` is None if unknown.
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


def save_profile(document: Mapping[str, Any], name: str) -> None:
    """Save the document under its target, if known, for artifacts built from it later."""
    if target := document["target"]:
        save_target_document(target["sha256"], name, document)


def _target(loaded: LoadedRecipe, measured: Manifest) -> dict[str, str]:
    """Return the target of the recipe's artifact, whose engine can differ from the measuring one."""
    try:
        build = plan_build(loaded)
    except TrtspecError:  # the recipe's engine is not available here
        return describe_target(measured)
    if not build.is_read:
        return describe_target(measured)
    recipe = build.recipe.without_directories()
    steps = ((step.name, step.key) for step in build.plan.steps)
    return {"model": recipe.target.model, "sha256": planned_target_sha256(recipe, build.target_key, steps)}
