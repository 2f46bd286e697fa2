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
class Extent:
    """How much a step drafts at most: `depth` tokens one after another, `nodes` tokens in all."""

    depth: int
    nodes: int


@dataclass(frozen=True)
class Misfit:
    """Where a drafting part or an option does not fit the target: a problem's code, what is wrong, and what to do.

    A "warning" is about drafts that may be worse, an "error" about what cannot be done.
    """

    code: str
    message: str
    hint: str | None = None
    severity: Literal["error", "warning"] = "error"


@dataclass(frozen=True)
class DraftPart:
    """Tensors that draft from inside a target, stored in its checkpoint as TensorRT-LLM does.

    `config` is what config.json says beside the target's own keys ("architecture" among them), and `models` what it
    describes, by key, as it does a model that is divided like the target. `rules` are made of the part's source, whose
    other tensors `skips` names; `borrowed` are made of the target's source once more. `excluded` are the patterns of
    its modules, which are never quantized. `misfits` keep it from being used with the target.
    """

    config: dict[str, Any]
    rules: list[Rule]
    skips: list[Skip] = field(default_factory=list)
    borrowed: list[Rule] = field(default_factory=list)
    models: dict[str, ModelConfig] = field(default_factory=dict)
    excluded: tuple[str, ...] = ()
    misfits: tuple[Misfit, ...] = ()

    @property
    def num_parameters(self) -> int:
        """Return how many numbers the part's own tensors hold; what several targets share counts once."""
        return sum({part.name: prod(part.shape) for rule in self.rules for part in rule.parts}.values())


@dataclass(frozen=True)
class Base:
    """The target that a drafting part is read for: its description, and the rules of its own checkpoint.

    `draft_len` is how many tokens the recipe wants to be drafted one after another.
    """

    config: ModelConfig
    rules: Sequence[Rule]
    draft_len: int


def chain(options: Any, draft_len: int) -> Extent:
    """Return the extent of a method that drafts one token after another."""
    return Extent(draft_len, draft_len)


def _fits(options: Any, config: ModelConfig) -> list[Misfit]:
    return []


@dataclass(frozen=True)
class Method:
    """One speculation method; a module of this folder joins by defining it as `METHOD`.

    `drafts_with` says what the recipe's `speculation.draft` has to be: nothing, a model, or a part that is stored with
    the target, which `read_part` describes (raising CheckpointError for a source that is no such part). `draft_lens`
    is the range of the recipe's `draft_len`, empty where the options decide; `extent` tells from options and draft_len
    how much a step drafts. `misfits` holds the options against the target, each misfit's `code` being the option it is
    about. `engine_mode` is the `--speculative_decoding_mode` of trtllm-build, "" where engines know no such method, and
    `engines` are the backends that can run it.
    """

    summary: str
    drafts_with: Literal["nothing", "model", "part"]
    engines: tuple[str, ...]
    draft_lens: range = range(0)
    default_draft_len: int = 0
    options: type[Options] = Options
    extent: Callable[[Any, int], Extent] = chain
    misfits: Callable[[Any, ModelConfig], list[Misfit]] = _fits
    read_part: Callable[[Source, Base, Any], DraftPart] | None = None
    engine_mode: str = ""

    def build_arguments(self, extent: Extent) -> list[str]:
        """Return what trtllm-build has to be told for the target's engine; nothing where engines know no such method.

        NVIDIA/TensorRT-LLM, tensorrt_llm/commands/build.py, 1.0 to 1.2: max_draft_len counts all drafted tokens.
        """
        if not self.engine_mode:
            return []
        return ["--speculative_decoding_mode", self.engine_mode, "--max_draft_len", str(extent.nodes)]

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
