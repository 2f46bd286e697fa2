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
from trtspec.core.diagnostics import Diagnostic, simplify_pydantic_message
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import discover, discover_all, find_extension, provider_version
from trtspec.recipe.schema import StrictModel

PACKAGE, ATTRIBUTE = "trtspec.methods", "METHOD"


class Options(StrictModel):
    """The keys of a method below `speculation.options`; the base class is for methods without options."""

    @property
    def acceptance(self) -> Literal["exact", "typical"]:
        """Return the acceptance rule: "exact" keeps the target's output distribution, "typical" does not."""
        return "exact"


class LossyOptions(Options):
    """The keys of a method that also supports typical acceptance, which is lossy (arXiv:2401.10774)."""

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
    """The maximum draft of a step: `max_depth` tokens in a row, `max_tokens` in total."""

    max_depth: int
    max_tokens: int


@dataclass(frozen=True)
class DraftHead:
    """A draft head that is stored in its target's checkpoint, as in TensorRT-LLM.

    `config` are the keys that it adds to the target's config.json (such as "architecture"), and `models` the sections
    that describe complete models, by key. `rules` are for the tensors of the head's source, `skips` match the unused
    ones, and `borrowed` are for tensors copied from the target's source. `excluded` are patterns of modules that are
    never quantized. `diagnostics` report mismatches with the target; their paths are relative to `speculation.draft`.
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
        """Return the number of parameters in the head's source; a source tensor used by several rules counts once."""
        stored = {tensor.name: tensor.shape for rule in self.rules for tensor in rule.sources if tensor.name}
        return sum(map(prod, stored.values()))


@dataclass(frozen=True)
class HeadTarget:
    """The target of a draft head: its config, and the rules of its checkpoint.

    `draft_len` is the recipe's draft length in tokens in a row.
    """

    config: ModelConfig
    rules: Sequence[Rule]
    draft_len: int


@dataclass(frozen=True)
class Suggestion:
    """The reason why a method suits a checkpoint; if several methods do, the one with the lowest `rank` is proposed.

    `options` are the non-default options that the checkpoint requires, and `options_why` is the reason for them.
    `draft_len` is the draft length of its training, 0 for the method's default.
    """

    rank: int
    why: str
    options: dict[str, Any] = field(default_factory=dict)
    options_why: str = ""
    draft_len: int = 0


@dataclass(frozen=True)
class VocabularyNames:
    """The tensor names of a head that may draft only some of the target's tokens.

    The LM head is stored as `lm_head`, which is the embedding if the two are tied; a pruned one is `lm_head.weight`
    with the prefix. d2t has the target's id of each drafted token minus the draft's id, and t2d marks the target's
    tokens that are drafted. `rows` are further tensors with a row for each drafted token. All names except `rows` are
    without the `prefix`.
    """

    prefix: str = ""
    lm_head: str = "lm_head.weight"
    rows: tuple[str, ...] = ()


def chain(options: Any, draft_len: int) -> DraftShape:
    return DraftShape(draft_len, draft_len)


def suggest_for(is_draft: Callable[[Source], bool], why: str) -> Callable[[Source], Suggestion | None]:
    """Return the `Method.suggest` of a method for the drafts that `is_draft` recognizes."""
    return lambda source: Suggestion(0, why) if is_draft(source) else None


@dataclass(frozen=True)
class Method:
    """One speculation method, registered as `METHOD` of a module in this package. Backends declare which they support.

    Attributes:
        drafts_with: what the recipe's `speculation.draft` must be: nothing, a model, or a head that is stored with the
            target and described by `read_head` (which raises CheckpointError for any other source).
        has_confidence: whether it drafts chains from probabilities, which give the draft's confidence.
        draft_passes: the number of passes of the drafter per step: one for each token in a row ("each"), one for all
            of them ("one"), or none if tokens are looked up ("none").
        draft_lens: the range of the recipe's `draft_len`; empty if the options determine it.
        draft_shape: returns the draft shape for the options and draft_len.
        check_options: checks the options against the target; paths are relative to `speculation.options`.
        check_model: checks whether a draft model's source fits the method; paths are relative to `speculation.draft`.
        suggest: returns why the method suits a draft (or the target, for methods without a draft), or None;
            raises CheckpointError for an invalid checkpoint.
        variants: yields alternatives worth measuring, as changes of the given options; the value None removes a key.
        vocabulary_names: returns the tensor names of a head's own vocabulary; None if its heads have the target's.
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
        """Return the draft length of a recipe's `draft_len`: the method's default for None."""
        return self.default_draft_len if draft_len is None else draft_len

    def shape_for(self, options: Options, draft_len: int | None) -> DraftShape:
        """Return the draft shape for parsed options and a recipe's `draft_len`, which may be None."""
        return self.draft_shape(options, self.length_for(draft_len))

    def parse(self, options: dict[str, Any]) -> Options:
        """Return the parsed options; raise TrtspecError if they are invalid."""
        try:
            return self.options.model_validate(options)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("speculation.options", *first["loc"])))
            raise TrtspecError(simplify_pydantic_message(first["msg"]), where=where) from None


def methods() -> dict[str, Method]:
    return discover_all(PACKAGE, ATTRIBUTE)


def find_method(name: str) -> Method:
    """Return a method by name; raise TrtspecError with the known names if it is unknown."""
    method: Method = find_extension(PACKAGE, ATTRIBUTE, name, "speculation method")
    return method


def method_version(name: str) -> str:
    """Return name and version of the installed package that provides a method; "" for a built-in method."""
    return "" if name in discover(PACKAGE, ATTRIBUTE) else provider_version(PACKAGE, name)
