# SPDX-License-Identifier: Apache-2.0
"""Which tensors a converted checkpoint holds, told from its config: the rules of a decoder, whatever their sources."""

from __future__ import annotations

from typing import TypeAlias

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule, Stage
from trtspec.families.decoder import decoder_rules

# A layer's number in the whole model, or the stage of what belongs to no layer.
At: TypeAlias = int | Stage


def stored_rules(config: ModelConfig) -> dict[tuple[At, str], Rule]:
    """Return the rules of all tensors but scales, by place and target."""
    return {(rule.at, rule.target): rule for rule in decoder_rules(config)}
