# SPDX-License-Identifier: Apache-2.0
"""Check whether a document belongs to an artifact, by target or manifest digest, else by recipe name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.bench.saved_documents import nested_text
from trtspec.bench.target_fingerprint import target_sha256
from trtspec.store.manifest import Manifest


def mismatch_reason(document: Mapping[str, Any], manifest: Manifest, manifest_sha256: str) -> str:
    """Return why a document does not belong to an artifact, or "" if nothing contradicts it."""
    if target := nested_text(document, "target", "sha256"):
        return _method_mismatch(document, manifest) if target == target_sha256(manifest) else "of another target"
    if told := recorded_manifest(document):
        return "" if told == manifest_sha256 else "of another artifact"
    name = nested_text(document, "name")
    return "" if name in ("", manifest.recipe.name) else f"of another recipe, {name}"


def recorded_manifest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the manifest recorded in a document, or ""."""
    return nested_text(document, "manifest") or nested_text(document, "deployment", "manifest")


def _method_mismatch(document: Mapping[str, Any], manifest: Manifest) -> str:
    """Return "" if a document of this target covers the target alone or this artifact's method."""
    tried, method = _methods_in(document), manifest.recipe.speculation.method
    return "" if not tried or method in tried else f"of {', '.join(sorted(tried))}, but this artifact uses {method}"


def _methods_in(document: Mapping[str, Any]) -> set[str]:
    tried = document.get("methods")
    named = (each.get("method") for each in tried if isinstance(each, Mapping)) if isinstance(tried, list) else ()
    return {each for each in (*named, document.get("method")) if isinstance(each, str)}
