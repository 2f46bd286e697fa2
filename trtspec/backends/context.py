# SPDX-License-Identifier: Apache-2.0
"""The input of `check` and of planning: a recipe with its checkpoints and all values derived from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Protocol, TypeVar

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.prequantized import QuantFormat, source_format
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel, requested_scheme
from trtspec.core.gpus import GPUS, Gpu
from trtspec.methods.base import DraftHead, DraftShape, Method, Options
from trtspec.methods.draft_head import SourceHead
from trtspec.recipe.resolve import ResolvedEngine, ResolvedRecipe, resolve_recipe
from trtspec.recipe.schema import ModelSource, Recipe, is_directory

Role = Literal["target", "draft"]


class BuilderTools(Protocol):
    """The tools of a machine that runs steps; `identity` has the names and values that the keys of steps contain."""

    @property
    def identity(self) -> tuple[tuple[str, str], ...]: ...


Tools = TypeVar("Tools", bound=BuilderTools)
RemoteProbe = Callable[[Callable[[], Any], ResolvedEngine], Any]  # a function, and the engine of the steps


@dataclass(frozen=True)
class SelectedBackend:
    """The backend chosen for a recipe, the reason, and its version ("" if the engine is part of trtspec)."""

    name: str
    why: str
    version: str


@dataclass(frozen=True)
class PlanContext:
    """A recipe with its checkpoints, method and options, each loaded or computed once.

    `recipe` is the user's recipe, with max_seq_len limited to the target's positions. `resolved` has all defaults
    filled in. `sources` are the checkpoints by role ("target", "draft"). `target` is None for an architecture without a
    family, which only backends without conversion support. `draft` is a separate draft model, `head` a draft head that
    is stored with the target; at most one of them is set. `translates` is true if the backend maps the tokens of a
    draft model with another vocabulary. `remote_probe` calls a function on the machine that will run the engine's
    builder, if that is not this one.
    """

    recipe: Recipe
    choice: SelectedBackend
    method: Method
    options: Options
    draft_shape: DraftShape
    sources: Mapping[str, Source] = field(default_factory=dict)
    target: SourceModel | None = None
    draft: SourceModel | None = None
    head: SourceHead | None = None
    translates: bool = False
    remote_probe: RemoteProbe | None = field(default=None, compare=False, repr=False)

    def builder_tools(self, probe: Callable[[], Tools]) -> Tools:
        """Return the result of a picklable probe on the machine that will run the engine's builder."""
        found: Tools = self.remote_probe(probe, self.resolved.engine) if self.remote_probe else probe()
        return found

    @property
    def version(self) -> str:
        return self.choice.version

    @property
    def method_name(self) -> str:
        return self.recipe.speculation.method

    @property
    def gpu(self) -> Gpu | None:
        """Return the recipe's GPU, or None if it is missing or unknown."""
        return GPUS.get((self.recipe.engine.gpu or "").lower())

    @property
    def target_config(self) -> ModelConfig | None:
        return self.target.config if self.target else None

    @property
    def draft_config(self) -> ModelConfig | None:
        return self.draft.config if self.draft else None

    @property
    def draft_head(self) -> DraftHead | None:
        return self.head.head if self.head else None

    @cached_property
    def target_format(self) -> QuantFormat:
        """Return the quantization format in which a conversion stores the target."""
        return self.target.format(requested_scheme(self.recipe.target)) if self.target else QuantFormat()

    @cached_property
    def draft_format(self) -> QuantFormat:
        asked = self.recipe.speculation.draft
        return self.draft.format(requested_scheme(asked)) if asked and self.draft else QuantFormat()

    @cached_property
    def resolved(self) -> ResolvedRecipe:
        """Return the recipe with all defaults filled in."""
        return resolve_recipe(
            self.recipe,
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


def recipe_models(context: PlanContext) -> Iterator[tuple[Role, str, ModelSource]]:
    """Yield (role, path in the recipe, model) for each model in the recipe."""
    yield "target", "target", context.recipe.target
    if context.recipe.speculation.draft:
        yield "draft", "speculation.draft", context.recipe.speculation.draft


def hub_revision(asked: ModelSource, path: str) -> str:
    """Return the commit of a model on the hub; "" for a local directory."""
    return "" if is_directory(path) else asked.revision or ""


def online_format(context: PlanContext, role: str, asked: ModelSource) -> str:
    """Return the weight format to which an engine quantizes a source on load; "" for none or a quantized source."""
    wanted = asked.quantization.weights
    return "" if wanted == "none" or source_format(context.sources[role]).weights != "none" else wanted


def _dtype(model: SourceModel | None) -> str:
    """Return the compute dtype of a model; "source" for a model without a family, for which the engine decides."""
    return model.config.dtype if model else "source"
