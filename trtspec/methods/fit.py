# SPDX-License-Identifier: Apache-2.0
"""Checks of a draft head against its target."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.diagnostics import Diagnostic


def check_sizes(what: str, hidden_size: int, vocab_size: int, target: ModelConfig) -> Iterator[Diagnostic]:
    """Report sizes of a head that are not the target's; `what` is its subject and verb, as in "the head is"."""
    hint = "it drafts for the model that it was trained with, and for its fine-tunes"
    if hidden_size != target.hidden_size:
        message = f"{what} for hidden states of {hidden_size}, the target's have {target.hidden_size}"
        yield Diagnostic("model", "hidden-size", message, hint)
    if vocab_size != target.vocab_size:
        message = f"{what} for {vocab_size} vocabulary entries, the target has {target.vocab_size}"
        yield Diagnostic("model", "vocabulary", message, hint)


def check_layer(head: ModelConfig, target: ModelConfig) -> Iterator[Diagnostic]:
    """Warn where a head's layer differs from the target's, which lowers acceptance and does not change the output.

    Published heads have fewer positions than their targets.
    """
    if head.max_positions < target.max_positions:
        message = f"the head has {head.max_positions} positions, the target {target.max_positions}"
        hint = "drafts may be accepted less beyond them; measure on long texts"
        yield Diagnostic("model", "positions", message, hint, "warning")
    if (head.rotary_base, head.rope_scaling) != (target.rotary_base, target.rope_scaling):
        ours, theirs = _describe(head), _describe(target)
        message = f"the head turns its positions by {ours}, the target by {theirs}"
        yield Diagnostic(
            "model", "rope", message, "right where the head was trained so: compare its trainer's config", "warning"
        )


def _describe(config: ModelConfig) -> str:
    scaling = config.rope_scaling
    words = f"base {config.rotary_base:g}"
    if scaling:
        words += f" and {scaling.kind} scaling by {scaling.factor:g}"
        words += f" of {scaling.original_max_position} positions" if scaling.original_max_position else ""
    return words
