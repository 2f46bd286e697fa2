# SPDX-License-Identifier: Apache-2.0
"""The description of a speculation method, independent of the backend that runs it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal

from pydantic import Field, ValidationError

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule, Skip
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic, plain_words
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import discover, discover_all, find, version_of
from trtspec.recipe.schema import StrictModel

PACKAGE, ATTRIBUTE = "trtspec.methods", "METHOD"


class Options(StrictModel):
    """A method's own keys below `speculation.options`; this class has none."""

    @property
    def acceptance(self) -> Literal["exact", "typical"]:
        """Return the acceptance rule: "exact" keeps the target's output distribution, "typical" does not."""
        return "exact"


class LossyOptions(Options):
    """The keys of a method that also supports typical acceptance, which is lossy (arXiv:2401.10774)."""

    lossy: bool = Field(default=False, description="Accept what is typical of the target instead of exactly its own")
    posterior_threshold: float = Field(default=0.09, gt=0, le=1, description="Probability from which all is typical")
    posterior_alpha: float = Field(default=0.3, gt=0, description="Weight of the entropy that lowers the threshold")

    @property
    def acceptance(self) -> Literal["exact", "typical"]:
        """Return the acceptance rule."""
        return "typical" if self.lossy else "exact"


@dataclass(frozen=True)
class DraftShape:
    """The most that a step drafts: `max_depth` tokens in a row, `max_tokens` in all."""

    max_depth: int
    max_tokens: int


@dataclass(frozen=True)
class DraftHead:
    """A draft head that is stored in its target's checkpoint, as in TensorRT-LLM.

    `config` are its keys of config.json beside the target's own ("architecture" is one), and `models` the sections that
    describe models of their own, by key. `rules` are for the tensors of the head's source, of which `skips` names the
    unused ones; `borrowed` are for tensors that it copies from the target's source. `excluded` are patterns of modules
    that are never quantized. `diagnostics` report how it fits the target; their paths are relative to
    `speculation.draft`.
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
        """Return the number of the head's own parameters; source tensors that several targets share count once."""
        stored = {tensor.name: tensor.shape for rule in self.rules for tensor in rule.sources if tensor.name}
        return sum(map(prod, stored.values()))


@dataclass(frozen=True)
class HeadTarget:
    """The target that a draft head is read for: its description, and the rules of its own checkpoint.

    `draft_len` is the number of tokens in a row that the recipe asks for.
    """

    config: ModelConfig
    rules: Sequence[Rule]
    draft_len: int


@dataclass(frozen=True)
class Suggestion:
    """Why a method suits a checkpoint; of several methods the one of the lowest `rank` is proposed.

    `options` are those that the checkpoint asks for where the defaults do not do, and `options_why` says why.
    `draft_len` is the one that it was trained for, 0 where the method's default will do.
    """

    rank: int
    why: str
    options: dict[str, Any] = field(default_factory=dict)
    options_why: str = ""
    draft_len: int = 0


def chain(options: Any, draft_len: int) -> DraftShape:
    """Return the draft shape of a method that drafts a chain."""
    return DraftShape(draft_len, draft_len)


def _no_diagnostics(options: Any, config: ModelConfig) -> list[Diagnostic]:
    return []


def _no_variants(options: Any) -> Iterable[dict[str, Any]]:
    return ()


def _nothing_wrong(source: Source) -> list[Diagnostic]:
    return []


@dataclass(frozen=True)
class Method:
    """One speculation method; a module of this folder joins by defining it as `METHOD`.

    `drafts_with` selects what the recipe's `speculation.draft` has to be: nothing, a model, or a head that is stored
    with the target, which `read_head` describes (it raises CheckpointError for any other source). `has_confidence`
    says that it drafts chains from probabilities, which tell how sure it is. `draft_passes` is how often what drafts
    runs in a step: once for each token in a row, once for all of them, or never, where tokens are looked up.
    `draft_lens` is the range of the recipe's `draft_len`, empty where the options decide. `draft_shape`
    computes the draft shape from the options and draft_len. `check_options` checks the options against the target; its
    diagnostics' paths are relative to `speculation.options`. `check_model` checks a draft model's own source for what
    the method needs of it; paths are relative to `speculation.draft`. `suggest` looks at what would draft, or where
    nothing does at the target, and returns why the method suits it, None where it does not; raises CheckpointError for
    what is broken. `variants` yields what else is worth measuring, as changes of the given options; None removes a
    key. Backends declare which methods they run.
    """

    summary: str
    drafts_with: Literal["nothing", "model", "head"]
    has_confidence: bool = False
    draft_passes: Literal["none", "one", "each"] = "each"
    draft_lens: range = range(0)
    default_draft_len: int = 0
    options: type[Options] = Options
    draft_shape: Callable[[Any, int], DraftShape] = chain
    check_options: Callable[[Any, ModelConfig], list[Diagnostic]] = _no_diagnostics
    check_model: Callable[[Source], Iterable[Diagnostic]] = _nothing_wrong
    read_head: Callable[[Source, HeadTarget, Any], DraftHead] | None = None
    suggest: Callable[[Source], Suggestion | None] | None = None
    variants: Callable[[Any], Iterable[dict[str, Any]]] = _no_variants

    @property
    def follows_text(self) -> bool:
        """Return whether a draft follows from the text before it, wherever a step begins.

        What drafts from the target's hidden states is surer of the first tokens of a step than of its later ones.
        """
        return self.draft_passes == "none" or (self.drafts_with == "model" and self.draft_passes == "each")

    def parse(self, options: dict[str, Any]) -> Options:
        """Return the parsed options; raises TrtspecError for invalid ones."""
        try:
            return self.options.model_validate(options)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, ("speculation.options", *first["loc"])))
            raise TrtspecError(plain_words(first["msg"]), where=where) from None


def methods() -> dict[str, Method]:
    """Return every method there is, by name."""
    return discover_all(PACKAGE, ATTRIBUTE)


def find_method(name: str) -> Method:
    """Return a method by name; an unknown one is an error that lists the known ones."""
    method: Method = find(PACKAGE, ATTRIBUTE, name, "speculation method")
    return method


def method_version(name: str) -> str:
    """Return the installed package that provides a method, with its version; "" for a built-in one."""
    return "" if name in discover(PACKAGE, ATTRIBUTE) else version_of(PACKAGE, name)
