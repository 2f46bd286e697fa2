# SPDX-License-Identifier: Apache-2.0
"""Whether a document is of an artifact: by the target or the manifest that it names, else by the recipe's name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.bench.saved_documents import text_in
from trtspec.bench.target_fingerprint import target_sha256
from trtspec.store.manifest import Manifest


def objection(document: Mapping[str, Any], manifest: Manifest, manifest_sha256: str) -> str:
    """Return why a document is not of an artifact, "" where nothing that it says speaks against it."""
    if target := text_in(document, "target", "sha256"):
        return _of_another(document, manifest) if target == target_sha256(manifest) else "of another target"
    if told := manifest_named(document):
        return "" if told == manifest_sha256 else "of another artifact"
    name = text_in(document, "name")
    return "" if name in ("", manifest.recipe.name) else f"of another recipe, {name}"


def manifest_named(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the manifest that a document names, "" where it names none."""
    return text_in(document, "manifest") or text_in(document, "deployment", "manifest")


def _of_another(document: Mapping[str, Any], manifest: Manifest) -> str:
    """Return "" for what was measured of this target alone, or with the method that drafts here."""
    tried, method = _methods_of(document), manifest.recipe.speculation.method
    return "" if not tried or method in tried else f"of {', '.join(sorted(tried))}, and {method} drafts here"


def _methods_of(document: Mapping[str, Any]) -> set[str]:
    tried = document.get("methods")
    named = (each.get("method") for each in tried if isinstance(each, Mapping)) if isinstance(tried, list) else ()
    return {each for each in (*named, document.get("method")) if isinstance(each, str)}
