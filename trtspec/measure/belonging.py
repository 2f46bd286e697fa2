# SPDX-License-Identifier: Apache-2.0
"""Whether a document is of an artifact: by the target or the manifest that it names, else by the recipe's name."""

from __future__ import annotations

from collections.abc import Mapping

from trtspec.artifacts.manifest import Manifest
from trtspec.measure.documents import Saved
from trtspec.measure.target import target_sha256


def objection(document: Saved, manifest: Manifest, manifest_sha256: str) -> str:
    """Return why a document is not of an artifact, "" where nothing that it says speaks against it."""
    if target := document.text("target", "sha256"):
        return _of_another(document, manifest) if target == target_sha256(manifest) else "of another target"
    if told := manifest_named(document):
        return "" if told == manifest_sha256 else "of another artifact"
    name = document.text("name")
    return "" if name in ("", manifest.recipe.name) else f"of another recipe, {name}"


def manifest_named(document: Saved) -> str:
    """Return the SHA-256 of the manifest that a document names, "" where it names none."""
    return document.text("manifest") or document.text("deployment", "manifest")


def _of_another(document: Saved, manifest: Manifest) -> str:
    """Return "" for what was measured of this target alone, or with the method that drafts here."""
    tried, method = _methods_of(document), manifest.recipe.speculation.method
    return "" if not tried or method in tried else f"of {', '.join(sorted(tried))}, and {method} drafts here"


def _methods_of(document: Saved) -> set[str]:
    tried = document.values.get("methods")
    named = (each.get("method") for each in tried if isinstance(each, Mapping)) if isinstance(tried, list) else ()
    return {each for each in (*named, document.values.get("method")) if isinstance(each, str)}
