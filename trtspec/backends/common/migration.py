# SPDX-License-Identifier: Apache-2.0
"""A recipe moved to another version, of its backend or of one that follows it: what carries over and what does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from trtspec.recipe.schema import Recipe

Kind = Literal["kept", "changed", "dropped", "open"]


@dataclass(frozen=True)
class Change:
    """What becomes of one key; "open" has to be filled in by hand before the recipe can be built."""

    kind: Kind
    path: str
    why: str


@dataclass
class Migration:
    """The recipe for the other version, as plain values, and what became of each key."""

    version: str
    document: dict[str, Any]
    changes: list[Change] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Return whether the recipe says everything that it needs."""
        return all(change.kind != "open" for change in self.changes)

    def note(self, kind: Kind, path: str, why: str) -> None:
        """Record what became of a key."""
        self.changes.append(Change(kind, path, why))

    def drop(self, path: str, why: str) -> None:
        """Remove a key, where it is written."""
        *sections, key = path.split(".")
        section: Any = self.document
        for name in sections:
            section = section.get(name, {})
        if key in section:
            del section[key]
            self.note("dropped", path, why)


# Makes a recipe one for the backend's version `migration.version`, and notes what became of each key.
Migrate = Callable[[Migration, Recipe], None]
