# SPDX-License-Identifier: Apache-2.0
"""Which tensors a converted checkpoint holds for a module, told from its config: the rules without their sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.rules import Part, Rule, Stage

# A layer's number in the whole model, or the stage of what belongs to no layer.
At: TypeAlias = int | Stage


@dataclass(frozen=True)
class Matrix:
    """A module's weight: (rows, heads) of each part, 0 heads for rows that are no heads, its columns and experts."""

    parts: tuple[tuple[int, int], ...]
    columns: int
    experts: int = 0

    def rule(self, target: str, at: At) -> Rule:
        """Return the rule of the weight, or of a vector as long as the weight has rows."""
        width = (self.columns,) if target.endswith("weight") else ()
        parts = tuple(Part("", (rows, *width), heads) for rows, heads in self.parts)
        return Rule(target, parts, at, self.experts)


def matrices(config: ModelConfig) -> dict[str, Matrix]:
    """Return the matrices by module name, those of a layer without its prefix."""
    hidden, inter, experts = config.hidden_size, config.intermediate_size, config.num_experts
    heads, kv_heads = ((count * config.head_size, count) for count in (config.num_heads, config.num_kv_heads))
    vocabulary = Matrix(((config.vocab_size, 0),), hidden)
    return {
        "transformer.vocab_embedding": vocabulary,
        "attention.qkv": Matrix((heads, kv_heads, kv_heads), hidden),
        "attention.dense": Matrix(((hidden, 0),), heads[0]),
        "mlp.router": Matrix(((experts, 0),), hidden),
        # the experts' fc is two matrices each: the linear branch above the activated one
        "mlp.fc": Matrix(((inter, 0),) * (2 * experts or 1), hidden, experts),
        "mlp.gate": Matrix(((inter, 0),), hidden),
        "mlp.proj": Matrix(((hidden, 0),) * (experts or 1), inter, experts),
        "lm_head": vocabulary,
    }


def vector(target: str, at: At, *shape: int) -> Rule:
    """Return the rule of a norm's weight, a bias or a scale that every rank has whole."""
    return Rule(target, (Part("", shape),), at)
