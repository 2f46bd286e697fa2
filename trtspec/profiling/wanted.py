# SPDX-License-Identifier: Apache-2.0
"""What is to be tried: the recipe's own speculation, methods that need no draft, and drafts that are named."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trtspec.backends.base import Backend
from trtspec.backends.choose import in_process
from trtspec.checkpoint.prepare import find_source
from trtspec.errors import TrtspecError
from trtspec.methods.base import find_method, methods
from trtspec.profiling.asked import Asked
from trtspec.proposal.given import open_checkpoint
from trtspec.proposal.ways import ways
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.schema import ModelSource


@dataclass(frozen=True)
class Wanted:
    """What is to be tried: a method, the recipe's section of its draft, and its options."""

    method: str
    source: dict[str, Any] | None
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.method} ({self.source['model']})" if self.source else self.method

    def section(self, max_draft_len: int) -> dict[str, Any]:
        """Return the recipe's `speculation` that drafts as much as is tried."""
        section: dict[str, Any] = {"method": self.method, "options": self.options}
        if lens := find_method(self.method).draft_lens:
            section["draft_len"] = max(lens[0], min(lens[-1], max_draft_len))
        return section | ({"draft": self.source} if self.source else {})


def own_of(loaded: LoadedRecipe) -> Wanted | None:
    """Return a recipe's own speculation, None where it has none."""
    own = loaded.recipe.speculation
    return Wanted(own.method, _section(own.draft) if own.draft else None, own.options) if own.method != "none" else None


def wanted(loaded: LoadedRecipe, asked: Asked, engine: Backend) -> Iterator[Wanted]:
    """Yield the recipe's own speculation, methods that are named or need no draft, and drafts that are named."""
    own = own_of(loaded)
    source = own.source if own else None
    if own and (asked.methods is None or own.method in asked.methods):
        yield own
    for name in asked.methods if asked.methods is not None else _needing_nothing(engine):
        if name in (own.method if own else "none", "none"):
            continue
        needs = find_method(name).drafts_with != "nothing"
        if not needs or source:
            yield Wanted(name, source if needs else None, {})
    for written in asked.drafts or ():
        yield _of_draft(loaded, written)


def _needing_nothing(engine: Backend) -> list[str]:
    """Return the engine's methods that draft with nothing of their own, and need no option to be set."""
    found = []
    for name in engine.methods():
        method = methods()[name]
        if name == "none" or method.drafts_with != "nothing":
            continue
        try:
            method.parse({})
        except TrtspecError:
            continue
        found.append(name)
    return found


def _of_draft(loaded: LoadedRecipe, written: str) -> Wanted:
    """Return a draft with the method that suits it."""
    draft, target = open_checkpoint(written), find_source(loaded.recipe.target)
    way = ways(None, in_process()[0], target, draft.source, None)[0]
    return Wanted(way.method, _section(draft.asked), way.suggestion.options)


def _section(draft: ModelSource) -> dict[str, Any]:
    return draft.model_dump(exclude_defaults=True, mode="json")
