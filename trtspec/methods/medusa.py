# SPDX-License-Identifier: Apache-2.0
"""Medusa heads on the target's last hidden state draft a tree: head k ranks the tokens k + 2 positions ahead.

Cai et al. 2024, arXiv:2401.10774. A head is some blocks x + silu(linear(x)), then a matrix to the vocabulary. The tree
of ranks is fixed, and chosen once for a model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import Field, field_validator

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.rules import Rule, Skip, SourceTensor, Split, Stage
from trtspec.checkpoint.source import Source
from trtspec.diagnostics import Diagnostic
from trtspec.methods.base import DraftHead, DraftShape, HeadTarget, LossyOptions, Method, Suggestion
from trtspec.methods.choices import MEDUSA_CHOICES, Choice, check_ranks, find_choices, smaller_trees
from trtspec.methods.fit import check_sizes

# Medusa 1.0 and ModelOpt save a whole model with its heads, each under its own prefix.
_NAME = re.compile(r"(medusa_heads?\.)?(\d{1,2})\.(\d{1,2})\.(linear\.)?(weight|bias)")
_OF_THE_BASE = Skip(r"(model|lm_head)\..*", "the target's own")


class MedusaOptions(LossyOptions):
    """The tree that is drafted."""

    choices: str | list[list[int]] = Field(
        default="mc_sim_7b_63", description="A published tree's name, or paths: [0, 2] is the third best after the best"
    )

    @field_validator("choices", mode="before")
    @classmethod
    def _make_a_tree(cls, written: Any) -> Any:
        find_choices(written, MEDUSA_CHOICES)
        return written

    @property
    def paths(self) -> tuple[Choice, ...]:
        """Return the paths of the tree."""
        return find_choices(self.choices, MEDUSA_CHOICES)


@dataclass(frozen=True)
class Heads:
    """Medusa heads of `num_layers` blocks each; `prefix` is the prefix of their tensors in a source."""

    num_heads: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    prefix: str = ""

    def weight(self, head: int, layer: int) -> Rule:
        """Return the rule of a block's matrix [hidden, hidden]."""
        return self._block(head, layer, "weight", self.hidden_size, self.hidden_size)

    def bias(self, head: int, layer: int) -> Rule:
        """Return the rule of a block's bias [hidden]."""
        return self._block(head, layer, "bias", self.hidden_size)

    def lm_head(self, head: int) -> Rule:
        """Return the rule of a head's matrix to the vocabulary [vocab, hidden]."""
        source = SourceTensor(f"{self.prefix}{head}.{self.num_layers}.weight", (self.vocab_size, self.hidden_size))
        return Rule(f"medusa_heads.{head}.lm_head.weight", (source,), Stage.LAST, Split.VOCABULARY)

    def rules(self) -> Iterator[Rule]:
        """Yield the rules of all heads."""
        for head in range(self.num_heads):
            for layer in range(self.num_layers):
                yield from (self.weight(head, layer), self.bias(head, layer))
            yield self.lm_head(head)

    def _block(self, head: int, layer: int, kind: str, *shape: int) -> Rule:
        source = SourceTensor(f"{self.prefix}{head}.{layer}.linear.{kind}", shape)
        return Rule(f"medusa_heads.{head}.medusa_layers.{layer}.linear.{kind}", (source,), Stage.LAST, Split.ROWS)


def read_head(source: Source, base: HeadTarget, options: MedusaOptions) -> DraftHead:
    """Describe the Medusa heads in `source` for a target."""
    heads, config = find_heads(source), base.config
    return DraftHead(
        config={
            "architecture": "MedusaForCausalLM",
            "base_architecture": config.architecture,
            # TensorRT-LLM distinguishes the two kinds of base models by it
            "model_type": dict(config.extra).get("qwen_type", "llama"),
            "num_medusa_heads": heads.num_heads,
            "num_medusa_layers": heads.num_layers,
            "max_draft_len": len(options.paths),
        },
        rules=list(heads.rules()),
        skips=[_OF_THE_BASE] if heads.prefix else [],
        excluded=("*medusa_heads*",),
        diagnostics=tuple(_check_head(heads, config, _draft_shape(options, 0).max_depth)),
    )


def find_heads(source: Source) -> Heads:
    """Count the heads and their blocks by tensor names: published configs have other numbers.

    Raises CheckpointError where there are none, and where they contradict config.json.
    """
    found = [name for name in map(_NAME.fullmatch, source.tensors) if name]
    prefixes = {name[1] or "" for name in found}
    if len(prefixes) != 1:
        message = "holds no Medusa heads: no tensor is named like 0.0.linear.weight"
        raise source.reader.refuse(message if not prefixes else "holds Medusa heads under two prefixes")
    prefix, num_layers = prefixes.pop(), 1 + max((int(name[3]) for name in found if name[4]), default=-1)
    said = source.reader.section("medusa")
    asked = said.get("num_medusa_layers", int, num_layers) if said else num_layers
    if (asked := source.reader.get("medusa_num_layers", int, asked)) != num_layers:
        raise source.reader.refuse(f"says that heads have {asked} layers, but their tensors are those of {num_layers}")
    to_vocabulary = source.tensors.get(f"{prefix}0.{num_layers}.weight")
    if to_vocabulary is None or len(to_vocabulary.shape) != 2:
        raise source.reader.refuse(f"needs {prefix}0.{num_layers}.weight, the first head's matrix to the vocabulary")
    vocab_size, hidden_size = to_vocabulary.shape
    return Heads(1 + max(int(name[2]) for name in found), num_layers, hidden_size, vocab_size, prefix)


def _check_head(heads: Heads, config: ModelConfig, depth: int) -> Iterator[Diagnostic]:
    yield from check_sizes("the heads are", heads.hidden_size, heads.vocab_size, config)
    if heads.num_heads < depth:
        what = f"the choices are {depth} tokens deep, the heads are {heads.num_heads}"
        yield Diagnostic("model", "heads", what, f"list choices of at most that length: {heads.num_heads}")


def _draft_shape(options: MedusaOptions, draft_len: int) -> DraftShape:
    return DraftShape(max(map(len, options.paths)), len(options.paths))


def _check_options(options: MedusaOptions, config: ModelConfig) -> list[Diagnostic]:
    return check_ranks(options.paths, config)


def _suggest(source: Source) -> Suggestion | None:
    if not any(map(_NAME.fullmatch, source.tensors)):
        return None
    heads = find_heads(source)
    paths, why = MedusaOptions().paths, f"DRAFT holds {heads.num_heads} Medusa heads"
    short = [list(path) for path in paths if len(path) <= heads.num_heads]
    if len(short) == len(paths):
        return Suggestion(1, why)
    return Suggestion(1, why, {"choices": short}, f"the default tree, as deep as {heads.num_heads} heads draft")


METHOD = Method(
    summary="Medusa heads on the target's last hidden state draft a tree",
    drafts_with="head",
    draft_passes="one",
    options=MedusaOptions,
    draft_shape=_draft_shape,
    check_options=_check_options,
    read_head=read_head,
    suggest=_suggest,
    variants=lambda options: smaller_trees(options.paths),
)
