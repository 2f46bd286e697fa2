# SPDX-License-Identifier: Apache-2.0
"""Selection of the backend and version to migrate a recipe to; the backend itself migrates the recipe."""

from __future__ import annotations

from trtspec.backends.base import AUTO, Backend, Migration, backends, find_backend
from trtspec.core.errors import TrtspecError
from trtspec.recipe.schema import Recipe


def migrate(recipe: Recipe, to: str = "", backend: str = "") -> Migration:
    """Return a recipe migrated to version `to` of `backend`; `to` is a release (1.2.1) or a minor version (1.3).

    Without `backend`, the recipe keeps its backend if that has the version, else another backend of the same package is
    selected. Without `to`, the backend's newest version is used. Raises TrtspecError if the backend does not support
    migration, or if the recipe would have to be downgraded.
    """
    before = recipe.engine.backend
    name, version = _find(_named(backend) if backend else _in_order(before), before, to)
    document = recipe.model_dump(mode="json", by_alias=True, exclude_unset=True)
    migration = Migration(version, document)
    engine = document.setdefault("engine", {})
    engine["version"] = version
    migration.note("changed", "engine.version", f"{recipe.engine.version or 'the default'} becomes {version}")
    if before != name:
        engine["backend"] = name
        why = f"{name} has {version}: {backends()[name].summary}{_engine_alternatives(before, name)}"
        migration.note("changed", "engine.backend", why)
    move = backends()[name].migrate
    if move is None:
        raise ValueError(f"{name} has no migration")
    move(migration, recipe)
    return migration


def _engine_alternatives(before: str, name: str) -> str:
    """Return a text with the backends that still build TensorRT engines, if the migration loses that."""
    known = backends()
    if before == AUTO or not known[before].builds_engines or known[name].builds_engines:
        return ""
    others = [other for other, each in known.items() if each.builds_engines and each.migrate and other != before]
    return f"; for TensorRT engines: {' or '.join(f'--backend {other}' for other in others)}" if others else ""


def _find(candidates: dict[str, Backend], before: str, to: str) -> tuple[str, str]:
    """Return the first backend that has version `to`, with its newest matching version."""
    moving = {name: each for name, each in candidates.items() if each.migrate}
    if not moving:
        raise TrtspecError(f"the recipe is for {before}, which has no other version to migrate to")
    for name, each in moving.items():
        found = [version for version in each.versions() if not to or version == to or version.startswith(f"{to}.")]
        if found:
            return name, found[-1]
    known = dict.fromkeys(version for each in moving.values() for version in each.versions())
    raise TrtspecError(f"no backend has a version {to}", hint=f"known: {', '.join(known)}")


def _named(backend: str) -> dict[str, Backend]:
    """Return {name: backend} for the named backend; TrtspecError if recipes cannot be migrated to it."""
    found = find_backend(backend)
    if found.migrate is None:
        moving = ", ".join(name for name, each in backends().items() if each.migrate)
        hint = (
            f"test the recipe unchanged with check RECIPE --set engine.backend={backend} --set engine.version=null, or "
            f"write a new one with init TARGET --backend {backend}; recipes can be migrated to {moving}"
        )
        raise TrtspecError(f"recipes cannot be migrated to {backend}", hint=hint)
    return {backend: found}


def _in_order(backend: str) -> dict[str, Backend]:
    """Return candidate backends: the recipe's, then backends of the same package with lower priority."""
    known = backends()
    ranked = [name for _, name in sorted((each.auto.rank, name) for name, each in known.items() if each.auto)]
    if backend != AUTO:
        own = find_backend(backend)
        later = ranked[ranked.index(backend) + 1 :] if backend in ranked else []
        ranked = [backend, *(name for name in later if known[name].package == own.package)]
    return {name: known[name] for name in ranked}
