# SPDX-License-Identifier: Apache-2.0
"""The tensors of a converted checkpoint, derived from its config: the rules of a decoder without their sources."""

from __future__ import annotations

from typing import TypeAlias

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule, Stage
from trtspec.families.decoder import decoder_rules

# A layer's number in the whole model, or the stage of a tensor outside the layers.
At: TypeAlias = int | Stage


def stored_rules(config: ModelConfig) -> dict[tuple[At, str], Rule]:
    """Return the rules of all tensors except scales, by position and target."""
    return {(rule.at, rule.target): rule for rule in decoder_rules(config)}
