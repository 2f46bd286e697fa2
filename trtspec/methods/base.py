# SPDX-License-Identifier: Apache-2.0
"""What a speculation method has to say about itself, whatever engine runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from pydantic import Field, ValidationError

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.rules import Rule, Skip
from trtspec.checkpoint.source import Source
from trtspec.diagnostics import Diagnostic
from trtspec.errors import TrtspecError
from trtspec.recipe.schema import StrictModel
from trtspec.registry import discover, find, version_of

PACKAGE, ATTRIBUTE = "trtspec.methods", "METHOD"


class Options(StrictModel):
    """A method's own keys below `speculation.options`; this is the method that has none."""

    @property
    def acceptance(self) -> Literal["exact", "typical"]:
        """Return which rule accepts drafts: with "exact" the text is the target's own, with "typical" it is not."""
        return "exact"


class LossyOptions(Options):
    """The keys of a method that also knows typical acceptance, which changes the text (arXiv:2401.10774)."""

    lossy: bool = Field(default=False, description="Accept what is typical of the target instead of exactly its own")
    posterior_threshold: float = Field(default=0.09, gt=0, le=1, description="Probability from which all is typical")
    posterior_alpha: float = Field(default=0.3, gt=0, description="Weight of the entropy that lowers the threshold")

    @property
    def acceptance(self) -> Literal["exact", "typical"]:
        """Return which rule accepts drafts."""
        return "typical" if self.lossy else "exact"


@dataclass(frozen=True)
class DraftShape:
    """How much a step drafts at most: `max_depth` tokens one after another, `max_tokens` in all."""

    max_depth: int
    max_tokens: int


@dataclass(frozen=True)
class DraftHead:
    """Tensors that draft from inside a target, stored in its checkpoint as TensorRT-LLM does.

    `config` is what config.json says beside the target's own keys ("architecture" among them), and `models` what it
    describes, by key, as it does a model that is divided like the target. `rules` are made of the part's source, whose
    other tensors `skips` names; `borrowed` are made of the target's source once more. `excluded` are the patterns of
    its modules, which are never quantized. `diagnostics` say how it fits
    the target; their paths are relative to `speculation.draft`.
    """

    config: dict[str, Any]
    rules: list[Rule]
    skips: list[Skip] = field(default_factory=list)
    borrowed: list[Rule] = field(default_factory=list)
    models: dict[str, ModelConfig] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Return how many numbers the part's own tensors hold; what several targets share counts once."""
        return sum({tensor.name: prod(tensor.shape) for rule in self.rules for tensor in rule.sources}.values())


@dataclass(frozen=True)
class HeadTarget:
    """The target that a draft head is read for: its description, and the rules of its own checkpoint.

    `draft_len` is how many tokens the recipe wants to be drafted one after another.
    """

    config: ModelConfig
    rules: Sequence[Rule]
    draft_len: int


def chain(options: Any, draft_len: int) -> DraftShape:
    """Return the shape of a method that drafts one token after another."""
    return DraftShape(draft_len, draft_len)


def _no_diagnostics(options: Any, config: ModelConfig) -> list[Diagnostic]:
    return []


@dataclass(frozen=True)
class Method:
    """One speculation method; a module of this folder joins by defining it as `METHOD`.

    `drafts_with` says what the recipe's `speculation.draft` has to be: nothing, a model, or a head that is stored with
    the target, which `read_head` describes (raising CheckpointError for a source that is no such head). `draft_lens`
    is the range of the recipe's `draft_len`, empty where the options decide; `draft_shape` computes from options and
    draft_len how much a step drafts. `check_options` holds the options against the target; the diagnostics' paths are
    relative to `speculation.options`. Which backends run a method is theirs to say.
    """

    summary: str
    drafts_with: Literal["nothing", "model", "head"]
    draft_lens: range = range(0)
    default_draft_len: int = 0
    options: type[Options] = Options
    draft_shape: Callable[[Any, int], DraftShape] = chain
    check_options: Callable[[Any, ModelConfig], list[Diagnostic]] = _no_diagnostics
    read_head: Callable[[Source, HeadTarget, Any], DraftHead] | None = None

    def parse(self, options: dict[str, Any]) -> Options:
        """Return options that were checked before; TrtspecError where they were not."""
        try:
            return self.options.model_validate(options)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("speculation.options", *first["loc"])))
            raise TrtspecError(first["msg"], where=where) from None


def find_method(name: str) -> Method:
    """Return a method by name; an unknown one is an error that lists the known ones."""
    method: Method = find(PACKAGE, ATTRIBUTE, name, "speculation method")
    return method


def method_version(name: str) -> str:
    """Return which installed package brings a method, with its version; "" for one of ours."""
    return "" if name in discover(PACKAGE, ATTRIBUTE) else version_of(PACKAGE, name)
