# SPDX-License-Identifier: Apache-2.0
"""The one value that carries a recipe from `check` to the plan: what it asks for, and all that is known of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.quant.quant_config import QuantFormat
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel, scheme_wanted
from trtspec.methods.base import DraftHead, DraftShape, Method, Options
from trtspec.methods.source_head import SourceHead
from trtspec.recipe.resolve import Decisions, ResolvedRecipe, resolve_recipe
from trtspec.recipe.schema import ModelSource, Recipe


@dataclass(frozen=True)
class Choice:
    """The backend that a recipe gets, why, and its version ("" where it comes with trtspec)."""

    name: str
    why: str
    version: str


@dataclass(frozen=True)
class PlanContext:
    """A recipe, and all that its checkpoints, method and options say; nothing in it is loaded or computed twice.

    `recipe` is what was asked for, with max_seq_len lowered to what the target has positions for; `resolved` leaves no
    default open. `sources` are the checkpoints by role ("target", "draft"). `target` is None for an architecture that
    no family describes, which only backends that convert nothing take; a `draft` model or a `head` that is stored with
    the target drafts, or neither. The backend `translates` the tokens of a draft model whose vocabulary is another.
    """

    recipe: Recipe
    choice: Choice
    method: Method
    options: Options
    draft_shape: DraftShape
    sources: Mapping[str, Source] = field(default_factory=dict)
    target: SourceModel | None = None
    draft: SourceModel | None = None
    head: SourceHead | None = None
    translates: bool = False

    @property
    def version(self) -> str:
        """Return the backend's version."""
        return self.choice.version

    @property
    def target_config(self) -> ModelConfig | None:
        """Return the target's description."""
        return self.target.config if self.target else None

    @property
    def draft_config(self) -> ModelConfig | None:
        """Return the draft model's description."""
        return self.draft.config if self.draft else None

    @property
    def draft_head(self) -> DraftHead | None:
        """Return the head's description."""
        return self.head.head if self.head else None

    @cached_property
    def target_format(self) -> QuantFormat:
        """Return how a conversion stores the target."""
        return _format(self.recipe.target, self.target)

    @cached_property
    def draft_format(self) -> QuantFormat:
        """Return how a conversion stores the draft model."""
        return _format(self.recipe.speculation.draft, self.draft)

    @cached_property
    def resolved(self) -> ResolvedRecipe:
        """Return the recipe with nothing left open."""
        decisions = Decisions(
            target_dtype=_dtype(self.target),
            draft_dtype=_dtype(self.draft or self.target),
            backend=self.choice.name,
            backend_why=self.choice.why,
            version=self.choice.version,
            draft_len=self.draft_shape.max_depth,
            max_draft_tokens=self.draft_shape.max_tokens,
            options=self.options.model_dump(mode="json", exclude_none=True),
            acceptance=self.options.acceptance,
            has_draft_model=self.head is None,
        )
        return resolve_recipe(self.recipe, decisions)


def _format(asked: ModelSource | None, model: SourceModel | None) -> QuantFormat:
    return model.format(scheme_wanted(asked)) if asked and model else QuantFormat()


def _dtype(model: SourceModel | None) -> str:
    """Return what a model computes in; one that no family describes is left to its engine."""
    return model.config.dtype if model else "source"
