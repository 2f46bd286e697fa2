# SPDX-License-Identifier: Apache-2.0
"""Migrate a recipe to another version of its backend or of a successor, and record the changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from trtspec.recipe.schema import Recipe

Kind = Literal["kept", "changed", "dropped", "open"]


@dataclass(frozen=True)
class KeyChange:
    """The result for one key; "open" requires a value from the user before the recipe can be built."""

    kind: Kind
    path: str
    why: str


@dataclass
class Migration:
    """The recipe for the other version as plain values, and the change of each key."""

    version: str
    document: dict[str, Any]
    changes: list[KeyChange] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Return whether the recipe has every required value."""
        return all(change.kind != "open" for change in self.changes)

    def note(self, kind: Kind, path: str, why: str) -> None:
        """Record the change of a key."""
        self.changes.append(KeyChange(kind, path, why))

    def drop(self, path: str, why: str) -> None:
        """Remove a key if it is present, and record the change."""
        *sections, key = path.split(".")
        section: Any = self.document
        for name in sections:
            section = section.get(name, {})
        if key in section:
            del section[key]
            self.note("dropped", path, why)


# Converts the recipe to the backend's version `migration.version` and records the change of each key.
Migrate = Callable[[Migration, Recipe], None]
