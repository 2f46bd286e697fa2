# SPDX-License-Identifier: Apache-2.0
"""The interface of speculation methods, independent of the backend that runs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from pydantic import Field, ValidationError

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule, Skip
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic, first_invalid
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import discover, discover_all, find_extension, provider_version
from trtspec.recipe.schema import StrictModel

PACKAGE, ATTRIBUTE = "trtspec.methods", "METHOD"


class Options(StrictModel):
    """Options of a speculation method: the keys of `speculation.options` (none in this base class)."""

    @property
    def acceptance(self) -> Literal["exact", "typical"]:
        """Return the acceptance rule: "exact" preserves the target's output distribution, "typical" does not."""
        return "exact"


class LossyOptions(Options):
    """Options of a method that also supports typical acceptance, which is lossy (arXiv:2401.10774)."""

    lossy: bool = Field(default=False, description="Use typical acceptance, which changes the output distribution")
    posterior_threshold: float = Field(
        default=0.09, gt=0, le=1, description="Probability above which every token is accepted"
    )
    posterior_alpha: float = Field(default=0.3, gt=0, description="Weight of the entropy, which lowers the threshold")

    @property
    def acceptance(self) -> Literal["exact", "typical"]:
        return "typical" if self.lossy else "exact"


@dataclass(frozen=True)
class DraftShape:
    """The maximum size of one step's draft: `max_depth` is its longest path, `max_tokens` its total size."""

    max_depth: int
    max_tokens: int


@dataclass(frozen=True)
class DraftHead:
    """A draft head that is stored in its target's checkpoint, as in TensorRT-LLM.

    Attributes:
        config: keys added to the target's config.json, such as "architecture".
        rules: conversion rules for the tensors of the head's source.
        skips: patterns of tensors in that source that are not converted.
        borrowed: conversion rules for tensors that are copied from the target's source.
        models: complete model configs that are added to the target's config.json, by key.
        excluded: patterns of modules that are never quantized.
        diagnostics: mismatches between head and target; paths are relative to `speculation.draft`.
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
        """Return the number of parameters in the head's source, counting a tensor that several rules use once."""
        stored = {tensor.name: tensor.shape for rule in self.rules for tensor in rule.sources if tensor.name}
        return sum(map(prod, stored.values()))


@dataclass(frozen=True)
class HeadTarget:
    """The target of a draft head: its config, and the conversion rules of its checkpoint.

    `draft_len` is the maximum number of draft tokens on one path.
    """

    config: ModelConfig
    rules: Sequence[Rule]
    draft_len: int


@dataclass(frozen=True)
class Suggestion:
    """A proposal to use a method for a checkpoint, with the reason in `why`.

    If several methods are proposed, the one with the lowest `rank` is used. `options` are the non-default options that
    the checkpoint requires, and `options_why` is the reason for them. `draft_len` is the draft length used in the
    draft's training, or 0 for the method's default.
    """

    rank: int
    why: str
    options: dict[str, Any] = field(default_factory=dict)
    options_why: str = ""
    draft_len: int = 0


@dataclass(frozen=True)
class VocabularyNames:
    """Tensor names of a draft head that may have a smaller vocabulary than its target.

    `lm_head` is the embedding's name if the two are tied. A head with a reduced vocabulary stores its LM head as
    `lm_head.weight`. Its tensor d2t is the target's id of each draft token minus the draft's id, and t2d marks the
    target's tokens that the head can draft. `rows` are further tensors with one row per draft token. `prefix` precedes
    all names except those in `rows`.
    """

    prefix: str = ""
    lm_head: str = "lm_head.weight"
    rows: tuple[str, ...] = ()


def chain(options: Any, draft_len: int) -> DraftShape:
    return DraftShape(draft_len, draft_len)


def suggest_for(is_draft: Callable[[Source], bool], why: str) -> Callable[[Source], Suggestion | None]:
    """Return a `Method.suggest` function that proposes the method, for the reason `why`, if `is_draft` returns true."""
    return lambda source: Suggestion(0, why) if is_draft(source) else None


@dataclass(frozen=True)
class Method:
    """A speculation method, registered as `METHOD` of a module in this package; backends declare which they support.

    Attributes:
        drafts_with: the required value of the recipe's `speculation.draft`: nothing, a model, or a head that is stored
            with the target and described by `read_head` (which raises CheckpointError for any other source).
        has_confidence: true if the method drafts chains from probabilities, so that drafting can stop at a low one.
        draft_passes: forward passes of the drafter per step: "each" is one per token of a chain, "one" is one for all
            tokens, and "none" is for tokens that are looked up.
        draft_lens: valid values of the recipe's `draft_len`; empty if the options determine the draft length.
        draft_shape: returns the draft shape for the options and the draft length.
        check_options: yields problems of the options with the target; paths are relative to `speculation.options`.
        check_model: yields problems of a draft model's source; paths are relative to `speculation.draft`.
        suggest: returns a proposal for a draft (for a target if the method does not use a draft), or None; raises
            CheckpointError for an invalid checkpoint.
        variants: yields changes of the options that are worth measuring; the value None removes a key.
        vocabulary_names: returns the tensor names of heads that can have a reduced vocabulary, or None.
    """

    summary: str
    drafts_with: Literal["nothing", "model", "head"]
    has_confidence: bool = False
    draft_passes: Literal["none", "one", "each"] = "each"
    draft_lens: range = range(0)
    default_draft_len: int = 0
    options: type[Options] = Options
    draft_shape: Callable[[Any, int], DraftShape] = chain
    check_options: Callable[[Any, ModelConfig], Iterable[Diagnostic]] = lambda options, config: ()
    check_model: Callable[[Source], Iterable[Diagnostic]] = lambda source: ()
    read_head: Callable[[Source, HeadTarget, Any], DraftHead] | None = None
    suggest: Callable[[Source], Suggestion | None] | None = None
    variants: Callable[[Any], Iterable[dict[str, Any]]] = lambda options: ()
    vocabulary_names: Callable[[Source], VocabularyNames] | None = None

    @property
    def follows_text(self) -> bool:
        """Return whether a draft token depends only on the text before it, not on its position in the step.

        Drafters that read the target's hidden states are more accurate for the first tokens of a step.
        """
        return self.draft_passes == "none" or (self.drafts_with == "model" and self.draft_passes == "each")

    def length_for(self, draft_len: int | None) -> int:
        """Return the recipe's `draft_len`, or the method's default if it is None."""
        return self.default_draft_len if draft_len is None else draft_len

    def shape_for(self, options: Options, draft_len: int | None) -> DraftShape:
        """Return the draft shape for parsed options and the recipe's `draft_len`, where None is the default."""
        return self.draft_shape(options, self.length_for(draft_len))

    def parse(self, options: dict[str, Any]) -> Options:
        """Validate `speculation.options`; raise TrtspecError with the path of the first invalid key."""
        try:
            return self.options.model_validate(options)
        except ValidationError as error:
            path, message = first_invalid(error)
            where = ".".join(filter(None, ("speculation.options", path)))
            raise TrtspecError(message, where=where) from None


def methods() -> dict[str, Method]:
    return discover_all(PACKAGE, ATTRIBUTE)


def find_method(name: str) -> Method:
    """Return a method by name; raise TrtspecError, which lists the available methods, if it does not exist."""
    method: Method = find_extension(PACKAGE, ATTRIBUTE, name, "speculation method")
    return method


def method_version(name: str) -> str:
    """Return the name and version of the package that provides a method; "" for a built-in method."""
    return "" if name in discover(PACKAGE, ATTRIBUTE) else provider_version(PACKAGE, name)
