# SPDX-License-Identifier: Apache-2.0
"""Medusa: heads on the target's last hidden state draft a tree; head k ranks the tokens k + 2 positions ahead.

Cai et al. 2024, arXiv:2401.10774. A head consists of blocks x + silu(linear(x)) and a vocabulary matrix. The tree of
ranks is static and is chosen once per model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import Field, field_validator

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Skip
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.base import DraftHead, DraftShape, HeadTarget, LossyOptions, Method, Suggestion
from trtspec.methods.head_checks import check_sizes
from trtspec.methods.medusa.heads import Heads, find_heads, has_heads
from trtspec.methods.tree_choices import MEDUSA_CHOICES, Choice, check_ranks, find_choices, smaller_trees

SHARED = "shared-lm-head"  # the code for heads without a vocabulary matrix
OF_THE_BASE = Skip(r"(model|lm_head)\..*", "part of the target")


class MedusaOptions(LossyOptions):
    """The options of the drafted tree."""

    choices: str | list[list[int]] = Field(
        default="mc_sim_7b_63",
        description="Name of a published tree, or paths: [0, 2] is the third best after the best",
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


def read_head(source: Source, base: HeadTarget, options: MedusaOptions) -> DraftHead:
    """Describe the Medusa heads in `source` for a target."""
    heads, config = find_heads(source), base.config
    return DraftHead(
        config={
            "architecture": "MedusaForCausalLM",
            "base_architecture": config.architecture,
            # TensorRT-LLM distinguishes the two kinds of base models by this key
            "model_type": dict(config.extra).get("qwen_type", "llama"),
            "num_medusa_heads": heads.num_heads,
            "num_medusa_layers": heads.num_layers,
            "max_draft_len": len(options.paths),
        },
        rules=list(heads.rules()),
        skips=[OF_THE_BASE] if heads.names.prefix else [],
        excluded=("*medusa_heads*",),
        diagnostics=tuple(_check_head(heads, config, _draft_shape(options, 0).max_depth)),
    )


def _check_head(heads: Heads, config: ModelConfig, depth: int) -> Iterator[Diagnostic]:
    yield from check_sizes("the heads are", heads.hidden_size, heads.vocab_size or config.vocab_size, config)
    if heads.shared == "":
        message = "the heads use the target's LM head, which is not among their tensors"
        hint = "convert them to vLLM's format, which includes it: trtspec convert-draft with --target"
        yield Diagnostic("model", SHARED, message, hint)
    if heads.num_heads < depth:
        message = f"the choices are {depth} tokens deep, but there are {heads.num_heads} heads"
        yield Diagnostic("model", "heads", message, f"list choices with a depth of at most {heads.num_heads}")


def _draft_shape(options: MedusaOptions, draft_len: int) -> DraftShape:
    return DraftShape(max(map(len, options.paths)), len(options.paths))


def _check_options(options: MedusaOptions, config: ModelConfig) -> list[Diagnostic]:
    return check_ranks(options.paths, config)


def _suggest(source: Source) -> Suggestion | None:
    if not has_heads(source):
        return None
    heads = find_heads(source)
    paths, why = MedusaOptions().paths, f"DRAFT has {heads.num_heads} Medusa heads"
    short = [list(path) for path in paths if len(path) <= heads.num_heads]
    if len(short) == len(paths):
        return Suggestion(1, why)
    return Suggestion(1, why, {"choices": short}, f"the default tree, limited to the depth of {heads.num_heads} heads")


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
