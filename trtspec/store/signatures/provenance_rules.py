# SPDX-License-Identifier: Apache-2.0
"""A policy's rules for provenance: the builder, the recipe, the sources and the versions of tools.

Source of the predicate's fields: slsa-framework/slsa:docs/spec/v1.1/provenance.md@v1.1. The predicate is signed, but
other builders may have written it, so its fields are read as untrusted input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtspec.core.diagnostics import escape_unprintable
from trtspec.core.errors import SignatureRefused
from trtspec.core.versions import version_key
from trtspec.store.signatures.policy import ProvenanceSection, matches

SOURCE, RECIPE = "source", "recipe"  # names of resolved dependencies begin with these


def check_provenance(predicate: dict[str, Any], required: ProvenanceSection) -> list[str]:
    """Return what was checked, or raise SignatureRefused with the first requirement that is not met."""
    checked = []
    if required.builders:
        builder = str(_at(predicate, "runDetails", "builder", "id") or "")
        _require_match("builder", [builder], required.builders)
        checked.append(f"builder {builder}")
    if required.recipes:
        found = [str(_at(predicate, "buildDefinition", "externalParameters", "recipe", "name") or "")]
        found += [f"sha256:{each['digest'].get('sha256')}" for each in _dependencies(predicate, RECIPE)]
        if not any(matches(each, pattern) for each in found for pattern in required.recipes):
            raise _not_accepted("recipe", found[0], required.recipes)
        checked.append(f"recipe {found[0]}")
    if required.sources:
        uris = [str(each.get("uri", "")) for each in _dependencies(predicate, SOURCE)]
        _require_match("source", uris, required.sources)
        checked.append(f"{len(uris)} sources")
    if required.minimum_versions:
        checked += _check_versions(predicate, required.minimum_versions)
    return checked


def _require_match(what: str, found: list[str], patterns: list[str]) -> None:
    if not found:
        raise SignatureRefused(f"the provenance names no {what}")
    for each in found:
        if not any(matches(each, pattern) for pattern in patterns):
            raise _not_accepted(what, each, patterns)


def _not_accepted(what: str, found: str, patterns: list[str]) -> SignatureRefused:
    shown = escape_unprintable(found[:200])
    return SignatureRefused(f"the {what} {shown!r} is not accepted, only {', '.join(patterns)}")


def _check_versions(predicate: dict[str, Any], minimum: dict[str, str]) -> list[str]:
    tools = _at(predicate, "buildDefinition", "internalParameters", "tools")
    checked = []
    for name, least in minimum.items():
        version = str(tools.get(name, "")) if isinstance(tools, dict) else ""
        known, required = version_key(version.partition("+")[0]), version_key(least)
        if known is None or required is None or known < required:
            found = escape_unprintable(version[:60]) or "none"
            raise SignatureRefused(f"{name} {least} or newer is required; the provenance has {found}")
        checked.append(f"{name} {version}")
    return checked


def _dependencies(predicate: dict[str, Any], kind: str) -> Iterator[dict[str, Any]]:
    """Yield the resolved dependencies of a kind that have a digest."""
    found = _at(predicate, "buildDefinition", "resolvedDependencies")
    for each in found if isinstance(found, list) else ():
        if isinstance(each, dict) and isinstance(each.get("digest"), dict):
            name = str(each.get("name", ""))
            if name == kind or name.startswith(f"{kind}:"):
                yield each


def _at(document: Any, *path: str) -> Any:
    for key in path:
        document = document.get(key) if isinstance(document, dict) else None
    return document
