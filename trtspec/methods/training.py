# SPDX-License-Identifier: Apache-2.0
"""What a net of layers was trained on, against what its target does: differences that cost acceptance, not the text."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.methods.base import Misfit


def differences(net: ModelConfig, target: ModelConfig) -> Iterator[Misfit]:
    """Yield warnings about the layers of a net; published nets have shorter positions than their targets."""
    if net.max_positions < target.max_positions:
        message = f"the net has {net.max_positions} positions, the target {target.max_positions}"
        yield Misfit("positions", message, "drafts may be accepted less beyond them; measure on long texts", "warning")
    if (net.rotary_base, net.rope_scaling) != (target.rotary_base, target.rope_scaling):
        ours, theirs = _describe(net), _describe(target)
        message = f"the net turns its positions by {ours}, the target by {theirs}"
        yield Misfit("rope", message, "right where the net was trained so: compare its trainer's config", "warning")


def _describe(config: ModelConfig) -> str:
    scaling = config.rope_scaling
    return f"base {config.rotary_base:g}" + (f" and {scaling.kind} scaling by {scaling.factor:g}" if scaling else "")
